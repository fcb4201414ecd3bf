"""The command line."""

import argparse
import os
import signal
import sys

from . import comm, rounds, settings, steplog
from .cells import read_setting
from .driver import Driver
from .failure import Failure
from .launch import ByCell, HostFile, TestBed, built
from .page import write_page
from .plots import bandwidth
from .predictions import Predictor
from .results import Store, note
from .slurm import Slurm
from .tables import TABLES

ABOUT = """Runs experiments with the published protocols and prints the results in the published layouts.

  bench/experiment quick                     run the quick experiment: a few cells of every protocol, then a page with plots
  bench/experiment list                      list the experiments, including published ones
  bench/experiment run SETTING               run one of them, or a setting file; finished cells are kept
  bench/experiment table NAME                print a table in a published layout, with measured and published results
  bench/experiment page                      write all tables and plots of a results folder to one page
  bench/experiment comm FILE...              show the JSON of comm_bench and its peers as tables and a plot
  bench/experiment read LOG...               show logs in the published form as tables, with fitted start-up times
  bench/experiment scaling|weighted|overlap  measure in paired rounds
"""

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def _add_places(parser):
    parser.add_argument(
        "--build", default=os.path.join(ROOT, "build", "release"), help="build folder (default: build/release)"
    )
    parser.add_argument("--out", help="results folder (default: build/experiments/SETTING)")


def _add_run(parser):
    _add_places(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="FILE", help="start ranks on the hosts in this file, with mpirun over ssh")
    where.add_argument("--testbed", action="store_true", help="start all ranks on hosts of the test bed (needs root)")
    where.add_argument("--slurm", action="store_true", help="submit each cell as a Slurm job")
    parser.add_argument("--slurm-option", action="append", default=[], metavar="--NAME=VALUE", help="additional #SBATCH option (repeatable)")
    parser.add_argument("--srun", default="srun", help="command that starts the ranks in a job, e.g. 'srun --mpi=pmix' (default: srun)")
    parser.add_argument("--poll", type=float, default=10.0, help="seconds between queries of Slurm's queue (default: 10)")
    parser.add_argument("--limit", type=float, default=3600.0, help="time limit of a launch in seconds (default: 3600)")
    parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE[,VALUE]",
        help="override a field in all cells (nodes, ranks_per_node, batch, model, exec, comm, transport, ...) or in their "
        "protocol (protocol.steps, protocol.relaunches, ...)",
    )
    parser.add_argument("--no-page", action="store_true", help="do not write the page")


def read_logs(options):
    print("\n".join(made.markdown() for made in steplog.tables(steplog.read(options.logs), options.samples)), end="")
    return 0


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def overrides(words):
    """FIELD=VALUE[,VALUE] as fields of cells and of their protocol."""
    fields = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise Failure(f"--set takes FIELD=VALUE, not {word!r}")
        parts = text.split(",")
        values = [_value(part) for part in parts]
        if name.startswith("protocol."):
            if len(values) > 1:
                raise Failure(f"--set {name} takes one value")
            fields.setdefault("protocol", {})[name.removeprefix("protocol.")] = values[0]
        elif name in ("options", "replay"):
            fields[name] = [] if not text else parts if name == "options" else values
        else:
            fields[name] = values if len(values) > 1 else values[0]
    return fields


def launcher_of(options):
    script = os.path.join(ROOT, "scripts", "testbed.sh")
    if options.hosts:
        return HostFile(options.hosts, limit=options.limit)
    if options.testbed:
        return TestBed(script, limit=options.limit)
    if options.slurm:
        return Slurm(options.slurm_option, options.srun, poll=options.poll, limit=options.limit)
    return ByCell(script, limit=options.limit)


def predictor_of(options):
    return Predictor(os.path.join(options.build, "bench", "predict"), os.path.join(ROOT, "bench", "clusters"))


def default_out(name):
    return os.path.join(ROOT, "build", "experiments", name)


def run(options):
    setting = read_setting(settings.path_of(options.setting), overrides(options.set))
    out = options.out or default_out(setting.name)
    predictor = predictor_of(options)
    driver = Driver(ROOT, options.build, out, launcher_of(options), predictor)
    failed = driver.run(setting)
    if failed:
        note(f"{failed} of {len(setting.tasks)} cells failed; run the same command again to try them again")
    if not options.no_page:
        print(write_page(out, Store(out), setting.title, setting.about, predictor.missing))
    return 1 if failed else 0


def page(options):
    setting = read_setting(settings.path_of(options.setting))
    out = options.out or default_out(setting.name)
    print(write_page(out, Store(out), setting.title, setting.about, predictor_of(options).missing))
    return 0


