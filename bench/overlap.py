#!/usr/bin/env python3
"""How much of the exchange hides behind the computation: a step with it against a step without and an exchange without a step.

    scripts/testbed.sh up --hosts 2 --rate 1gbit
    bench/overlap.py --launch 'scripts/testbed.sh run -np 2' -- --image-size 224 --batch 16 --steps 20

Each round runs, one after the other on the same cores: as many processes that know nothing of each other (--comm none) as there are
ranks, and the ranks, which measure their exchange alone first (--overlap). Two figures come out, each 100% where all of
min(backward, exchange) is hidden:

  by exposure   (exchange - exposed) / min(backward, exchange): train::hidden(), from what the ranks' own clocks say, waiting included;
  by the step   (step alone + exchange - step) / min(backward alone, exchange): what computing lost to the exchange on the same
                processors counts as not hidden, too. On a test bed these do the kernel's work for the network as well.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile


def run(commands):
    """Runs the commands at the same time; their results."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i, command in enumerate(commands):
            path = os.path.join(folder, f"{i}.json")
            running.append((path, subprocess.Popen(command + ["--quiet", "--json", path], stderr=subprocess.DEVNULL)))
        results = []
        for path, process in running:
            if process.wait() != 0:
                raise SystemExit(f"overlap.py: {' '.join(process.args)} ended with {process.returncode}")
            with open(path) as file:
                results.append(json.load(file))
        return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/examples/mnist_resnet")
    parser.add_argument("--launch", default="mpirun --bind-to none -np 2", help="what starts the ranks")
    parser.add_argument("--ranks", type=int, default=2, help="how many it starts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1", help="of a rank")
    parser.add_argument("options", nargs="*", help="of the trainer")
    arguments = parser.parse_args()
    options = ["--data", "synthetic", "--samples", "4000", "--threads", arguments.threads, *arguments.options]
    program = os.path.abspath(arguments.program)
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    alone = [program, *options, "--comm", "none", "--transport", "threads"]
    together = [*shlex.split(arguments.launch), program, *options, "--overlap"]
    print("medians of a round, ms: step alone, its backward, exchange alone, step together, exposed; hidden by exposure, by the step")
    exposure, step = [], []
    for number in range(arguments.rounds):
        apart = run([alone] * arguments.ranks)
        step_alone = statistics.mean(r["step_ms"]["median"] for r in apart)
        backward_alone = statistics.mean(r["backward_ms"] for r in apart)
        (ranks,) = run([together])
        exchange = ranks["exchange_alone_ms"]
        lost = ranks["step_ms"]["median"] - step_alone
        exposure.append(100 * ranks["hidden"])
        step.append(100 * (exchange - lost) / min(backward_alone, exchange))
        print(f"round {number}: {step_alone:.1f}, {backward_alone:.1f}, {exchange:.1f}, {ranks['step_ms']['median']:.1f}, "
              f"{ranks['exposed_comm_ms']:.1f}; {exposure[-1]:.1f}%, {step[-1]:.1f}%", flush=True)
    for name, values in (("exposure", exposure), ("the step", step)):
        print(f"hidden by {name}: median {statistics.median(values):.1f}%, {min(values):.1f} to {max(values):.1f}%")


if __name__ == "__main__":
    main()
