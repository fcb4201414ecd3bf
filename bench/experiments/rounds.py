"""Measurements in paired rounds: the variants run one after the other on the same cores, so that a change of the machine's speed
affects all. Prints the ratios of each round, then their medians and ranges."""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

from .failure import Failure
from .launch import environment


def results(commands, errors=None):
    """Runs commands at the same time, each a function of the path of its JSON, and returns their results."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i, command in enumerate(commands):
            path = os.path.join(folder, f"{i}.json")
            running.append((path, subprocess.Popen(command(path), env=environment(), stderr=errors)))
        ended = [(path, process, process.wait()) for path, process in running]
        written = []
        for path, process, code in ended:
            if code:
                raise Failure(f"{' '.join(process.args)} ended with exit code {code}")
            with open(path) as file:
                written.append(json.load(file))
        return written


def with_json(command):
    return lambda path: [*command, "--quiet", "--json", path]


def throughput(result):
    """Samples per second by the median step."""
    return result["world"] * result["batch_per_rank"] / (result["step_ms"]["median"] * 1e-3)


def spread(values, digits=3):
    return f"median {statistics.median(values):.{digits}f}, {min(values):.{digits}f} to {max(values):.{digits}f}"


def scaling(options):
    """Measure the cost of the exchange: two single-threaded ranks against two independent runs side by side.

    Each round runs two independent processes (--comm none), two ranks over MPI, and two ranks as threads of one process. The ratio
    of a round is the throughput of the two ranks over the sum of the two independent runs.
    """
    words = options.options or ["--data", "synthetic", "--batch", "128", "--steps", "60"]
    one = [options.program, "--threads", "1", *words]
    alone = with_json([*one, "--comm", "none", "--transport", "threads"])
    variants = {
        "mpi": with_json(["mpirun", "--bind-to", "none", "-np", "2", *one, "--comm", options.comm, "--transport", "mpi"]),
        "threads": with_json([*one, "--comm", options.comm, "--transport", "threads", "--ranks", "2"]),
    }
    ratios = {name: [] for name in variants}
    for number in range(options.rounds):
        apart = sum(map(throughput, results([alone, alone])))
        line = f"round {number}: unconnected {apart:.1f} samples/s"
        for name, command in variants.items():
            together = throughput(results([command])[0])
            ratios[name].append(together / apart)
            line += f", {name} {together:.1f} ({together / apart:.3f})"
        print(line, flush=True)
    for name, values in ratios.items():
        print(f"{options.comm} over {name}: {spread(values)}")
    return 0


def pinned(core, command, slowed):
    """The command, pinned to one core; `slowed`: with processes that compete for it.

    It runs in its own session. Linux divides cores among sessions first, so that a rank in the session of the spinners would also
    get less of its own core as soon as anything else runs there.
    """
    entry = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "experiment")
    return ["setsid", "--wait", "taskset", "-c", str(core), *([sys.executable, entry, "slowed"] if slowed else []), *command]


def run_slowed(command):
    """Runs the command with two spinners in its own session, because Linux divides a core among sessions first."""
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with its parent in any case
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def weighted(options):
    """Measure the gain of unequal shares when one of two ranks is slowed to a third.

    Two single-threaded ranks are pinned to separate cores; two more processes keep the second rank's core busy. Each round runs two
    ranks with equal shares, two with shares by measured speed (--weighted), and two independent processes (--comm none), each with
    the rows of a batch that it had as a rank with shares. The throughputs of the independent processes add up to the ideal: neither
    process waits, and nothing is exchanged. Needs Linux and mpirun.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failure("weighted needs two cores, but this process may use only one")
    fast, slow = cores[:2]
    words = options.options or ["--data", "synthetic"]
    trainer = [options.program, "--threads", "1", "--quiet", *words, "--steps", str(options.steps)]

    def alone(core, rows):
        command = [*trainer, "--batch", str(rows), "--comm", "none", "--transport", "threads"]
        return lambda path: pinned(core, [*command, "--json", path], core == slow)

    def together(*more):
        command = [*trainer, "--batch", str(options.batch), "--comm", options.comm, "--transport", options.transport, *more]

        def ranks(path):
            line = ["mpirun", "--bind-to", "none"]
            for core in (fast, slow):
                line += [] if core == fast else [":"]
                line += ["-np", "1", *pinned(core, [*command, "--json", path], core == slow)]
            return line

        return ranks

    ratios = {"equal": [], "weighted": []}
    for number in range(options.rounds):
        reached, shares = {}, []
        for name, more in (("equal", []), ("weighted", ["--weighted"])):
            result = results([together(*more)])[0]
            reached[name] = throughput(result)
            shares = result["shares"]
        rows = [round(share * 2 * options.batch) for share in shares]
        apart = [throughput(r) for r in results([alone(fast, rows[0]), alone(slow, rows[1])])]
        ideal = sum(apart)
        line = f"round {number}: ideal {apart[0]:.1f} + {apart[1]:.1f} = {ideal:.1f} samples/s"
        for name, value in reached.items():
            ratios[name].append(value / ideal)
            line += f", {name} {value:.1f} ({value / ideal:.3f})"
        print(line + ", shares " + " ".join(f"{share:.3f}" for share in shares), flush=True)
    for name, values in ratios.items():
        print(f"{name}, share of the ideal: {spread(values)}")
    return 0


def overlap(options):
    """Measure how much of the exchange computation hides: steps with an exchange, steps without one, and an exchange alone.

    Each round runs as many independent processes (--comm none) as there are ranks, and then the ranks, which also time their exchange
    alone (--overlap). Two figures are printed; each is 100% if all of min(backward, exchange) is hidden:

      by exposure   (exchange - exposed) / min(backward, exchange): train::hidden(), from the ranks' own clocks, including waits;
      by the step   (step alone + exchange - step) / min(backward alone, exchange): time that computation loses to the exchange on the
                    same processors also counts as not hidden. On a test bed, the processors also do the kernel's network work.
    """
    words = ["--data", "synthetic", "--samples", "4000", "--threads", options.threads, *options.options]
    program = os.path.abspath(options.program)
    alone = with_json([program, *words, "--comm", "none", "--transport", "threads"])
    together = with_json([*shlex.split(options.launch), program, *words, "--overlap"])
    print(
        "medians of a round, ms: step alone, its backward, exchange alone, step together, exposed; hidden by exposure, by the step"
    )
    exposure, step = [], []
    for number in range(options.rounds):
        apart = results([alone] * options.ranks, errors=subprocess.DEVNULL)
        step_alone = statistics.mean(r["step_ms"]["median"] for r in apart)
        backward_alone = statistics.mean(r["backward_ms"] for r in apart)
        (ranks,) = results([together], errors=subprocess.DEVNULL)
        exchange = ranks["exchange_alone_ms"]
        lost = ranks["step_ms"]["median"] - step_alone
        exposure.append(100 * ranks["hidden"])
        step.append(100 * (exchange - lost) / min(backward_alone, exchange))
        print(
            f"round {number}: {step_alone:.1f}, {backward_alone:.1f}, {exchange:.1f}, {ranks['step_ms']['median']:.1f}, "
            f"{ranks['exposed_comm_ms']:.1f}; {exposure[-1]:.1f}%, {step[-1]:.1f}%",
            flush=True,
        )
    for name, values in (("exposure", exposure), ("the step", step)):
        print(f"hidden by {name}, %: {spread(values, 1)}")
    return 0
