"""Medians of relaunches, whole runs with recomputed averages, epochs, and the throughput of each run."""

import statistics

from .. import published
from ..table import Table
from .common import (
    MODELS,
    baseline_of,
    clock,
    exchange_text,
    model_text,
    ordered,
    published_how,
    rate_text,
    settings_notes,
    workers,
)


def relaunches(store):
    """Medians of relaunches, and every run."""
    medians = Table(
        "BERT-base on 1 to 32 V100, and relaunches that ran here",
        ["model", "num_nodes", "gpu_num_per_node", "batch_size_per_device", "throughput", "speedup", "how"],
    )
    most = max([7, *(len(r["runs"]) for r in store.runs("relaunches"))])
    every = Table(
        "Each run of the medians",
        ["model", "num_nodes", "gpu_num_per_node", "batch_size_per_device", *(f"run {i + 1}" for i in range(most)), "how"],
    )

    def add(model, nodes, per_node, batch, runs, base, how):
        middle = statistics.median(runs)
        medians.add(model, nodes, per_node, batch, f"{middle:.1f}", f"{middle / base:.2f}" if base else "", how)
        every.add(model, nodes, per_node, batch, *(f"{run:.1f}" for run in runs), *[""] * (most - len(runs)), how)

    known = published.relaunches()
    for (nodes, per_node, batch), runs in known.items():
        add("BERT", nodes, per_node, batch, runs, statistics.median(known[1, 1, batch]), published_how(3))
    records = ordered(store.runs("relaunches"))
    for record in records:
        cell = record["cell"]
        add(
            model_text(record),
            cell["nodes"],
            cell["ranks_per_node"],
            cell["batch"],
            record["runs"],
            baseline_of(record, store),
            record["how"],
        )
    medians.notes = [
        "Throughput in samples (sentences) a second, speedup over one rank at the same batch and of the same kind.",
        *dict.fromkeys(f"Ran here: {r['protocol']['text']}." for r in records),
        *settings_notes(records),
    ]
    return [medians, every]


def runtime(store):
    """Whole runs with recomputed averages."""
    columns = ["#Nodes", "#GPUs", "Epoch", "Batchsize", "Steps", "Runtime", "Speedup", "Node(s)", "how"]
    tables = []
    for dataset in ("MNIST", "bigMNIST"):
        table = Table(f"{dataset} strong scaling", columns)
        settings = [s for s in published.whole_runs() if s[0] == dataset]
        base = published.average_seconds(settings[0][3])
        for _, nodes, gpus, runs, printed in settings:
            for run in runs:
                steps = f"{run['steps']}" + (f" (due {run['due']})" if run["steps"] != run["due"] else "")
                alone = f"{base / run['seconds']:.2f}" if len(runs) == 1 else "-"
                table.add(
                    nodes, gpus, run["epochs"], run["batch"], steps, clock(run["seconds"]), alone, run["names"], published_how(4)
                )
            if printed:
                mean = published.average_seconds(runs)
                table.add(
                    f"**{nodes}**",
                    f"**{gpus}**",
                    f"**{runs[0]['epochs']}**",
                    f"**{runs[0]['batch']}**",
                    f"**{runs[0]['due']}**",
                    f"**{clock(mean)}**",
                    f"**{base / mean:.2f}**",
                    f"**Avg (printed {clock(printed['seconds'])}, {printed['speedup']})**",
                    f"**{published_how(4)}**",
                )
        if any(printed for *_, printed in settings):
            table.notes.append("Averages are recomputed from the runs above them; averages mix types of GPU, as published.")
        _own_runtime(store, table, dataset)
        tables.append(table)
    return tables


def _of_dataset(record):
    """The data set of a run of the ConvNet: bigMNIST adds deformed copies to the images."""
    words = record["cell"]["options"]
    copies = words[words.index("--copies") + 1] if "--copies" in words else "5"
    return "MNIST" if copies == "0" else "bigMNIST"


