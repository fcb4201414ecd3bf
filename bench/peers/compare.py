#!/usr/bin/env python3
"""Runs a convoy program and the same training step in PyTorch alternately, on the same cores, and prints the ratio.

    compare.py [options] -- CONVOY COMMAND

    bench/peers/compare.py --python /usr/bin/python3 --python venv/bin/python -- \\
        build/release/examples/mnist_resnet --model resnet18 --data synthetic --batch 128 --steps 60 --comm none --threads 2 --quiet
    bench/peers/compare.py --python venv/bin/python -- \\
        build/release/examples/bert_pretrain --data text.txt --vocabulary vocab.txt --batch 8 --steps 20 --comm none --transport threads \\
        --threads 2 --clip 0 --precision bf16 --quiet
    bench/peers/compare.py --python /usr/bin/python3 --python venv/bin/python -- \\
        mpirun --bind-to none -np 2 build/release/examples/mnist_resnet --model resnet18 --data synthetic --batch 128 --steps 60 \\
        --comm ring --threads 1 --quiet

The peer's model, sizes, precision, batch, threads and ranks are read from the command (--model, or the name of the program that
trains a Transformer; --image-size, --layers etc., --precision, --batch, --threads, and mpirun's -np or --ranks; mnist_resnet's
images have one channel and ten classes); options of the same names override them. If the peer then has another batch, or
another number of ranks or parameters, compare.py says so and ends. First, each --python tries its settings once
(torch_step.py --best), and the fastest one becomes the peer, unless --setting names one. Then convoy and the peer run
alternately, --pairs times.

convoy's program must write --json FILE: an object with samples_per_sec and step_ms {median}, or Google Benchmark's with
items_per_second. `{json}` in the command is replaced by the file's name; without it, --json FILE is appended.

Threads that wait for each other slow down tenfold when another process takes a core. compare.py therefore waits before each run, for
at most --wait seconds, until the processors are idle; a pair that started on a busy machine is marked with *.

Prints two ratios: of the median steps, which other load disturbs least, and of the throughputs over the whole run.
"""
import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from torch_step import SIZES, quarter_step

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
SETTING = ["layout", "mode", "adam", "memory"]
SHAPE = ["model", "image", "precision", "batch", "threads", "ranks"]
PROGRAMS = {"bert_pretrain": "bert", "gpt2": "gpt2", "sst5_transformer": "sst5"}  # each trains one model
IMAGES = {"mnist_resnet": {"channels": 1, "classes": 10}}  # of any size; torch_step.py's large images have more of both


def option_of(command, *names):
    """The value of the first of `names` in a command, written `--name value` or `--name=value`."""
    for i, word in enumerate(command):
        for name in names:
            if word == name and i + 1 < len(command):
                return command[i + 1]
            if word.startswith(name + "="):
                return word[len(name) + 1 :]
    return None


def entries(vocabulary):
    """The size of a vocabulary, given as a number or as a file with one entry per line."""
    if str(vocabulary).isdigit():
        return int(vocabulary)
    with open(vocabulary, encoding="utf-8") as file:
        return sum(1 for _ in file)


def setting_of(text):
    """The names and values of --setting."""
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    for name, value in pairs:
        if name not in SETTING or not value:
            raise argparse.ArgumentTypeError(f"'{name}{'=' if value else ''}{value}' is not NAME=VALUE with a name of {', '.join(SETTING)}")
    return dict(pairs)


def cores_of(text):
    """The numbers of --cores."""
    cores = text.split(",")
    there = os.sched_getaffinity(0)
    if not all(core.isdecimal() and int(core) in there for core in cores):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of processors out of {','.join(map(str, sorted(there)))}")
    return {int(core) for core in cores}


