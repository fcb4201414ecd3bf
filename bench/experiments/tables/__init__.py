"""The tables of the published layouts: published figures and those of a results folder side by side. Each row states the origin
of its figures (published, ran on processors, ran on GPUs, replayed, predicted)."""

from .. import comm, published
from ..table import Table
from .logs import log, start
from .machines import baselines, testbeds, versions
from .runs import epochs, relaunches, runtime, throughput_csv, words
from .scaling import predictions, scalability, sixteen


def oddities(store):
    table = Table("Oddities of the published tables", ["set", "what is odd", "what reports make of it"])
    for row in published.ODDITIES:
        table.add(*row)
    return [table]


def failed(store):
    table = Table("Cells without a result", ["cell", "protocol", "status", "why"])
    for record in store.without_result():
        table.add(record["text"], record["protocol"]["kind"], record["status"], record["error"])
    if not table.rows:
        table.notes = ["Every cell has one." if store.records else "There is no result in this folder."]
    return [table]


def bandwidth(store):
    runs = store.of_kind("bandwidth")
    if not runs:
        return [Table("Bandwidth of collectives", ["policy"], [], ["comm_bench was not run in this folder of results."])]
    return comm.tables(comm.collect([(record["benchmarks"], record["text"]) for record in runs]))


TABLES = {
    "log": log,
    "relaunches": relaunches,
    "runtime": runtime,
    "scalability": scalability,
    "sixteen-nodes": sixteen,
    "baselines": baselines,
    "words": words,
    "throughput-csv": throughput_csv,
    "epochs": epochs,
    "start-up": start,
    "test-beds": testbeds,
    "versions": versions,
    "predictions": predictions,
    "bandwidth": bandwidth,
    "oddities": oddities,
    "failed": failed,
}
