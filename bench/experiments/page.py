"""One self-contained HTML page with all tables and plots of a results folder; pictures are embedded."""

import base64
import html
import os

from . import comm, plots, timeline
from .failure import Failure
from .results import note
from .tables import TABLES

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; margin: 0 auto; padding: 1.5em; max-width: 1180px; }
h1 { margin-bottom: .2em } h2 { margin-top: 2em; border-bottom: 2px solid #d7dee6; padding-bottom: .15em } h3 { margin: 1.3em 0 .4em }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums }
th { text-align: left; background: #eef2f6; position: sticky; top: 0 }
th, td { padding: .22em .6em; border-bottom: 1px solid #e3e8ee; white-space: nowrap }
.right { text-align: right } .bold td { font-weight: 600 } .wide { overflow-x: auto; max-height: 34em }
tr.ran td:last-child, .key .ran { background: #e2f3e4 } tr.replayed td:last-child, .key .replayed { background: #fdf0d8 }
tr.predicted td:last-child, .key .predicted { background: #eadff7 } tr.published td:last-child, .key .published { background: #e4eef9 }
.key span { padding: .15em .6em; border-radius: .3em; margin-right: .5em } .notes { color: #50606f; font-size: 13px; margin: .5em 0 }
img { max-width: 100% } details > summary { cursor: pointer; color: #2f6db3; margin: .6em 0 }
.warn { background: #fdecea; padding: .5em .9em; border-radius: .3em }
"""

# The tables under each heading; tables of many rows are folded.
SECTIONS = (
    ("Throughput and scalability", ("scalability", "baselines", "predictions")),
    ("Step logs", ("log", "start-up")),
    ("Medians of relaunches", ("relaunches",)),
    ("Whole runs", ("runtime",)),
    ("Accuracy and times of epochs", ("epochs",)),
    ("Words per second, and the throughput table", ("words", "throughput-csv")),
    ("Distributed, 16 nodes", ("sixteen-nodes",)),
    ("Bandwidth of collectives", ("bandwidth",)),
    ("One step", ()),
    ("Test beds and versions", ("test-beds", "versions")),
    ("Oddities of the published tables", ("oddities",)),
)
MOST_OPEN_ROWS = 45


def _picture(path, title):
    with open(path, "rb") as file:
        data = base64.b64encode(file.read()).decode()
    return f'<p><img alt="{html.escape(title)}" title="{html.escape(title)}" src="data:image/svg+xml;base64,{data}"></p>'


def _pictures(out, store):
    """{heading: [HTML of its pictures]}."""
    folder = os.path.join(out, "plots")
    found = {
        "Throughput and scalability": [_picture(path, title) for title, path in plots.throughput(store, folder)],
        "Step logs": [_picture(plots.logs(store, folder), "cumulative throughput over steps")],
    }
    benches = store.of_kind("bandwidth")
    if benches:
        cases = comm.collect([(record["benchmarks"], record["text"]) for record in benches])
        found["Bandwidth of collectives"] = [_picture(plots.bandwidth(cases, folder), "bandwidth of collectives")]
    found["One step"] = []
    for number, record in enumerate(store.of_kind("timeline")):
        trace = os.path.join(out, record["folder"], "0", "trace.json")
        try:
            path = timeline.picture(trace, record["text"], folder, f"timeline-{number}" if number else "timeline")
            found["One step"].append(_picture(path, "one training step of all ranks"))
        except Failure as failure:
            found["One step"].append(f"<p class=warn>{html.escape(str(failure))}</p>")
    return found


def _table(table):
    text = table.html()
    if len(table.rows) <= MOST_OPEN_ROWS:
        return text
    return f"<details><summary>{html.escape(table.title)} ({len(table.rows)} rows)</summary>{text}</details>"


def _facts(store):
    records = [r for r in store.records.values()]
    if not records:
        return "<p>Nothing has run in this folder: what follows is published.</p>"
    machine = records[-1]["machine"]
    commits = sorted({r["commit"] for r in records if r["commit"]})
    text = (
        f"{machine['host']}: {machine['processor']}, {machine['processors']} processors, {machine['memory_gib']:g} GiB, {machine['system']}; "
        f"commit {', '.join(commits) or 'unknown'}; last result of {records[-1]['finished']}. "
        f"{sum(r['status'] == 'ok' for r in records)} cells finished, {len(store.without_result())} without a result."
    )
    return f"<p>{html.escape(text)}</p>"


def write_page(out, store, title, about, no_predictions=None):
    """Writes report.html and the plots below `out`; returns the page's path."""
    os.makedirs(out, exist_ok=True)
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(about)}</p>" if about else "",
        _facts(store),
        "<p class=key><span class=ran>ran here</span><span class=replayed>replayed: real exchange, recorded computing times</span>"
        "<span class=predicted>predicted by the simulator</span><span class=published>published</span></p>",
    ]
    if no_predictions:
        parts.append(f"<p class=warn>{html.escape(no_predictions)}</p>")
    try:
        pictures = _pictures(out, store)
    except Failure as failure:
        note(f"experiment: {failure}")
        parts.append(f"<p class=warn>{html.escape(str(failure))}</p>")
        pictures = {}
    if store.without_result():
        parts.append(TABLES["failed"](store)[0].html())
    for heading, names in SECTIONS:
        content = pictures.get(heading, [])
        for name in names:
            made = TABLES[name](store)
            folded = [_table(table) for table in made]
            if name == "log":
                folded = ["<details><summary>Logs, published and of what ran here, side by side</summary>", *folded, "</details>"]
            content = [*content, *folded]
        if content:
            parts += [f"<h2>{html.escape(heading)}</h2>", *content]
    parts.append("</body></html>")
    path = os.path.join(out, "report.html")
    with open(path + ".part", "w") as file:
        file.write("\n".join(parts))
    os.replace(path + ".part", path)
    return path
