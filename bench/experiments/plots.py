"""Plots, as SVG and PNG: throughput against ranks in the published colors, bandwidth of collectives, and logs."""

import collections
import os
import statistics

from . import comm, published
from .failure import Failure
from .tables.common import MODELS, ORDER, baseline_of, exchange_text, model_text, predicted, predicted_base, workers

# One node: all-reduce, parameter server and ideal; up to three nodes: all-reduce and ideal.
ONE_NODE = {"all-reduce": "tab:green", "parameter server": "tab:orange", "ideal": "tab:blue"}
NODES = {"all-reduce": "tab:blue", "parameter server": "tab:orange", "ideal": "tab:red"}
PUBLISHED_MARKS = {"lm1": "s", "lm6": "^", "lm1+lm6": "D", "V100, batch 64": "v", "V100, batch 96": "o"}


def pyplot():
    try:
        import matplotlib
    except ImportError:
        raise Failure(
            "plots need matplotlib (Debian and Ubuntu: python3-matplotlib; or pip install matplotlib); the tables do not"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "figure.dpi": 110,
            "svg.hashsalt": "convoy",
            "savefig.bbox": "tight",
        }
    )
    from matplotlib import pyplot as plt

    return plt


def save(figure, folder, name):
    """Writes NAME.svg and NAME.png; returns the path of the SVG."""
    os.makedirs(folder, exist_ok=True)
    for kind in ("svg", "png"):
        figure.savefig(os.path.join(folder, f"{name}.{kind}"), metadata={"Date": None} if kind == "svg" else None)
    pyplot().close(figure)
    return os.path.join(folder, f"{name}.svg")


def _published_points(model, several):
    """{machines: [(ranks, throughput)]} of sets 1 and 3, on one node or on several. Each curve of set 3 begins with one GPU."""
    found = {}
    for row in published.throughputs():
        if row["model"] == model and ((row["nodes"] > 1) == several or (row["set"] == "3" and row["ranks"] == 1)):
            name = row["machines"] if row["set"] == "1" else f"V100, batch {row['batch']}"
            found.setdefault(name, []).append((row["ranks"], row["throughput"]))
            if row["set"] == "1" and row["nodes"] == 1:
                found[name].append((1, row["baseline"]))
    return {name: sorted(set(points)) for name, points in found.items()}


def _own_curves(store, several):
    """{(model text, model, how, batch): {family: [(ranks, throughput, exchange)]}}; every family begins with the run of one rank."""
    curves = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in store.runs():
        cell = record["cell"]
        if record["protocol"]["kind"] not in ("cumulative", "relaunches") or (
            workers(record) > 1 and (cell["nodes"] > 1) != several
        ):
            continue
        key = model_text(record), cell["model"], record["how"], cell["batch"]
        curves[key][record["family"]].append((workers(record), record["throughput"], exchange_text(record)))
        base = baseline_of(record, store)
        if base and record["family"] != "none" and not any(ranks == 1 for ranks, *_ in curves[key]["none"]):
            curves[key]["none"].append((1, base, "none"))
    return {key: families for key, families in curves.items() if len(families) > 1}


def _draw_own(axis, families, colors, how):
    base = max(rate for _, rate, _ in families["none"]) if families["none"] else None
    most = max(ranks for points in families.values() for ranks, *_ in points)
    if base:
        ranks = list(range(1, most + 1))
        axis.plot(ranks, [base * n for n in ranks], color=colors["ideal"], label="ideal", linewidth=1.4, zorder=1)
    for family in ("all-reduce", "parameter server"):
        by_exchange = collections.defaultdict(list)
        for ranks, rate, exchange in families.get(family, []):
            by_exchange[exchange].append((ranks, rate))
        for number, (exchange, points) in enumerate(sorted(by_exchange.items())):
            points = sorted(points + ([(1, base)] if base else []))
            axis.plot(
                *zip(*points),
                marker="ov*Xp"[number % 5],
                color=colors[family],
                label=f"{family}: {exchange} ({how})",
                linewidth=1.8,
                markersize=6,
                linestyle=["-", (0, (6, 1)), "-."][number % 3],
                zorder=3,
            )


