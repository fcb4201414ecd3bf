"""The published measurement protocols: what a launch runs, and how its files become a result.

cumulative   samples of all ranks since the first step over elapsed seconds, every `log_every` steps; evaluation not counted
relaunches   `relaunches` launches; each leaves out the first `ignore` steps and measures the next `measure`; the median counts
runtime      the wall time of a whole run of `epochs`; a published run of `described` epochs is shortened, and its time estimated
timeline     a run that writes a Chrome trace
bandwidth    comm_bench over sizes
prediction   nothing runs: the simulator alone answers
"""

import csv
import dataclasses
import json
import os
import statistics

from .failure import Failure


@dataclasses.dataclass(frozen=True)
class Protocol:
    kind: str
    steps: int = 0  # 0: by epochs alone
    epochs: int = 0  # 0: as many as the steps take
    log_every: int = 200
    relaunches: int = 1
    ignore: int = 0
    measure: int = 0
    described: int = 0  # epochs of the published run, of which only `epochs` are run here; 0: all are
    filter: str = ""  # regular expression for comm_bench's cases

    @classmethod
    def read(cls, table, where):
        names = {field.name: type(field.default) for field in dataclasses.fields(cls)} | {"kind": str}
        for name, value in table.items():
            if name not in names:
                raise Failure(f"{where}: a protocol has no field {name!r}; fields are " + ", ".join(names))
            if type(value) is not names[name] or (names[name] is int and value < 0):
                wanted = "an int of at least 0" if names[name] is int else names[name].__name__
                raise Failure(f"{where}: {name} of a protocol must be {wanted}, not {value!r}")
        kind = table.get("kind")
        if kind not in KINDS:
            raise Failure(f"{where}: there is no protocol {kind!r}; protocols are " + ", ".join(KINDS))
        protocol = cls(**{**DEFAULTS.get(kind, {}), **table})
        if kind == "relaunches" and (protocol.relaunches < 1 or protocol.measure < 1):
            raise Failure(f"{where}: relaunches and measure must be at least 1, not {protocol.relaunches} and {protocol.measure}")
        if kind in ("cumulative", "timeline") and protocol.steps + protocol.epochs < 1:
            raise Failure(f"{where}: {kind} needs steps or epochs")
        if kind == "runtime" and protocol.epochs < 1:
            raise Failure(f"{where}: runtime needs epochs")
        return protocol

    @property
    def launches(self):
        return {"relaunches": self.relaunches, "prediction": 0}.get(self.kind, 1)

    def words(self, folder):
        """The trainer's options for one launch, whose files go into the folder."""
        words = ["--json", os.path.join(folder, "result.json"), "--csv", os.path.join(folder, "steps.csv")]
        steps = self.steps
        if self.kind == "relaunches":
            steps = max(self.steps, self.ignore + self.measure)
        if steps:
            words += ["--steps", str(steps)]
        # With steps alone, an unlimited number of epochs.
        words += ["--epochs", str(self.epochs or 1_000_000)]
        if self.kind == "timeline":
            words += ["--timeline", os.path.join(folder, "trace.json")]
        return words + ["--log-every", str(self.log_every)]

    def text(self):
        if self.kind == "cumulative":
            return f"cumulative throughput every {self.log_every} steps"
        if self.kind == "relaunches":
            return (
                f"median of {self.relaunches} relaunches, of each the first {self.ignore} steps left out "
                f"and the next {self.measure} measured"
            )
        if self.kind == "runtime":
            shortened = f", shortened from {self.described}" if self.described > self.epochs else ""
            return f"wall time of a whole run of {self.epochs} epochs{shortened}"
        return self.kind

    def as_json(self):
        return dataclasses.asdict(self)


KINDS = ("cumulative", "relaunches", "runtime", "timeline", "bandwidth", "prediction")
DEFAULTS = {"relaunches": {"relaunches": 7, "ignore": 20, "measure": 100, "steps": 140}}


