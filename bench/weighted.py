#!/usr/bin/env python3
"""What unequal shares gain when one of two ranks is slowed to a third.

    bench/weighted.py [--program build/release/examples/mnist_resnet] [--rounds 3] [-- TRAINER OPTIONS]

Two ranks of one thread, each pinned to a core of its own; on the second one's core two more processes compute all the time, which
leaves that rank a third of it. Each round runs, one after the other: two ranks with equal shares; two ranks with shares by measured
speed (--weighted); two processes that know nothing of each other (--comm none), each with the rows of a batch that it had as a rank
with shares. The throughputs of these two add up to the ideal: nobody waits, nothing is exchanged. Printed are samples a second and
their ratio to the ideal of the same round, then the medians and ranges of the ratios. Needs Linux and mpirun.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def pinned(core, command, slowed):
    """The command on one core; slowed: through this script, which starts the processes that compete with it.

    In a session of its own: Linux shares cores out by session first, and a rank in that of the spinners would get less than theirs
    on its own core, too, as soon as anything else runs there.
    """
    return ["setsid", "--wait", "taskset", "-c", str(core), *([sys.executable, os.path.abspath(__file__), "--slowed"] if slowed else []), *command]


def run_slowed(command):
    """Runs the command beside two spinners: of the same session, since Linux shares a core out by session first."""
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with its parent, however that ends
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def results(commands, folder):
    """Runs the commands at the same time and returns what each wrote as JSON."""
    running = []
    for i, command in enumerate(commands):
        path = os.path.join(folder, f"{i}.json")
        running.append((path, subprocess.Popen(command(path))))
    written = []
    for path, process in running:
        if process.wait() != 0:
            raise SystemExit(f"weighted.py: {' '.join(process.args)} ended with {process.returncode}")
        with open(path) as file:
            written.append(json.load(file))
    return written


def throughput(result):
    """Samples a second by the median step."""
    return result["world"] * result["batch_per_rank"] / (result["step_ms"]["median"] * 1e-3)


def main():
    if sys.argv[1:2] == ["--slowed"]:
        sys.exit(run_slowed(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/examples/mnist_resnet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of each run; of more than 40, the first 20 are not counted")
    parser.add_argument("--batch", type=int, default=256, help="rows of a step and rank, on average")
    parser.add_argument("--comm", default="direct")
    parser.add_argument("--transport", default="shm", help="mpi or shm")
    parser.add_argument("options", nargs="*", default=[])
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("weighted.py: it takes two cores, and here is one")
    fast, slow = cores[:2]
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    trainer = [arguments.program, "--threads", "1", "--quiet"]
    batch = ["--batch", str(arguments.batch)]
    data = arguments.options or ["--data", "synthetic"]
    steps = ["--steps", str(arguments.steps)]

    def alone(core, rows):
        command = [*trainer, *data, *steps, "--batch", str(rows), "--comm", "none", "--transport", "threads"]
        return lambda path: pinned(core, [*command, "--json", path], core == slow)

    def together(*more):
        command = [*trainer, *data, *steps, *batch, "--comm", arguments.comm, "--transport", arguments.transport, *more]

        def ranks(path):
            line = ["mpirun", "--bind-to", "none"]
            for core in (fast, slow):
                line += [] if core == fast else [":"]
                line += ["-np", "1", *pinned(core, [*command, "--json", path], core == slow)]
            return line

        return ranks

    ratios = {"equal": [], "weighted": []}
    with tempfile.TemporaryDirectory() as folder:
        for round_number in range(arguments.rounds):
            reached = {}
            for name, more in (("equal", []), ("weighted", ["--weighted"])):
                result = results([together(*more)], folder)[0]
                reached[name] = throughput(result)
            shares = result["shares"]
            rows = [round(share * 2 * arguments.batch) for share in shares]
            apart = [throughput(r) for r in results([alone(fast, rows[0]), alone(slow, rows[1])], folder)]
            ideal = sum(apart)
            line = f"round {round_number}: ideal {apart[0]:.1f} + {apart[1]:.1f} = {ideal:.1f} samples/s"
            for name, value in reached.items():
                ratios[name].append(value / ideal)
                line += f", {name} {value:.1f} ({value / ideal:.3f})"
            print(line + ", shares " + " ".join(f"{share:.3f}" for share in shares), flush=True)
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.3f} of the ideal, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    main()
