#!/usr/bin/env python3
"""What the exchange costs: two ranks of one thread each against two unconnected runs side by side.

    bench/scaling.py [--program build/release/examples/mnist_resnet] [--rounds 5] [-- TRAINER OPTIONS]

Each round runs, one after the other on the same cores: two processes that know nothing of each other (--comm none), two ranks over
MPI, and two ranks as threads of one process. The ratio of a round is the throughput of the two ranks over the sum of the two
unconnected runs; printed are the median ratio and its range.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile


def throughput(commands):
    """Runs the commands at the same time; the sum of their median-step throughputs in samples a second."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i, command in enumerate(commands):
            path = os.path.join(folder, f"{i}.json")
            running.append((path, subprocess.Popen(command + ["--quiet", "--json", path])))
        total = 0.0
        for path, process in running:
            if process.wait() != 0:
                raise SystemExit(f"scaling.py: {' '.join(process.args)} ended with {process.returncode}")
            with open(path) as file:
                result = json.load(file)
            total += result["world"] * result["batch_per_rank"] / (result["step_ms"]["median"] * 1e-3)
        return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/examples/mnist_resnet")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--comm", default="ring")
    parser.add_argument("options", nargs="*", default=[])
    arguments = parser.parse_args()
    options = arguments.options or ["--data", "synthetic", "--batch", "128", "--steps", "60"]
    one = [arguments.program, "--threads", "1", *options]
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    alone = one + ["--comm", "none", "--transport", "threads"]
    variants = {
        "mpi": ["mpirun", "--bind-to", "none", "-np", "2", *one, "--comm", arguments.comm, "--transport", "mpi"],
        "threads": one + ["--comm", arguments.comm, "--transport", "threads", "--ranks", "2"],
    }
    ratios = {name: [] for name in variants}
    for round_number in range(arguments.rounds):
        apart = throughput([alone, alone])
        line = f"round {round_number}: unconnected {apart:.1f} samples/s"
        for name, command in variants.items():
            together = throughput([command])
            ratios[name].append(together / apart)
            line += f", {name} {together:.1f} ({together / apart:.3f})"
        print(line, flush=True)
    for name, values in ratios.items():
        print(f"{arguments.comm} over {name}: median ratio {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    main()