def table(options):
    store = Store(options.out or default_out("quick"))
    as_csv = options.format == "csv" or (options.format is None and options.name.endswith("-csv"))
    print("\n".join(made.csv() if as_csv else made.markdown() for made in TABLES[options.name](store)), end="")
    return 0


def comm_tables(options):
    found = comm.read(options.files)
    text = "\n".join(made.markdown() for made in comm.tables(found))
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    if options.plot:
        folder, name = os.path.split(options.plot)
        bandwidth(found, folder or ".", name.removesuffix(".svg").removesuffix(".png"))
    return 0


def listed(options):
    for name in settings.names():
        setting = read_setting(settings.path_of(name))
        print(f"{name:32} {len(setting.tasks):3} cells  {setting.title}")
    return 0


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _add_rounds(commands):
    for name, act in (("scaling", rounds.scaling), ("weighted", rounds.weighted), ("overlap", rounds.overlap)):
        one = commands.add_parser(
            name,
            description=act.__doc__,
            help=act.__doc__.split("\n")[0].rstrip("."),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        program = os.path.join(ROOT, "build", "release", "examples", "mnist_resnet")
        one.add_argument("--program", type=built, default=program, help="trainer to run (default: mnist_resnet of build/release)")
        one.add_argument("--rounds", type=_positive, default=5 if name == "scaling" else 3, help="number of rounds (default: %(default)s)")
        if name == "weighted":
            one.add_argument("--steps", type=_positive, default=40, help="steps of each run; if more than 40, the first 20 are not counted (default: 40)")
            one.add_argument("--batch", type=_positive, default=256, help="average rows per rank and step (default: 256)")
            one.add_argument("--transport", default="shm", help="mpi or shm (default: shm)")
        if name == "overlap":
            one.add_argument("--launch", default="mpirun --bind-to none -np 2", help="command that starts the ranks (default: mpirun --bind-to none -np 2)")
            one.add_argument("--ranks", type=_positive, default=2, help="number of ranks that --launch starts (default: 2)")
            one.add_argument("--threads", default="1", help="threads per rank (default: 1)")
        else:
            one.add_argument("--comm", default="ring" if name == "scaling" else "direct", help="exchange (default: %(default)s)")
        one.add_argument("options", nargs="*", help="options for the trainer, after --")
        one.set_defaults(act=act)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="experiment", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    quick = commands.add_parser("quick", help="run the quick experiment")
    quick.set_defaults(act=run, setting="quick")
    _add_run(quick)
    one = commands.add_parser("run", help="run an experiment")
    one.add_argument("setting", help="name from `list`, or path of a setting file")
    one.set_defaults(act=run)
    _add_run(one)
    commands.add_parser("list", help="list the experiments").set_defaults(act=listed)
    tables = commands.add_parser("table", help="print a table", epilog="NAME is one of " + ", ".join(TABLES))
    tables.add_argument("name", choices=list(TABLES), metavar="NAME")
    tables.add_argument("--out", help="results folder (default: build/experiments/quick)")
    tables.add_argument("--format", choices=("markdown", "csv"), help="output format (default: csv if NAME ends in -csv, otherwise markdown)")
    tables.set_defaults(act=table)
    pages = commands.add_parser("page", help="rewrite the page from existing results")
    pages.add_argument("setting", nargs="?", default="quick", help="name from `list`, or path of a setting file (default: quick)")
    pages.set_defaults(act=page)
    _add_places(pages)
    _add_rounds(commands)
    benches = commands.add_parser("comm", help="show comm_bench's JSON as tables and a plot")
    benches.add_argument("files", nargs="+", metavar="FILE")
    benches.add_argument("--markdown", help="write the tables to this file instead of the terminal")
    benches.add_argument("--plot", help="write a plot under this name, as .svg and .png")
    benches.set_defaults(act=comm_tables)
    logs = commands.add_parser("read", help="show logs in the published form as tables")
    logs.add_argument("logs", nargs="+", metavar="LOG")
    logs.add_argument("--samples", type=int, help="samples per step over all ranks; fits the start-up time contained in the rates")
    logs.set_defaults(act=read_logs)
    return parser.parse_args(arguments)


def _interrupt(number, frame):
    raise KeyboardInterrupt


def main(arguments=None):
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["slowed"]:  # what `weighted` starts ranks with
        return rounds.run_slowed(arguments[1:])
    try:
        options = parse(arguments)
        return options.act(options)
    except Failure as failure:
        print(f"experiment: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("experiment: interrupted; what is finished is kept, and the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