def read_steps(path):
    """[(rows, seconds)] of each step, from a trainer's CSV."""
    try:
        with open(path, newline="") as file:
            return [(int(line["rows"]), float(line["seconds"])) for line in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Failure(f"{path} is not a log of steps: {error!r}") from None


def rate(steps):
    """Samples per second over some steps."""
    return sum(rows for rows, _ in steps) / sum(seconds for _, seconds in steps)


def cumulative_lines(steps, every):
    """[(step, samples a second since the first step)] at each multiple of `every`."""
    lines, rows, seconds = [], 0, 0.0
    for number, (more_rows, more_seconds) in enumerate(steps, 1):
        rows, seconds = rows + more_rows, seconds + more_seconds
        if number % every == 0:
            lines.append((number, rows / seconds))
    return lines


def window(steps, ignore, measure):
    """The published window: global batch x measure / (t[ignore + measure - 1] - t[ignore - 1])."""
    if len(steps) < ignore + measure:
        raise Failure(f"the run made {len(steps)} steps, but the protocol needs {ignore + measure}")
    return rate(steps[ignore : ignore + measure])


def start_up(lines, rows_per_step):
    """(seconds of start-up, seconds of a step) that fit cumulative rates: elapsed = start-up + steps x step, by least squares.

    The published rates count from the start of the program, so that the first line is lower than the last.
    """
    points = [(step, step * rows_per_step / value) for step, value in lines]
    if len(points) < 2:
        raise Failure("a start-up needs at least two lines of a log")
    middle = statistics.mean(step for step, _ in points)
    elapsed = statistics.mean(seconds for _, seconds in points)
    slope = sum((s - middle) * (t - elapsed) for s, t in points) / sum((s - middle) ** 2 for s, _ in points)
    return elapsed - slope * middle, slope


def _read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Failure(f"{path} is not a result: {error}") from None


def _estimate(protocol, wall, epochs):
    """(seconds of start and end, estimated seconds of the described run)."""
    inside = sum(epoch["seconds"] + epoch.get("test_seconds", 0) for epoch in epochs)
    around = max(wall - inside, 0.0)
    described = max(protocol.described, len(epochs))
    return around, around + inside * described / max(len(epochs), 1)


def measure(protocol, folders, walls):
    """The fields of a result, from the folders of a task's launches and the wall time of each."""
    if protocol.kind == "bandwidth":
        return {"benchmarks": _read_json(os.path.join(folders[0], "comm.json"))["benchmarks"], "wall_seconds": walls[0]}
    results = [_read_json(os.path.join(folder, "result.json")) for folder in folders]
    steps = [read_steps(os.path.join(folder, "steps.csv")) for folder in folders]
    first = results[0]
    if not steps[0]:
        raise Failure("the run made no step")
    seconds = [s for _, s in steps[0]]
    found = {
        "wall_seconds": sum(walls),
        "world": first["world"],
        "parameters": first["parameters"],
        "data": first["data"],
        "device": first["device"],
        "precision": first["precision"],
        "steps": first["steps"],
        "step_ms": first["step_ms"],
        "exposed_comm_ms": first["exposed_comm_ms"],
        "sent_bytes_per_step": first["sent_bytes_per_step"],
        "epochs": first["epochs"],
        "test_accuracy": first["test_accuracy"],
        "count": len(seconds),
        "mean": statistics.mean(seconds),
        "last": seconds[-1],
        "total": sum(seconds),
        "passed": sum(rows for rows, _ in steps[0]),
    }
    if protocol.kind == "relaunches":
        found["runs"] = [window(s, protocol.ignore, protocol.measure) for s in steps]
        found["throughput"] = statistics.median(found["runs"])
    else:
        found["throughput"] = rate(steps[0])
        found["lines"] = cumulative_lines(steps[0], protocol.log_every)
    if protocol.kind == "runtime":
        found["around_seconds"], found["described_seconds"] = _estimate(protocol, walls[0], first["epochs"])
    for unit in ("words", "tokens", "positions"):
        if f"{unit}_per_sec" in first:
            found["unit"] = unit
            found["units_per_row"] = first[f"{unit}_per_sec"] / first["samples_per_sec"]
    return found
