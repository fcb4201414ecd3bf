"""Step logs in the published form, and the start-up that published rates include."""

from .. import published
from ..protocols import start_up
from ..table import Table
from .common import (
    MODELS,
    ORDER,
    baseline_of,
    exchange_text,
    model_text,
    ordered,
    published_how,
    rate_text,
    settings_notes,
    workers,
)


def _published_log(key):
    """The log of a published run, in the order of its document."""
    model, machines, gpus = key
    lines = [(at, f"Step{step}: {rate:.2f} data/sec") for at, step, rate in published.logs().get(key, [])]
    for row in published.epochs():
        if (row["model"], row["machines"], row["gpus"]) == key:
            times = (
                "(times are another run's)"
                if row["seconds"] is None
                else f"{row['seconds']:.2f} sec, test time {row['test_seconds']:.2f} sec"
            )
            lines.append((row["line"], f"Epoch {row['epoch']} in {times}, test accuracy:{row['accuracy'] / 100:.5f}"))
    return [text for _, text in sorted(lines)]


def _published_summary(key):
    for row in published.throughputs():
        if (row["model"], row["machines"], row["gpus"]) == key:
            return f"{row['throughput']:.2f} - speed-up {row['printed']}x, baseline: {row['baseline']:.2f}"
    base = published.single().get(key[:2])
    return f"{base:.2f} - baseline" if base and key[2] == "1" else ""


def own_log(record, store):
    """A run's log in the published form, its summary first."""
    base = baseline_of(record, store)
    summary = f"{record['throughput']:.2f}"
    if record.get("world") == 1:
        summary += " - baseline"
    elif base:
        summary += f" - speed-up {record['throughput'] / base:.2f}x, baseline: {base:.2f}"
    lines = [(step, 0, f"Step{step}: {rate:.2f} data/sec") for step, rate in record.get("lines", [])]
    epochs = record["epochs"]
    for number, epoch in enumerate(epochs, 1):
        text = f"Epoch {epoch['epoch']} in {epoch['seconds']:.2f} sec"
        if "test_seconds" in epoch:
            text += f", test time {epoch['test_seconds']:.2f} sec"
            if not record["drawn"] and epoch["test_accuracy"] is not None:
                text += f", test accuracy:{epoch['test_accuracy']:.5f}"
        lines.append((record["steps"] * number / len(epochs), 1, text))
    return [summary] + [text for *_, text in sorted(lines)]


def log(store):
    """The step logs: published and own ones of the same model, nodes and ranks side by side."""
    found = {}
    for key in published.logs():
        ranks = sum(int(n) for n in key[2].split("+"))
        found.setdefault((ORDER.index(key[0]), published.nodes_of(key[1]), ranks), ([], []))[0].append(key)
    for record in store.runs("cumulative"):
        found.setdefault((ORDER.index(record["cell"]["model"]), record["cell"]["nodes"], workers(record)), ([], []))[1].append(
            record
        )
    tables = []
    for (model, nodes, ranks), (keys, records) in sorted(found.items()):
        columns, logs = [], []
        for record in records:
            columns.append(f"{record['how']}: {exchange_text(record)}, batch {record['cell']['batch']}")
            logs.append(own_log(record, store))
        for key in keys:
            columns.append(f"{published_how(1)}: {key[1]}, {key[2]} GPU{'s' if key[2] != '1' else ''}")
            logs.append([_published_summary(key), *_published_log(key)])
        table = Table(
            f"{MODELS[ORDER[model]]}, {nodes} node{'s' if nodes > 1 else ''}, {ranks} rank{'s' if ranks > 1 else ''}", columns
        )
        for number in range(max(map(len, logs))):
            table.add(*(lines[number] if number < len(lines) else "" for lines in logs))
        table.notes = settings_notes(records)
        tables.append(table)
    return tables


def start(store):
    """Start-up in the published rates."""
    table = Table(
        "Start-up in cumulative rates: elapsed = start-up + steps x step, by least squares",
        [
            "model",
            "machine",
            "ranks",
            "first line",
            "last line",
            "start-up, s",
            "step, s",
            "without start-up",
            "worst of a line",
            "how",
        ],
    )
    for (model, machines, gpus), lines in published.logs().items():
        ranks = sum(int(n) for n in gpus.split("+"))
        points = [(step, rate) for _, step, rate in lines]
        begin, step = start_up(points, 128 * ranks)
        worst = max(abs(s * 128 * ranks / (begin + s * step) / rate - 1) for s, rate in points)
        table.add(
            MODELS[model],
            f"{machines} ({gpus})",
            ranks,
            f"{points[0][1]:.2f}",
            f"{points[-1][1]:.2f}",
            f"{begin:.1f}",
            f"{step:.4f}",
            f"{128 * ranks / step:.2f}",
            f"{100 * worst:.1f}%",
            published_how(1),
        )
    for record in ordered(store.runs("cumulative")):
        lines = record.get("lines", [])
        if len(lines) > 1:
            inside = record["total"] + sum(e.get("test_seconds", 0) for e in record["epochs"])
            table.add(
                model_text(record),
                record["hosts"],
                workers(record),
                f"{lines[0][1]:.2f}",
                f"{lines[-1][1]:.2f}",
                f"{max(record['wall_seconds'] - inside, 0):.1f}",
                f"{record['mean']:.4f}",
                rate_text(record["throughput"]),
                "",
                record["how"],
            )
    table.notes = [
        "Rates that ran here count from the first step: their start-up is the launch's wall time beside steps and tests, and in no rate."
    ]
    return [table]
