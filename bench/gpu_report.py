#!/usr/bin/env python3
"""gpu_report.py FOLDER DEVICE CUDA: what scripts/gpu.sh left in a folder, as bench/results/<device>-<date>.md and .json."""
import datetime
import json
import pathlib
import re
import sys


def lines(path):
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def text(path):
    return path.read_text().strip() if path.exists() else "did not run"


def main():
    folder, device, cuda = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    date = datetime.date.today().isoformat()
    bench, peers = lines(folder / "bench.jsonl"), lines(folder / "peers.jsonl")
    best = {}
    for peer in peers:
        if "samples_per_sec" in peer:
            key = (peer["model"], peer["precision"])
            if key not in best or peer["samples_per_sec"] > best[key]["samples_per_sec"]:
                best[key] = peer
    page = [f"# {device}, {date}", "", f"CUDA {cuda}. By `scripts/gpu.sh`.", "", "## Tests", ""]
    tests = text(folder / "tests.txt")
    page += ["```"] + [l for l in tests.splitlines() if re.search(r"==|test cases|assertions|ERROR|FAIL", l)] + ["```", ""]
    page += ["## compute-sanitizer", "", "```", text(folder / "sanitizer.txt"), "```", ""]
    page += ["## Copies and optimizers", "", "| case | GB/s (least, most) | of a copy |", "|---|---|---|"]
    for row in bench:
        if "GB_per_sec" in row:
            page.append(f"| {row['name']} | {row['GB_per_sec']} ({row['least']}, {row['most']}) | {row['of_copy']} |")
    page += ["", "## Training steps", "",
             "AdamW; batches come from host memory, or are made on the GPU where a case says resident. PyTorch's batch stays on the GPU, and its fastest setting counts.", "",
             "| case | samples/s | step ms | TFLOP/s | PyTorch samples/s (setting) | ratio |", "|---|---|---|---|---|---|"]
    for row in bench:
        if "samples_per_sec" not in row:
            continue
        _, model, size, precision, _ = row["name"].split("/", 4)
        peer = best.get((f"{model}/{size}", precision))
        rate = f"{peer['samples_per_sec']:.0f} ({peer['setting']})" if peer else ""
        ratio = f"{row['samples_per_sec'] / peer['samples_per_sec']:.2f}" if peer else ""
        page.append(f"| {row['name']} | {row['samples_per_sec']} | {row['step_ms']} | {row['TFLOP_per_sec']} | {rate} | {ratio} |")
    name = re.sub(r"[^a-z0-9]+", "-", device.split(",")[0].lower()).strip("-")
    target = pathlib.Path("bench/results") / f"{name}-{date}"
    target.with_suffix(".md").write_text("\n".join(page) + "\n")
    target.with_suffix(".json").write_text(json.dumps({"device": device, "cuda": cuda, "date": date, "bench": bench, "peers": peers}, indent=1) + "\n")
    print(f"wrote {target}.md and {target}.json")


if __name__ == "__main__":
    main()
