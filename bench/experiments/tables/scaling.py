"""Throughput relative to one rank, and the simulator's predictions."""

from .. import published
from ..table import Table
from .common import (
    MODELS,
    baseline_of,
    exchange_text,
    model_text,
    ordered,
    predicted,
    predicted_base,
    published_how,
    rate_text,
    settings_notes,
    workers,
)


def _scalability_row(table, model, machines, nodes, ranks, exchange, value, base, how, printed=""):
    table.add(
        model,
        machines,
        nodes,
        ranks,
        exchange,
        rate_text(value),
        rate_text(base),
        f"{value / base:.3f}" if base else "",
        printed,
        ranks,
        how,
    )


def scalability(store):
    """Throughput over that of one rank of the same machine."""
    table = Table(
        "Scalability: throughput / throughput of one rank of the same machine",
        ["model", "machine", "nodes", "ranks", "exchange", "throughput", "one rank", "scalability", "printed", "ideal", "how"],
    )
    for row in published.throughputs():
        _scalability_row(
            table,
            MODELS[row["model"]],
            f"{row['machines']} ({row['gpus']}), batch {row['batch']}",
            row["nodes"],
            row["ranks"],
            "none" if row["ranks"] == 1 else "all-reduce",
            row["throughput"],
            row["baseline"],
            published_how(row["set"]),
            row["printed"],
        )
    own = [r for r in ordered(store.runs()) if r["protocol"]["kind"] in ("cumulative", "relaunches")]
    for record in own:
        cell = record["cell"]
        _scalability_row(
            table,
            model_text(record),
            f"{record['hosts']}, batch {cell['batch']}",
            cell["nodes"],
            workers(record),
            exchange_text(record),
            record["throughput"],
            baseline_of(record, store),
            record["how"],
        )
    for record in ordered(predicted(store)):
        cell, answer = record["cell"], record["prediction"]
        _scalability_row(
            table,
            MODELS[cell["model"]],
            f"{cell['machines'] or cell['cluster']}, batch {cell['batch']}",
            cell["nodes"],
            workers(record),
            exchange_text(record),
            answer["throughput"],
            predicted_base(record, store),
            "predicted",
        )
    table.notes = [
        "Over two machines the published baseline is one GPU of lm1, the slower one. A replay's baseline is the slowest rate that it replays.",
        *settings_notes(own),
    ]
    return [table]


def sixteen(store):
    """Predictions for the published heading that has nothing under it."""
    table = Table(
        "Distributed, 16 nodes (predicted: nothing is published under this heading)",
        [
            "model",
            "nodes",
            "ranks of a node",
            "batch",
            "exchange",
            "throughput",
            "speed-up",
            "baseline",
            "step, s",
            "exposed, s",
            "binds",
            "how",
        ],
    )
    for record in ordered(predicted(store)):
        cell, answer = record["cell"], record["prediction"]
        if cell["nodes"] == 16 and not cell["machines"]:
            base = predicted_base(record, store)
            table.add(
                MODELS[cell["model"]],
                16,
                cell["ranks_per_node"],
                cell["batch"],
                exchange_text(record),
                rate_text(answer["throughput"]),
                f"{answer['throughput'] / base:.2f}x" if base else "",
                rate_text(base),
                f"{answer['step_seconds']:.3f}",
                f"{answer['exposed_seconds']:.3f}",
                answer.get("binds", ""),
                "predicted",
            )
    if not table.rows:
        table.notes = [
            "Nothing is predicted in this folder of results: bench/experiment run distributed_16_nodes does it, and needs the program predict."
        ]
    return [table]


def predictions(store):
    """Predicted and measured."""
    table = Table(
        "Predicted and measured",
        ["cell", "predicted", "measured", "predicted / measured", "published", "predicted / published", "binds", "how"],
    )
    for record in ordered(predicted(store)):
        answer, cell = record["prediction"], record["cell"]
        measured = record.get("throughput")
        known = published_of(cell)
        table.add(
            record["text"] + (f", as {cell['machines']}" if cell["machines"] else ""),
            rate_text(answer["throughput"]),
            rate_text(measured),
            f"{answer['throughput'] / measured:.3f}" if measured else "",
            rate_text(known),
            f"{answer['throughput'] / known:.3f}" if known else "",
            answer.get("binds", ""),
            "predicted",
        )
    if not table.rows:
        table.notes = ["There are no predictions in this folder of results."]
    return [table]


def published_of(cell):
    """The published throughput that a cell reproduces, or None. Set 1 exchanged one tensor at a time, after backward."""
    if cell["comm"].startswith("ps") or (cell["model"] != "bert" and not (cell["no_overlap"] and cell["bucket_mib"] == "tensor")):
        return None
    for row in published.throughputs():
        gpus = sum(int(n) for n in row["gpus"].split("+")) if row["set"] == "1" else row["ranks"]
        if (row["model"], row["machines"], row["nodes"], gpus, row["batch"]) == (
            cell["model"],
            cell["machines"],
            cell["nodes"],
            cell["nodes"] * cell["ranks_per_node"],
            cell["batch"],
        ):
            return row["throughput"]
    if cell["nodes"] * cell["ranks_per_node"] == 1:
        return published.single().get((cell["model"], cell["machines"]))
    return None