def _predicted_curves(store, model, several):
    """{where: {(family, exchange): [(ranks, throughput)]}} of the simulator's predictions; each curve begins at one rank."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in predicted(store):
        cell = record["cell"]
        if cell["model"] == model and (cell["nodes"] > 1) == several and record["family"] != "none":
            where = (cell["machines"] or cell["cluster"]) + (f", batch {cell['batch']}" if model == "bert" else "")
            points = found[where][record["family"], exchange_text(record)]
            base = predicted_base(record, store)
            if base and not points:
                points.append((1, base))
            points.append((workers(record), record["prediction"]["throughput"]))
    return found


def _draw_predicted(axis, curves, colors):
    for where, exchanges in sorted(curves.items()):
        for number, ((family, exchange), points) in enumerate(sorted(exchanges.items())):
            axis.plot(
                *zip(*sorted(points)),
                linestyle="--",
                marker="x+*1"[number % 4],
                markersize=7,
                linewidth=1.3,
                color=colors[family],
                label=f"predicted: {exchange}, {where}",
                zorder=2,
            )


def _draw_published(axis, points_of, colors):
    for name, points in sorted(points_of.items()):
        axis.plot(
            *zip(*points),
            linestyle="none",
            marker=PUBLISHED_MARKS.get(name, "P"),
            markersize=7,
            markerfacecolor="white",
            markeredgecolor=colors["all-reduce"],
            markeredgewidth=1.5,
            label=f"published: {name}",
            zorder=4,
        )


def _draw_ideal(axis, bases, reach, colors):
    for number, base in enumerate(sorted(set(bases))):
        axis.plot(
            [1, reach],
            [base, base * reach],
            color=colors["ideal"],
            linewidth=1.2,
            zorder=1,
            label="ideal" if number == 0 else None,
        )


UNITS = {
    "resnet18": "images",
    "resnet50": "images",
    "resnet101": "images",
    "convnet": "images",
    "transformer": "sentences",
    "bert": "sentences",
}


def _finish_ranks(axis, title, model):
    from matplotlib.ticker import MaxNLocator

    axis.set_title(title, loc="left")
    axis.set_xlabel("ranks")
    axis.set_ylabel(f"{UNITS[model]}/s")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    axis.set_ylim(bottom=0)
    axis.margins(x=0.06)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _bases(model, several):
    """The throughput of one published GPU."""
    if model == "bert":
        return [statistics.median(published.relaunches()[1, 1, 96])]
    return [rate for (m, machine), rate in published.single().items() if m == model and (not several or machine == "lm1")]


def throughput(store, folder):
    """One picture per model and number of nodes (one, several), with separate scales for what ran here, what is published with
    its prediction, and what is predicted for machines without published figures."""
    plt = pyplot()
    made = []
    for several, colors in ((False, ONE_NODE), (True, NODES)):
        curves = _own_curves(store, several)
        for model in ORDER:
            points_of = _published_points(model, several)
            foreseen = _predicted_curves(store, model, several)
            beside = {where: one for where, one in foreseen.items() if where in points_of}
            alone = {where: one for where, one in foreseen.items() if where not in points_of}
            where = "several nodes" if several else "one node"
            panels = [(key, families) for key, families in curves.items() if key[1] == model]
            panels += ["published"] * bool(points_of) + ["predicted"] * bool(alone)
            if not panels:
                continue
            figure, axes = plt.subplots(1, len(panels), figsize=(5.6 * len(panels), 4.6), squeeze=False)
            for axis, panel in zip(axes[0], panels):
                if panel == "published":
                    _draw_published(axis, points_of, colors)
                    _draw_predicted(axis, beside, colors)
                    _draw_ideal(
                        axis, _bases(model, several), max(ranks for points in points_of.values() for ranks, _ in points), colors
                    )
                    _finish_ranks(axis, f"{MODELS[model]}\n{where}: published{', predicted' if beside else ''}", model)
                elif panel == "predicted":
                    lines = [points for exchanges in alone.values() for points in exchanges.values()]
                    _draw_predicted(axis, alone, colors)
                    _draw_ideal(
                        axis,
                        [min(points)[1] for points in lines if min(points)[0] == 1],
                        max(max(points)[0] for points in lines),
                        colors,
                    )
                    _finish_ranks(axis, f"{MODELS[model]}\n{where}: predicted alone", model)
                else:
                    (text, _, how, batch), families = panel
                    _draw_own(axis, families, colors, how)
                    _finish_ranks(axis, f"{text}\n{where}, batch {batch}: {how}", model)
            figure.tight_layout()
            name = f"throughput-{model}-{'nodes' if several else 'node'}"
            made.append((f"{MODELS[model]}, {where}: throughput against ranks", save(figure, folder, name)))
    return made


def bandwidth(found, folder, name="bandwidth"):
    """Collectives by size, exchanges by model: medians with their range."""
    plt = pyplot()
    shown = {key: cells for key, cells in found.items() if key[0] != "bound"} or found
    policies = sorted({row.split("/")[0] for cells in shown.values() for row in comm.rows_of(cells)} - {"native"})
    colors = {policy: plt.get_cmap("tab10" if len(policies) <= 10 else "tab20")(i % 20) for i, policy in enumerate(policies)} | {
        "native": "black"
    }
    lines = {"mpi": "-", "shm": "--", "threads": ":", "tcp": "-."}
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 4.6 * len(shown)), squeeze=False)
    for axis, ((collective, kind), cells) in zip(axes[:, 0], shown.items()):
        columns, rows = comm.columns_of(cells), comm.rows_of(cells)
        by_size = isinstance(columns[0], int)
        for number, row in enumerate(rows):
            policy, transport = row.split("/")
            present = [c for c in columns if row in cells[c]]
            cases = [cells[c][row] for c in present]
            middle = [case.rate for case in cases]
            spread = [
                [m - min(case.rates) for m, case in zip(middle, cases)],
                [max(case.rates) - m for m, case in zip(middle, cases)],
            ]
            style = {"color": colors[policy], "label": row, "capsize": 2}
            if by_size:
                axis.errorbar(
                    present, middle, yerr=spread, marker="o", markersize=4, linestyle=lines.get(transport, "-"), **style
                )
            else:
                at = [columns.index(c) + (number + 0.5) / len(rows) * 0.9 - 0.45 for c in present]
                axis.bar(
                    at,
                    middle,
                    0.9 / len(rows),
                    yerr=spread,
                    hatch="" if transport == "mpi" else "///",
                    edgecolor="white",
                    linewidth=0,
                    **style,
                )
        if by_size:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
        axis.set_xticks(columns if by_size else range(len(columns)), [comm.size_text(c) for c in columns])
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.set_ylabel("algbw, GB/s")
        axis.set_title(f"{collective.replace('_', '-')}, {kind}", loc="left")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), ncol=1 + len(rows) // 25)
    figure.tight_layout()
    return save(figure, folder, name)


def logs(store, folder):
    """Cumulative throughput over steps; the published one includes the start-up."""
    plt = pyplot()
    runs = [r for r in store.runs("cumulative") if len(r.get("lines", [])) > 1]
    figure, axes = plt.subplots(1, 2 if runs else 1, figsize=(12 if runs else 6, 4.6), squeeze=False)
    axis = axes[0][0]
    axis.set_title("Published: ResNet-18, relative to its last line", loc="left")
    for (model, machines, gpus), lines in published.logs().items():
        if model == "resnet18":
            last = lines[-1][2]
            axis.plot([s for _, s, _ in lines], [rate / last for *_, rate in lines], marker=".", label=f"{machines} ({gpus})")
    if runs:
        axes[0][1].set_title("Here, relative to its last line (no start-up in it)", loc="left")
        for record in runs:
            last = record["lines"][-1][1]
            axes[0][1].plot(
                *zip(*[(step, rate / last) for step, rate in record["lines"]]),
                marker=".",
                linestyle="--" if record["cell"]["exec"] == "replay" else "-",
                label=f"{MODELS[record['cell']['model']]} {record['cell']['nodes']}x{record['cell']['ranks_per_node']} {exchange_text(record)}",
            )
    for one in axes[0]:
        one.set_xlabel("step")
        one.legend(ncol=2, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    axis.set_ylabel("cumulative throughput")
    figure.tight_layout()
    return save(figure, folder, "logs")
