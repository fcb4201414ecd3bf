#!/usr/bin/env python3
"""gpu_report.py FOLDER DEVICE CUDA: writes the results of scripts/gpu.sh in a folder to bench/results/<device>-<date>.md and
.json, and cuDNN's properties of the device to .properties.json beside them."""
import contextlib
import datetime
import json
import pathlib
import re
import sys


def lines(path):
    """The objects of a file."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # what was cut off
            found.append(json.loads(line))
    return found


def latest(rows, *names):
    """Of rows with the same names, the last one."""
    return list({tuple(row[name] for name in names): row for row in rows}.values())


class Steps:
    """The training steps of both sides."""

    PRECISIONS = ("bf16", "f16")  # of which goals speak

    def __init__(self, bench, peers):
        self.own = [row for row in bench if row["name"].startswith("step/")]
        self.peers = [row for row in peers if "samples_per_sec" in row]

    @staticmethod
    def of(row):
        """(model, precision)"""
        _, model, size, precision, _ = row["name"].split("/", 4)
        return f"{model}/{size}", precision

    def peer(self, model, precision, settings=("eager", "graph", "compile")):
        """PyTorch's fastest of these settings, or None."""
        found = [p for p in self.peers if (p["model"], p["precision"]) == (model, precision) and p["setting"] in settings]
        return max(found, key=lambda p: p["samples_per_sec"], default=None)

    def over(self, model, *settings):
        """The throughput of convoy's fastest step over that of PyTorch's fastest of some settings, as a Measured: all of them are needed.
        With some of them missing, the ratio can only be too large."""
        found, missing = {}, 0
        for precision in self.PRECISIONS:
            needed = [s for s in settings if (s, precision) != ("graph", "f16")]  # PyTorch has none
            rates = [row["samples_per_sec"] for row in self.own if self.of(row) == (model, precision)]
            peer = self.peer(model, precision, needed)
            if rates and peer:
                found[f"{precision} over {peer['setting']}"] = max(rates) / peer["samples_per_sec"]
            missing += not rates or not all(self.peer(model, precision, (s,)) for s in needed)
        return Measured(found, len(self.PRECISIONS), missing)


class Measured:
    """The values of a goal's cases, and how many cases there are and are not complete."""

    def __init__(self, values, cases, missing):
        self.values, self.cases, self.missing = values, cases, missing

    def row(self, least, most):
        """The worst three values, and whether the goal was reached: a single value can miss it, but all are needed to reach it."""
        worst = sorted(self.values.items(), key=lambda found: found[1], reverse=least is None)[:3]
        missed = any(value > most if least is None else value < least for _, value in worst)
        said = "; ".join(f"{case} {value:.4g}" for case, value in worst) or "not measured"
        if self.missing and self.values:
            said += f" ({self.cases - self.missing} of {self.cases} measured)"
        return said, "no" if missed else "not decided" if self.missing or not self.cases else "yes"


def goals(bench, steps, cases):
    """A row for each goal: its name, the limit, the measured values, and whether it was reached. `cases` are all that gpu_bench has."""
    def those(begin, field, end=""):
        rows = {row["name"]: row[field] for row in bench if field in row}
        names = [name for name in cases if name.startswith(begin) and name.endswith(end)]
        if field == "of_kernels":
            names = [name for name in names if not name.endswith("/resident")]  # of several steps at once there is none
        found = {name: rows[name] for name in names if name in rows}
        return Measured(found, len(names), len(names) - len(found))

    best = ("eager", "graph", "compile")
    for what, least, most, measured in [
        ("ResNet-50 224x224: times PyTorch's best", 1.5, None, steps.over("resnet50/224x224", *best)),
        ("ResNet-18 224x224: times PyTorch's best", 1.5, None, steps.over("resnet18/224x224", *best)),
        ("ResNet-101 224x224: times PyTorch's best", 1.5, None, steps.over("resnet101/224x224", *best)),
        ("MNIST, ResNet-18, batch 128: times PyTorch eager", 5, None, steps.over("resnet18/28x28", "eager")),
        ("MNIST, ResNet-18, batch 128: times PyTorch compiled", 2, None, steps.over("resnet18/28x28", "compile")),
        ("An epoch of MNIST: seconds", None, 2, those("epoch/mnist_resnet18", "seconds")),
        ("Accuracy after three epochs of MNIST", 0.985, None, those("epoch/mnist_resnet18", "accuracy")),
        ("BERT-base, length 128: times PyTorch's best", 1.3, None, steps.over("bert/128", *best)),
        ("GPT-2 124M, length 1024: times PyTorch's best", 1.3, None, steps.over("gpt2/1024", *best)),
        ("SST-5 Transformer: times PyTorch's best", 1.3, None, steps.over("sst5/64", *best)),
        ("Adam: of a copy's bandwidth", 0.9, None, those("optimizer/adam/", "of_copy")),
        ("All-reduce of two ranks over peer memory: of a copy's bandwidth", 0.8, None, those("all_reduce/cuda-peer/", "of_copy", "/25557032")),
        ("Host time of a captured step, batch on the GPU: us", None, 20, those("step/", "host_us", "/resident/steps_at_once:1")),
        ("Time of a step's work on the GPU: of the Trainer's step", 0.99, None, those("step/", "of_kernels")),
    ]:
        yield (what, f"at most {most}" if least is None else f"at least {least}", *measured.row(least, most))


