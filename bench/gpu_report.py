#!/usr/bin/env python3
"""gpu_report.py FOLDER DEVICE CUDA: writes the results of scripts/gpu.sh in a folder to bench/results/<device>-<date>.md and
.json."""
import datetime
import json
import pathlib
import re
import sys


def lines(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def text(path):
    return path.read_text().strip() if path.exists() else "did not run"


class Steps:
    """The training steps of both sides."""

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

    def ratios(self, model, *settings):
        """The throughput of convoy's fastest step over PyTorch's, for each 16-bit precision."""
        found = {}
        for precision in ("bf16", "f16"):
            rates = [row["samples_per_sec"] for row in self.own if self.of(row) == (model, precision)]
            peer = self.peer(model, precision, *settings)
            if rates and peer:
                found[precision] = max(rates) / peer["samples_per_sec"]
        return found


def goals(bench, steps):
    """A row for each goal: its name, the limit, the measured values (the worst three cases), and whether it was reached."""
    def those(name, field):
        return {row["name"]: row[field] for row in bench if row["name"].startswith(name) and field in row}

    eager, compiled = ("eager",), ("compile",)
    resident = {name: us for name, us in those("step/", "host_us").items() if "/resident" in name}
    for what, least, most, measured in [
        ("ResNet-50 224x224: times PyTorch's best", 1.5, None, steps.ratios("resnet50/224x224")),
        ("ResNet-18 224x224: times PyTorch's best", 1.5, None, steps.ratios("resnet18/224x224")),
        ("ResNet-101 224x224: times PyTorch's best", 1.5, None, steps.ratios("resnet101/224x224")),
        ("MNIST, ResNet-18, batch 128: times PyTorch eager", 5, None, steps.ratios("resnet18/28x28", eager)),
        ("MNIST, ResNet-18, batch 128: times PyTorch compiled", 2, None, steps.ratios("resnet18/28x28", compiled)),
        ("An epoch of MNIST: seconds", None, 2, those("epoch/mnist_resnet18", "seconds")),
        ("BERT-base, length 128: times PyTorch's best", 1.3, None, steps.ratios("bert/128")),
        ("GPT-2 124M, length 1024: times PyTorch's best", 1.3, None, steps.ratios("gpt2/1024")),
        ("SST-5 Transformer: times PyTorch's best", 1.3, None, steps.ratios("sst5/64")),
        ("Adam: of a copy's bandwidth", 0.9, None, those("optimizer/adam/", "of_copy")),
        ("All-reduce of two ranks over peer memory: of a copy's bandwidth", 0.8, None, those("all_reduce/cuda-peer/2 ranks on this GPU/25557032", "of_copy")),
        ("Host time of a captured step, batch on the GPU: us", None, 20, resident),
        ("Time of a step's work on the GPU: of the Trainer's step", 0.99, None, those("step/", "of_kernels")),
    ]:
        worst = sorted(measured.items(), key=lambda found: found[1], reverse=least is None)[:3]
        reached = all(value <= most if least is None else value >= least for _, value in worst)
        yield (what, f"at most {most}" if least is None else f"at least {least}",
               "; ".join(f"{case} {value:.4g}" for case, value in worst) or "not measured",
               "" if not worst else "yes" if reached else "no")


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


def main():
    folder, device, cuda = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    date = datetime.date.today().isoformat()
    bench, peers = lines(folder / "bench.jsonl"), lines(folder / "peers.jsonl")
    steps = Steps(bench, peers)
    page = [f"# {device}, {date}", "", f"CUDA {cuda}. By `scripts/gpu.sh`.", ""]
    page += ["## Goals", "", "By case, of more than three the worst; beside PyTorch the fastest steps in bf16 and in f16 count.", ""]
    page += table(["goal", "wanted", "measured", "reached"], goals(bench, steps))
    page += ["## Training steps", "",
             "AdamW; batches come from host memory, or are made on the GPU where a case says resident. PyTorch's batch stays on the GPU, "
             "and its fastest setting counts. Host time and the work's share of a step are explained in `bench/gpu_bench.cu`.", ""]
    page += table(["case", "samples/s", "step ms", "TFLOP/s", "host us", "GPU's work of a step", "PyTorch samples/s (setting)", "ratio"],
                  step_rows(steps))
    page += ["## Copies, optimizers, codecs and exchanges", ""]
    page += table(["case", "GB/s (least, most)", "of a copy"],
                  [(row["name"], f"{row['GB_per_sec']} ({row['least']}, {row['most']})", row["of_copy"])
                   for row in bench if "GB_per_sec" in row])
    page += ["## Attention and Muon", ""]
    page += table(["case", "ms", "TFLOP/s"], [(row["name"], row["ms"], row["TFLOP_per_sec"]) for row in bench if "ms" in row])
    tests = [line for line in text(folder / "tests.txt").splitlines() if re.search(r"==|test cases|assertions|ERROR|FAIL|did not run", line)]
    page += ["## Tests", "", "```", *tests, "```", ""]
    page += ["## compute-sanitizer", "", "```", text(folder / "sanitizer.txt"), "```"]
    name = re.sub(r"[^a-z0-9]+", "-", device.split(",")[0].lower()).strip("-")
    target = pathlib.Path("bench/results") / f"{name}-{date}"
    target.with_suffix(".md").write_text("\n".join(page) + "\n")
    target.with_suffix(".json").write_text(json.dumps({"device": device, "cuda": cuda, "date": date, "bench": bench, "peers": peers}, indent=1) + "\n")
    print(f"wrote {target}.md and {target}.json")


if __name__ == "__main__":
    main()
