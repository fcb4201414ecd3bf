"""comm_bench's JSON, and that of its peers, as tables. A cell is the median algbw of the repetitions (GB/s), ± half their range,
and the ratio to native/mpi. Ratios between separate programs, which ran at different times, are marked with ~."""

import collections
import json
import statistics

from .failure import Failure
from .table import Table


class Case:
    """The repetitions of one case."""

    def __init__(self, own_run):
        self.rates, self.bounds, self.own_run = [], [], own_run

    rate = property(lambda self: statistics.median(self.rates))
    bound = property(lambda self: statistics.median(self.bounds) if self.bounds else None)
    spread = property(lambda self: (max(self.rates) - min(self.rates)) / 2 / self.rate)


def collect(runs):
    """{(collective, type): {column: {"policy/transport": Case}}} of [(entries of a JSON, where they are from)]; a column is a number of
    bytes or a model."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for entries, _ in runs:
        has_native = any("/native/" in entry["name"] for entry in entries)
        for entry in entries:
            if entry.get("run_type", "iteration") != "iteration" or "algbw_GBps" not in entry:
                continue
            words = [w for w in entry["name"].split("/") if w != "manual_time" and not w.startswith("repeats:")]
            collective, policy, transport = words[:3]
            kind, column = ("buckets", words[3]) if collective == "exchange" else (words[3], int(words[4]))
            case = found[collective, kind][column].setdefault(f"{policy}/{transport}", Case(has_native))
            case.rates.append(entry["algbw_GBps"])
            if "bound_percent" in entry:
                case.bounds.append(entry["bound_percent"])
    if not found:
        raise Failure("there is no case with algbw_GBps in " + ", ".join(where for _, where in runs))
    return found


def read(paths):
    runs = []
    for path in paths:
        try:
            with open(path) as file:
                runs.append((json.load(file)["benchmarks"], path))
        except (OSError, ValueError, KeyError) as error:
            raise Failure(f"{path} is not Google Benchmark's JSON: {error}") from None
    return collect(runs)


def size_text(column):
    if isinstance(column, str):
        return column
    for unit in ("B", "KiB", "MiB", "GiB"):
        if column < 1024 or unit == "GiB":
            return f"{column:g} {unit}"
        column /= 1024


def columns_of(cells):
    return sorted(cells, key=lambda c: (isinstance(c, str), c if isinstance(c, int) else 0))


def rows_of(cells):
    """All policies, native first, then by transport."""
    rows = {row for column in cells.values() for row in column}
    return sorted(rows, key=lambda row: (row != "native/mpi", row.split("/")[::-1]))


def _cell_text(case, native):
    if case is None:
        return ""
    text = f"{case.rate:.3g}"
    if len(case.rates) > 1:
        text += f" ±{100 * case.spread:.0f}%"
    if native is not None and case is not native:
        text += f" ({'' if case.own_run else '~'}{case.rate / native.rate:.2f}x)"
    return text


def tables(found):
    made = []
    for (collective, kind), cells in found.items():
        columns = columns_of(cells)
        names = ["policy", *(size_text(c) for c in columns)]
        rates = Table(f"{collective}, {kind}: algbw in GB/s (ratio to native/mpi: above 1 is faster)", names)
        bounds = Table(f"{collective}, {kind}: percent of the policy's own bound", names)
        for row in rows_of(cells):
            rates.add(row, *(_cell_text(cells[c].get(row), cells[c].get("native/mpi")) for c in columns))
            reached = [cells[c][row].bound if row in cells[c] else None for c in columns]
            if any(reached):
                bounds.add(row, *("" if b is None else f"{b:.0f}" for b in reached))
        made += [rates, bounds] if bounds.rows else [rates]
    return made
