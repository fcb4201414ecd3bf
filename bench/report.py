#!/usr/bin/env python3
"""Turns comm_bench's JSON, and that of its peers, into tables and a plot.

    comm_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving --benchmark_out=comm.json
    bench/peers/allreduce.sh -np 2 --folder .
    bench/report.py comm.json mpich.json gloo.json [--markdown report.md] [--plot report.svg]

A cell is the median of the repetitions in algbw (GB/s), +- half their range in percent, and the ratio to native/mpi: above 1 is
faster. Ratios to a peer that is a program of its own come from another moment of the machine and are marked with ~.
"""
import argparse
import collections
import json
import statistics
import sys


class Case:
    """The repetitions of one case."""

    def __init__(self, own_run):
        self.rates, self.bounds, self.own_run = [], [], own_run

    rate = property(lambda self: statistics.median(self.rates))
    bound = property(lambda self: statistics.median(self.bounds) if self.bounds else None)
    spread = property(lambda self: (max(self.rates) - min(self.rates)) / 2 / self.rate)


def read(paths):
    """{(collective, type): {column: {"policy/transport": Case}}}; a column is a number of bytes or a model."""
    tables = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in paths:
        try:
            with open(path) as file:
                entries = json.load(file)["benchmarks"]
        except (OSError, ValueError, KeyError) as error:
            sys.exit(f"report.py: {path} is not Google Benchmark's JSON: {error}")
        has_native = any("/native/" in entry["name"] for entry in entries)
        for entry in entries:
            if entry.get("run_type", "iteration") != "iteration" or "algbw_GBps" not in entry:
                continue
            words = [w for w in entry["name"].split("/") if w != "manual_time" and not w.startswith("repeats:")]
            collective, policy, transport = words[:3]
            kind, column = ("buckets", words[3]) if collective == "exchange" else (words[3], int(words[4]))
            case = tables[collective, kind][column].setdefault(f"{policy}/{transport}", Case(has_native))
            case.rates.append(entry["algbw_GBps"])
            if "bound_percent" in entry:
                case.bounds.append(entry["bound_percent"])
    if not tables:
        sys.exit("report.py: there is no case with algbw_GBps in " + ", ".join(paths))
    return tables


def size_text(column):
    if isinstance(column, str):
        return column
    for unit in ("B", "KiB", "MiB", "GiB"):
        if column < 1024 or unit == "GiB":
            return f"{column:g} {unit}"
        column /= 1024


def columns_of(table):
    return sorted(table, key=lambda c: (isinstance(c, str), c if isinstance(c, int) else 0))


def rows_of(table):
    """All policies, native first, then by transport."""
    rows = {row for cells in table.values() for row in cells}
    return sorted(rows, key=lambda row: (row != "native/mpi", row.split("/")[::-1]))


def markdown(tables):
    lines = []
    for (collective, kind), table in tables.items():
        columns = columns_of(table)
        lines += [f"### {collective}, {kind}: algbw in GB/s (ratio to native/mpi)", ""]
        lines += ["| policy | " + " | ".join(size_text(c) for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for row in rows_of(table):
            cells = []
            for column in columns:
                case, native = table[column].get(row), table[column].get("native/mpi")
                if case is None:
                    cells.append("")
                    continue
                text = f"{case.rate:.3g}"
                if len(case.rates) > 1:
                    text += f" ±{100 * case.spread:.0f}%"
                if native is not None and case is not native:
                    text += f" ({'' if case.own_run else '~'}{case.rate / native.rate:.2f}x)"
                cells.append(text)
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        if any(case.bound for cells in table.values() for case in cells.values()):
            lines += ["", f"{collective}, {kind}: percent of the policy's own bound", ""]
            lines += ["| policy | " + " | ".join(size_text(c) for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
            for row in rows_of(table):
                bounds = [table[c][row].bound if row in table[c] else None for c in columns]
                if any(bounds):
                    lines.append(f"| {row} | " + " | ".join("" if b is None else f"{b:.0f}" for b in bounds) + " |")
        lines.append("")
    return "\n".join(lines)


def plot(tables, path):
    try:
        import matplotlib
    except ImportError:
        sys.exit("report.py: --plot needs matplotlib (Debian and Ubuntu: python3-matplotlib); the tables do not")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {key: table for key, table in tables.items() if key[0] != "bound"} or tables
    policies = sorted({row.split("/")[0] for table in shown.values() for row in rows_of(table)} - {"native"})
    colors = {policy: pyplot.get_cmap("tab20")(i % 20) for i, policy in enumerate(policies)} | {"native": "black"}
    lines = {"mpi": "-", "shm": "--", "threads": ":", "tcp": "-."}
    figure, axes = pyplot.subplots(1, len(shown), figsize=(8 * len(shown), 5), squeeze=False)
    for axis, ((collective, kind), table) in zip(axes[0], shown.items()):
        columns, rows = columns_of(table), rows_of(table)
        by_size = isinstance(columns[0], int)
        for number, row in enumerate(rows):
            policy, transport = row.split("/")
            present = [c for c in columns if row in table[c]]
            cases = [table[c][row] for c in present]
            middle = [case.rate for case in cases]
            spread = [[m - min(case.rates) for m, case in zip(middle, cases)], [max(case.rates) - m for m, case in zip(middle, cases)]]
            style = {"color": colors[policy], "label": row, "capsize": 2}
            if by_size:
                axis.errorbar(present, middle, yerr=spread, marker="o", markersize=3, linestyle=lines.get(transport, "-"), **style)
            else:
                at = [columns.index(c) + (number + 0.5) / len(rows) * 0.9 - 0.45 for c in present]
                hatch = "" if transport == "mpi" else "///"
                axis.bar(at, middle, 0.9 / len(rows), yerr=spread, hatch=hatch, edgecolor="white", linewidth=0, **style)
        if by_size:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
        axis.set_xticks(columns if by_size else range(len(columns)), [size_text(c) for c in columns], rotation=45)
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.set_ylabel("algbw, GB/s")
        axis.set_title(f"{collective}, {kind}")
        axis.grid(True, axis="y", alpha=0.3)
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), ncol=1 + len(rows) // 25)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--markdown", help="write the tables to this file instead of the terminal")
    parser.add_argument("--plot", help="write a plot to this file (.png, .svg, .pdf)")
    options = parser.parse_args()
    tables = read(options.files)
    text = markdown(tables)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(text)
    else:
        print(text)
    if options.plot:
        plot(tables, options.plot)


if __name__ == "__main__":
    main()