def _own_runtime(store, table, dataset):
    """Adds rows of the runs here, with an average over runs that differ only in their seed."""
    groups = {}
    for record in ordered(store.runs("runtime")):
        cell = record["cell"]
        if cell["model"] == "convnet" and _of_dataset(record) == dataset:
            groups.setdefault((cell["nodes"], cell["ranks_per_node"], cell["batch"], cell["comm"], cell["exec"]), []).append(
                record
            )
    base = {}
    for (nodes, per_node, batch, _, kind), records in groups.items():
        mean = statistics.mean(record["described_seconds"] for record in records)
        if nodes * per_node == 1:
            base[batch, kind] = mean
        first = base.get((batch, kind))
        speedup = f"{first / mean:.2f}" if first else ""
        for record in records:
            ran = record["protocol"]["epochs"]
            described = max(record["protocol"]["described"], ran)
            table.add(
                nodes,
                per_node,
                f"{described} ({ran} ran)" if described > ran else ran,
                batch,
                record["steps"] // ran,
                clock(record["described_seconds"]),
                "-" if len(records) > 1 else speedup,
                record["hosts"],
                record["how"],
            )
        if len(records) > 1:
            table.add(
                f"**{nodes}**",
                f"**{per_node}**",
                f"**{described}**",
                f"**{batch}**",
                f"**{records[0]['steps'] // ran}**",
                f"**{clock(mean)}**",
                f"**{speedup}**",
                "**Avg**",
                f"**{records[0]['how']}**",
            )
    own = [record for records in groups.values() for record in records]
    if any(r["protocol"]["described"] > r["protocol"]["epochs"] for r in own):
        table.notes.append(
            "Runs that ran here are shortened: the epochs in brackets ran, and the runtime is that of their start and end and "
            "of the described epochs at the pace of those that ran."
        )
    table.notes += dict.fromkeys(
        f"Here {r['cell']['nodes']}x{r['cell']['ranks_per_node']} took {clock(r['wall_seconds'])} "
        f"for {r['protocol']['epochs']} epochs."
        for r in own
    )
    table.notes += settings_notes(own)


def throughput_csv(store):
    """The throughput CSV: seconds and samples of a run's steps."""
    table = Table("Throughput", ["run", "count", "mean", "last", "total", "data passed", "throughput"])
    for record in store.runs():
        if "count" in record:
            table.add(
                record["text"] + f" ({record['protocol']['kind']})",
                record["count"],
                f"{record['mean']:.6f}",
                f"{record['last']:.6f}",
                f"{record['total']:.6f}",
                record["passed"],
                f"{record['passed'] / record['total']:.3f}",
            )
    table.notes = [
        "count: steps; mean, last, total: seconds of them; data passed: samples of all ranks; throughput: data passed / total. "
        "Of relaunches the first is shown, with the steps that its median leaves out."
    ]
    return [table]


def epochs(store):
    """Accuracy and seconds of each epoch beside the published ones."""
    table = Table(
        "Epochs: seconds, test seconds and test accuracy",
        ["model", "machine", "ranks", "epoch", "epoch seconds", "test seconds", "test accuracy", "how"],
    )
    for row in published.epochs():
        seconds = [("" if row[field] is None else f"{row[field]:.2f}") for field in ("seconds", "test_seconds")]
        mark = " *" if row["note"] and row["seconds"] is not None else ""
        table.add(
            MODELS[row["model"]],
            f"{row['machines']} ({row['gpus']})",
            row["ranks"],
            row["epoch"],
            seconds[0] + mark,
            seconds[1] + mark,
            f"{row['accuracy']:.2f}%",
            published_how(1),
        )
    own = [
        r
        for r in ordered(store.runs())
        if r["protocol"]["kind"] in ("cumulative", "runtime") and any("test_seconds" in e for e in r["epochs"])
    ]
    for record in own:
        for epoch in record["epochs"]:
            if "test_seconds" in epoch:
                accuracy = epoch["test_accuracy"]  # none if the model does not classify
                table.add(
                    model_text(record),
                    f"{record['hosts']}, {exchange_text(record)}",
                    workers(record),
                    epoch["epoch"],
                    f"{epoch['seconds']:.2f}",
                    f"{epoch['test_seconds']:.2f}",
                    "" if record["drawn"] or accuracy is None else f"{100 * accuracy:.2f}%",
                    record["how"],
                )
    table.notes = ["* as published, and odd: table oddities says what.", *settings_notes(own)]
    return [table]


def words(store):
    """Words per second: tokens of sequences, of BERT including padding, as published."""
    table = Table("Words per second", ["model", "machine", "ranks", "batch", "sentences/s", "words a sentence", "words/s", "how"])
    for row in published.baselines():
        value = float(row["bert_base_words_per_sec"])
        table.add("BERT", f"{row['machine']} ({row['gpu']})", 1, 8, f"{value / 128:.2f}", 128, f"{value:.2f}", published_how(2))
    for row in published.throughputs():
        if row["model"] == "bert":
            table.add(
                "BERT",
                f"{row['nodes']} x {row['gpus']} V100",
                row["ranks"],
                row["batch"],
                rate_text(row["throughput"]),
                128,
                f"{row['throughput'] * 128:.0f}",
                published_how(3),
            )
    for record in ordered(store.runs()):
        if record.get("unit") in ("words", "tokens", "positions") and record["protocol"]["kind"] in ("cumulative", "relaunches"):
            length = record["units_per_row"]
            table.add(
                model_text(record),
                record["hosts"],
                workers(record),
                record["cell"]["batch"],
                rate_text(record["throughput"]),
                f"{length:.0f}",
                rate_text(record["throughput"] * length),
                record["how"],
            )
    table.notes = ["Published words/s are taken for sentences x 128: `sentence length 128` is all that is said."]
    return [table]
