"""Logs in the published form, from convoy's trainers or other programs: cumulative rates, epochs, and the start-up that the rates
include.

    Step200: 100.71 data/sec
    Epoch 0 in 543.88 sec, test time 13.77 sec, test accuracy:0.86263

convoy's lines go on behind a comma, with the loss and others.
Variants in published logs are read, too: `Step 1600 60.44`, `18.63 sec. test`, `est accuracy`, headings of any depth.
"""

import dataclasses
import re

from .failure import Failure
from .protocols import start_up
from .table import Table

STEP = re.compile(r"Step\s*(\d+)\s*:?\s*(\d+(?:\.\d+)?)(?:\s*data/sec(?:,.*)?)?\s*$")
EPOCH = re.compile(
    r"Epoch\s*(\d+)\s*in\s*(\d+(?:\.\d+)?)\s*sec\.?(?:\s*,?\s*test(?:\s*time)?\s*:?\s*(\d+(?:\.\d+)?)\s*sec\.?)?"
    r"(?:.*?\bt?est\s+accuracy\s*:?\s*(\d+(?:\.\d+)?))?"
)
HEADING = re.compile(r"#+\s*(.*?)\s*$")


@dataclasses.dataclass
class Run:
    """The lines under one heading."""

    heading: str
    steps: list = dataclasses.field(default_factory=list)  # (step, rate)
    epochs: list = dataclasses.field(default_factory=list)  # (epoch, seconds, test seconds or None, accuracy or None)


def parse(text, name):
    """The runs of a log, without those that have neither steps nor epochs."""
    runs = [Run(name)]
    for line in text.splitlines():
        line = line.strip()
        heading, step, epoch = HEADING.match(line), STEP.match(line), EPOCH.match(line)
        if heading:
            runs.append(Run(heading[1]))
        elif step:
            runs[-1].steps.append((int(step[1]), float(step[2])))
        elif epoch:
            test, accuracy = (float(one) if one else None for one in (epoch[3], epoch[4]))
            runs[-1].epochs.append((int(epoch[1]), float(epoch[2]), test, accuracy))
    runs = [run for run in runs if run.steps or run.epochs]
    if not runs:
        raise Failure(f"{name} has no line such as `Step200: 100.71 data/sec` or `Epoch 0 in 543.88 sec`")
    return runs


def read(paths):
    runs = []
    for path in paths:
        try:
            with open(path, errors="replace") as file:
                runs += parse(file.read(), path)
        except OSError as error:
            raise Failure(f"{path} cannot be read: {error.strerror}") from None
    return runs


def tables(runs, rows_per_step=None):
    """Tables of rates and of epochs. The start-up is fitted if `rows_per_step`, the samples of a step of all ranks, is given."""
    rates = Table(
        "Cumulative throughput", ["run", "lines", "first", "last", "largest", "start-up, s", "step, s", "without start-up"]
    )
    epochs = Table("Epochs", ["run", "epoch", "seconds", "test seconds", "test accuracy"])
    for run in runs:
        values = [rate for _, rate in run.steps]
        fitted = ["", "", ""]
        # Two steps determine a line, and a rate that was rounded to 0 has no time.
        if rows_per_step and len({step for step, _ in run.steps}) > 1 and all(values):
            begin, step = start_up(run.steps, rows_per_step)
            fitted = [f"{begin:.1f}", f"{step:.4f}", f"{rows_per_step / step:.2f}"]
        if values:
            rates.add(run.heading, len(values), f"{values[0]:.2f}", f"{values[-1]:.2f}", f"{max(values):.2f}", *fitted)
        for epoch, seconds, test, accuracy in run.epochs:
            share = "" if accuracy is None else f"{accuracy if accuracy > 1 else 100 * accuracy:.2f}%"
            epochs.add(run.heading, epoch, f"{seconds:.2f}", "" if test is None else f"{test:.2f}", share)
    if rates.rows and not rows_per_step:
        rates.notes = ["The start-up in the rates needs --samples, the samples that all ranks train in a step."]
    return [table for table in (rates, epochs) if table.rows]
