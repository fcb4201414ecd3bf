"""The published figures, without repeats and with their oddities handled; published/README.md describes the sets."""

import csv
import functools
import math
import os
import statistics

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "published")

# Oddities of the published tables, and how the reports treat them.
ODDITIES = (
    ("1", "the log lines of 1b repeat those of set 1 under another learning rate", "counted once; which rate ran is unknown"),
    ("1", "lm6, ResNet-101, 3 and 4 GPUs repeat the block of 2 GPUs", "left out"),
    ("1", "lm1, ResNet-18, 1 GPU, Epoch 1 has lm6's times; its own rates give about 720 s", "times left out"),
    ("1", "test times of lm1 ResNet-50 and lm6 ResNet-101, 1 GPU, Epoch 3, are out of line", "shown, marked"),
    ("1", "Step1400 of lm6 ResNet-50 and ResNet-101 on 1 GPU is missing", "left missing"),
    ("1", "the Transformer's log on one lm6 GPU has Step1600 twice, and no Step1800", "the second is read as Step1800"),
    ("1", "no epoch lines of the Transformer are published", "left missing"),
    (
        "1",
        "rates count from the program's start: Step200 lies 2 to 17% below the last line",
        "the start-up is fitted (table start-up)",
    ),
    ("1", "headings are mostly the largest line, not the last; 241.8 and 81.84 are not their run's last lines", "both are shown"),
    (
        "1",
        "1.648 and 3.73 are not the quotients of their figures (1.644 and 3.737)",
        "quotients are recomputed, beside the printed ones",
    ),
    ("1", "every replica read the whole data set", "--unsharded repeats it; reports say which was"),
    ("1", "the heading `Distributed, 16 nodes` has nothing under it", "predicted, and marked so (table sixteen-nodes)"),
    ("2", "its baselines differ from set 1's on the same machines", "no set's runs are divided by another's baseline"),
    ("2", "the curves are pictures without numbers", "only their colors are taken over"),
    ("2", "words/s: only `sentence length 128` is said", "sentences x 128"),
    ("3", "no model, machine or unit is named where the figures stand", "from their origin: BERT-base on V100, sentences/s"),
    ("4", "average rows differ from the averages of their runs by up to 10%", "recomputed, the printed ones beside them"),
    ("4", "MNIST has 625 steps on 2 GPUs, where 469 are due", "shown, marked"),
    ("4", "bigMNIST's step counts are one more than ceil(72,000,000 / (512 x ranks))", "shown, marked"),
    ("4", "Epoch is 0 for gn03 with 3 GPUs, whose time is that of 10", "read as 10"),
    ("4", "rows of three and four nodes name hosts that do not add up, such as gn[03-07-09]", "names are text; #Nodes counts"),
)

SAMPLES = {"MNIST": 60_000, "bigMNIST": 72_000_000}
WHICH_EPOCH_TIMES_ARE_COPIED = ("digit for digit",)


@functools.cache
def rows(name):
    with open(os.path.join(FOLDER, name + ".csv"), newline="") as file:
        return tuple(csv.DictReader(file))


def model_of(row):
    """The model's name in cells."""
    return {"transformer6": "transformer", "bert_base": "bert"}.get(row["model"], row["model"])


def kept(name):
    """The rows without those that repeat others."""
    return [row for row in rows(name) if not row["duplicate_of"]]


def nodes_of(machines):
    return machines.count("+") + 1


def logs():
    """{(model, machines, GPUs of each): [(line of the document, step, rate)]} of set 1, steps in order."""
    found = {}
    for row in kept("published_steps"):
        step = int(row["step"])
        lines = found.setdefault((model_of(row), row["machines"], row["gpus_per_machine"]), [])
        if lines and step == lines[-1][1]:
            step += 200  # the Transformer's second Step1600
        lines.append((int(row["source_line"]), step, float(row["samples_per_sec_cumulative"])))
    return found


def epochs():
    """Rows of epochs: {"model", "machines", "gpus", "ranks", "epoch", "seconds", "test_seconds", "accuracy", "line", "note"};
    times copied from another run are None."""
    found = []
    for row in kept("published_epochs"):
        copied = any(text in row["note"] for text in WHICH_EPOCH_TIMES_ARE_COPIED)
        found.append(
            {
                "model": model_of(row),
                "machines": row["machines"],
                "gpus": row["gpus_per_machine"],
                "ranks": int(row["ranks"]),
                "epoch": int(row["epoch"]),
                "seconds": None if copied else float(row["epoch_seconds"]),
                "test_seconds": None if copied else float(row["test_seconds"]),
                "accuracy": float(row["test_accuracy_percent"]),
                "line": int(row["source_line"]),
                "note": row["note"],
            }
        )
    return found


def throughputs():
    """Rows of set 1's and 3's summaries: model, machines, nodes, ranks, batch, throughput, unit, speed-up as printed, baseline."""
    found = []
    for row in kept("published_throughput"):
        found.append(
            {
                "set": row["source"].removeprefix("set "),
                "model": model_of(row),
                "machines": row["machines"] or "V100",
                "nodes": int(row["nodes"]),
                "gpus": row["gpus_per_machine"],
                "ranks": int(row["ranks"]),
                "batch": int(row["batch_per_rank"]),
                "throughput": float(row["throughput"]),
                "unit": row["unit"],
                "printed": row["speedup"],
                "baseline": float(row["baseline_throughput"]),
                "note": row["note"],
            }
        )
    return found


def single():
    """{(model, machines): samples a second of one GPU} of set 1."""
    return {
        (model_of(row), "lm1" if row["lm1_gpus"] == "1" else "lm6"): float(row["samples_per_sec"])
        for row in rows("collective_2080ti")
        if int(row["lm1_gpus"]) + int(row["lm6_gpus"]) == 1
    }


def baselines():
    return rows("single_gpu_baseline")


def relaunches():
    """{(nodes, GPUs of a node, batch): [samples a second of the 7 runs]} of set 3."""
    found = {}
    for row in rows("bert_base_v100"):
        key = int(row["num_nodes"]), int(row["gpu_num_per_node"]), int(row["batch_size_per_device"])
        found.setdefault(key, []).append(float(row["sentences_per_sec"]))
    return found


def seconds_of(text):
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def whole_runs():
    """[(data set, nodes, GPUs of a node, [runs], printed average row or None)] of set 4; a run: {"epochs", "batch", "steps",
    "due", "seconds", "speedup", "names"}; `due` is the number of steps that the data set requires."""
    found = {}
    for row in rows("mnist_strong_scaling"):
        key = row["dataset"], int(row["nodes"]), int(row["gpus_per_node"])
        runs, averages = found.setdefault(key, ([], []))
        ranks, batch = key[1] * key[2], int(row["batch_per_gpu"])
        run = {
            "epochs": int(row["epochs"]) or 10,
            "batch": batch,
            "steps": int(row["steps"]),
            "due": math.ceil(SAMPLES[row["dataset"]] / (batch * ranks)),
            "seconds": seconds_of(row["runtime_hms"]),
            "speedup": row["speedup"],
            "names": row["node_names"],
        }
        (averages if row["node_names"] == "Avg" else runs).append(run)
    return [(*key, runs, averages[0] if averages else None) for key, (runs, averages) in found.items()]


def average_seconds(runs):
    return statistics.mean(run["seconds"] for run in runs)