def busy_share(seconds=1.0):
    """The share of all processors' time that was not idle."""

    def read():
        with open("/proc/stat") as file:
            numbers = [int(word) for word in file.readline().split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    (total, idle), _ = read(), time.sleep(seconds)
    total_after, idle_after = read()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def wait_until_idle(limit):
    """True if the machine became idle within `limit` seconds."""
    end = time.monotonic() + limit
    while busy_share() > 0.15:
        if time.monotonic() > end:
            return False
    return True


def run(command, limit, what):
    """The standard output of a command, which must succeed within `limit` seconds."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        sys.exit(f"compare.py: {what} cannot be started: {error}")
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        sys.exit(f"compare.py: {what} did not end within {limit:.0f} s: {shlex.join(command)}")
    if process.returncode != 0:
        sys.exit(f"compare.py: {what} failed with {process.returncode}: {shlex.join(command)}\n{(output + errors)[-2000:]}")
    return output


def run_convoy(command, samples, limit):
    """(samples/s from the median step, samples/s over the run, the program's JSON)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "convoy.json")
        full = [word.replace("{json}", path) for word in command]
        if full == command:
            full = command + ["--json", path]
        run(full, limit, "convoy")
        try:
            with open(path) as file:
                result = json.load(file)
        except (OSError, ValueError) as error:
            sys.exit(f"compare.py: convoy wrote no JSON ({error}): {shlex.join(full)}")
    if "benchmarks" in result:
        rates = [b["items_per_second"] for b in result["benchmarks"] if b.get("aggregate_name") in (None, "median")]
        return statistics.median(rates), statistics.median(rates), result
    over_run = result["samples_per_sec"]
    median = result.get("step_ms", {}).get("median")
    return (samples / median * 1e3 if median else over_run), over_run, result


def run_peer(python, shape, setting, steps, limit, extra=()):
    words = [python, PEER] + [f"--{k}={v}" for k, v in {**shape, **setting}.items()] + [f"--steps={steps}", f"--limit={limit}"]
    lines = run(words + list(extra), limit * (20 if "--best" in extra else 1) + 60, "the peer").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def expect_same_step(ours, theirs):
    """Exits if the peer's step is not convoy's: options that the command leaves out have their own defaults in each program."""
    own = {"batch": ours.get("batch_per_rank"), "ranks": ours.get("world"), "parameters": ours.get("parameters")}
    own["accumulate"] = int(ours.get("options", {}).get("accumulate", 1))
    differ = [f"{name} {value} and {of_peer}" for name, value in own.items()
              if value is not None and value != (of_peer := theirs.get(name, 1))]
    if differ:
        sys.exit(f"compare.py: convoy and the peer make different steps, with {', '.join(differ)}: "
                 "name the sizes, such as --batch, --width or --vocabulary")


def describe(result):
    return "PyTorch {torch}, {layout}, {mode}, Adam {adam}, memory {memory}".format(**result)


def choose(options, shape):
    """The fastest (python, setting) of all interpreters."""
    best = None
    for python in options.python:
        wait_until_idle(options.wait)
        print(f"settings of {python}:")
        for result in run_peer(python, shape, {}, options.probe_steps, options.limit, ["--best", f"--memories={options.memories}"]):
            if result.get("best"):
                step = quarter_step(result)
                if best is None or step < best[2]:
                    best = (python, {k: result[k] for k in SETTING}, step)
            else:
                print(f"  {result['samples_per_sec']:9.1f} samples/s  {describe(result)}", flush=True)
    return best[0], best[1]


def machine():
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    cores = sorted(os.sched_getaffinity(0))
    return f"{model}, {len(cores)} of {os.cpu_count()} processors ({','.join(map(str, cores))}), {platform.system()} {platform.release()}"


def revision():
    folder = os.path.dirname(PEER)
    answer = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


def main():
    if "--" in sys.argv:
        split = sys.argv.index("--")
        own, command = sys.argv[1:split], sys.argv[split + 1 :]
    else:
        own, command = sys.argv[1:], []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter with PyTorch; repeatable (default: python3)")
    parser.add_argument("--pairs", type=int, default=5, help="number of pairs of runs (default: 5)")
    parser.add_argument("--cores", type=cores_of, help="processors for both, e.g. 0,1 (default: those that this process may use)")
    parser.add_argument("--setting", type=setting_of, help="the peer's setting, e.g. layout=plain,mode=eager,adam=fused,memory=kept (default: search)")
    parser.add_argument("--memories", default="default,kept", help="memory settings that the search tries (default: default,kept)")
    parser.add_argument("--peer-steps", type=int, default=30, help="the peer's timed steps in each pair (default: 30)")
    parser.add_argument("--probe-steps", type=int, default=12, help="timed steps of each setting in the search (default: 12)")
    parser.add_argument("--limit", type=float, default=300, help="time limit of one run in seconds (default: 300)")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for an idle machine before each run (default: 60)")
    parser.add_argument("--json", help="also write the result to this file")
    for name in SHAPE + list(SIZES["bert"]) + list(IMAGES["mnist_resnet"]):
        kind = str if name in ("model", "precision") else float if name == "dropout" else int
        parser.add_argument(f"--{name}", type=kind, help=f"the peer's {name} (default: from the command)")
    options = parser.parse_args(own)
    if not command:
        parser.error("expected a convoy command after --")
    options.python = options.python or ["python3"]
    if options.cores:
        os.sched_setaffinity(0, options.cores)

    ranks = int(option_of(command, "-np", "-n", "--ranks") or 1)
    threads = int(option_of(command, "--threads") or max(1, len(os.sched_getaffinity(0)) // ranks))
    words = [os.path.basename(word) for word in command]
    program = next((word for word in words if word in PROGRAMS or word in IMAGES), None)
    found = {
        "model": PROGRAMS.get(program) or option_of(command, "--model") or "resnet18",
        "image": int(option_of(command, "--image-size") or 28),
        "precision": option_of(command, "--precision") or "f32",
        "batch": int(option_of(command, "--batch") or 128),
        "threads": threads,
        "ranks": ranks,
    }
    shape = {name: getattr(options, name) or found[name] for name in SHAPE}
    for name in SIZES.get(shape["model"], {}):
        value = getattr(options, name) if getattr(options, name) is not None else option_of(command, f"--{name}")
        if value is not None:
            shape[name] = entries(value) if name == "vocabulary" else value
    if shape["model"] in SIZES:
        del shape["image"]
    else:
        images = {name: getattr(options, name) or IMAGES.get(program, {}).get(name) for name in ("channels", "classes")}
        shape.update({name: value for name, value in images.items() if value})
    samples = shape["batch"] * shape["ranks"]

    print(f"machine  {machine()}")
    print(f"date     {datetime.datetime.now().isoformat(timespec='minutes')}, load {os.getloadavg()[0]:.2f}")
    print(f"convoy   {revision()}: {shlex.join(command)}")
    print(f"peer     {', '.join(f'{name} {value}' for name, value in shape.items())}", flush=True)
    if options.setting:
        python, setting = options.python[0], options.setting
    else:
        python, setting = choose(options, shape)

    print(f"\n{'pair':>4} {'convoy':>10} {'peer':>10} {'ratio':>7}   {'convoy':>10} {'peer':>10} {'ratio':>7}")
    print(f"{'':>4} {'samples/s, median step':^29}   {'samples/s, whole run':^29}")
    rows = []
    for pair in range(options.pairs):
        idle = wait_until_idle(options.wait)
        ours = run_convoy(command, samples, options.limit)
        idle = wait_until_idle(options.wait) and idle
        theirs = run_peer(python, shape, setting, options.peer_steps, options.limit)[-1]
        expect_same_step(ours[2], theirs)
        rows.append((ours[0], theirs["samples_per_sec"], ours[1], theirs["samples_per_sec_mean"]))
        a, b, c, d = rows[-1]
        print(f"{pair + 1:4} {a:10.1f} {b:10.1f} {a / b:7.3f}   {c:10.1f} {d:10.1f} {c / d:7.3f}{'' if idle else ' *'}", flush=True)

    def summary(ours, theirs):
        ratios = [row[ours] / row[theirs] for row in rows]
        return {
            "convoy": statistics.median(row[ours] for row in rows),
            "peer": statistics.median(row[theirs] for row in rows),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "ratios": ratios,
        }

    step, whole = summary(0, 1), summary(2, 3)
    print(f"\npeer     {python}: {describe(theirs)}")
    for title, s in (("median step", step), ("whole run", whole)):
        print(
            f"{title:<12} convoy {s['convoy']:.1f}, peer {s['peer']:.1f} samples/s; "
            f"ratio {s['ratio']:.3f} (median of {len(rows)} pairs, {s['ratio_min']:.3f} to {s['ratio_max']:.3f})"
        )
    if options.json:
        with open(options.json, "w") as file:
            result = {"machine": machine(), "convoy": revision(), "command": command, "peer": {**shape, **setting}}
            result.update({"python": python, "torch": theirs["torch"], "median_step": step, "whole_run": whole})
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