def table(head, rows):
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def step_rows(steps):
    for row in steps.own:
        model, precision = steps.of(row)
        peer = steps.peer(model, precision)
        beside = ("", "")
        if peer:
            beside = (f"{peer['samples_per_sec']:.0f} ({peer['setting']})", f"{row['samples_per_sec'] / peer['samples_per_sec']:.2f}")
        yield (row["name"], row["samples_per_sec"], row["step_ms"], row["TFLOP_per_sec"], row.get("host_us", ""),
               row.get("of_kernels", ""), *beside)


def parts(folder, but_done=False):
    """The end of the output of each command of a part; with `but_done`, of those that did not end well."""
    outputs = sorted((path for path in folder.glob("*") if path.suffix != ".done"), key=lambda path: path.stat().st_mtime)
    if but_done:
        outputs = [path for path in outputs if not path.with_name(path.name + ".done").exists()]
    kept = []
    for path in outputs:
        output = path.read_text(errors="replace").splitlines()
        of_note = r"^== |test cases|assertions|ERROR|FAIL|cut off|is not here"
        kept += [*[line for line in output[:-3] if re.search(of_note, line)][-12:], *output[-3:]]
    return kept


def tests(folder):
    """How many test cases passed, and the end of the output of the others."""
    names = folder / "tests.names"
    if not names.exists():
        return ["did not run"]
    passed = len(list(folder.glob("tests/*.done")))
    return [f"{passed} of {len(names.read_text().splitlines())} test cases passed", *parts(folder / "tests", but_done=True)]


def main():
    folder, device, cuda = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    date = datetime.date.today().isoformat()
    bench = latest(lines(folder / "bench.jsonl"), "name")
    peers = latest(lines(folder / "peers.jsonl"), "model", "precision", "setting")
    cases = folder.joinpath("cases").read_text().splitlines() if folder.joinpath("cases").exists() else []
    steps = Steps(bench, peers)
    page = [f"# {device}, {date}", "", f"CUDA {cuda}. By `scripts/gpu.sh`.", ""]
    cut_off = [path.suffix[1:] for path in sorted(folder.glob("partial.*"))]
    if cut_off:
        page += [f"Cut off, so that cases are missing: {', '.join(cut_off)}.", ""]
    page += ["## Goals", "", "By case, of more than three the worst; beside PyTorch the fastest steps in bf16 and in f16 count.", ""]
    page += table(["goal", "wanted", "measured", "reached"], goals(bench, steps, cases))
    page += ["## Training steps", "",
             "AdamW; batches come from host memory, or are made on the GPU where a case says resident. PyTorch's batch stays on the GPU, "
             "and its fastest measured setting counts. Host time and the work's share of a step are explained in `bench/gpu_bench.cu`.", ""]
    page += table(["case", "samples/s", "step ms", "TFLOP/s", "host us", "GPU's work of a step", "PyTorch samples/s (setting)", "ratio"],
                  step_rows(steps))
    refused = [p for p in peers if "error" in p]
    if refused:
        page += ["PyTorch did not do:", "", *(f"- {p['model']} {p['precision']} {p['setting']}: {p['error']}" for p in refused), ""]
    page += ["## Copies, optimizers, codecs and exchanges", "",
             "Of an all-reduce, GB/s are those in memory; algbw and busbw are those of nccl-tests.", ""]
    page += table(["case", "GB/s (least, most)", "of a copy", "algbw, busbw"],
                  [(row["name"], f"{row['GB_per_sec']} ({row['least']}, {row['most']})", row["of_copy"],
                    f"{row['algbw']}, {row['busbw']}" if "busbw" in row else "")
                   for row in bench if "GB_per_sec" in row])
    page += ["## Attention and Muon", ""]
    page += table(["case", "ms", "TFLOP/s"], [(row["name"], row["ms"], row["TFLOP_per_sec"]) for row in bench if "ms" in row])
    page += ["## Tests", "", "```", *tests(folder), "```", ""]
    page += ["## compute-sanitizer", "", "```", *(parts(folder / "sanitizer") or ["did not run"]), "```"]
    name = re.sub(r"[^a-z0-9]+", "-", device.split(",")[0].lower()).strip("-")
    target = pathlib.Path("bench/results") / f"{name}-{date}"
    target.with_suffix(".md").write_text("\n".join(page) + "\n")
    target.with_suffix(".json").write_text(json.dumps({"device": device, "cuda": cuda, "date": date, "bench": bench, "peers": peers}, indent=1) + "\n")
    properties = lines(folder / "properties.json")
    if properties:
        target.with_suffix(".properties.json").write_text(json.dumps(properties[0], indent=1) + "\n")
    print(f"wrote {target}.md and {target}.json")


if __name__ == "__main__":
    main()
