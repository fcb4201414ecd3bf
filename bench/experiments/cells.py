"""A cell is one combination of model, ranks, batch and exchange. A setting file describes many cells and how they are measured."""

import dataclasses
import hashlib
import itertools
import json
import os
import re
import tomllib

from .failure import Failure
from .protocols import Protocol

PROGRAMS = {
    "resnet18": "mnist_resnet",
    "resnet50": "mnist_resnet",
    "resnet101": "mnist_resnet",
    "transformer": "sst5_transformer",
    "bert": "bert_pretrain",
    "convnet": "bigmnist",
}
EXECS = ("host", "cuda", "replay")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is run. `ranks_per_node` counts workers, without the servers beside them."""

    model: str = "resnet18"
    nodes: int = 1
    ranks_per_node: int = 1
    batch: int = 128
    exec: str = "host"
    comm: str = "ring"
    transport: str = "mpi"
    servers: int = 0  # parameter servers beside the workers; 0: the workers serve
    optimizer: str = ""  # empty: the program's own
    lr: float = 0.0  # 0: the program's own
    scale_lr: bool = False
    unsharded: bool = False
    bucket_mib: str = ""  # empty: the model's own
    no_overlap: bool = False
    keep_dead_taps: bool = False
    threads: int = 1  # per rank; 0: the available processors, divided among ranks
    data: str = "auto"
    seed: int = 0
    options: tuple = ()  # more words for the program's command line
    replay: tuple = ()  # exec replay: samples per second of a rank alone, or a recorded profile; one for all nodes or one for each
    rate: str = ""  # of a node's link in the test bed, such as 1gbit
    machines: str = ""  # the published machines that the cell reproduces, such as lm1+lm6
    cluster: str = ""  # the cluster file that predictions are made for

    @property
    def workers(self):
        return self.nodes * self.ranks_per_node

    @property
    def world(self):
        return self.workers + self.servers

    @property
    def processes(self):
        """What a launcher starts: the ranks, or one process whose threads are the ranks."""
        return 1 if self.transport == "threads" else self.world

    @property
    def pace(self):
        """Samples per second of the slowest replayed rank; None if profiles are replayed, or nothing."""
        return min(self.replay) if self.replay and not isinstance(self.replay[0], str) else None

    @property
    def is_server(self):
        return self.comm.startswith("ps")

    @property
    def family(self):
        """The kind of exchange, as the published curves distinguish it."""
        return "none" if self.workers == 1 and not self.servers else "parameter server" if self.is_server else "all-reduce"

    def text(self):
        exchange = {"none": "alone", "nccl": "nccl"}.get(self.comm, f"{self.comm} over {self.transport}")
        beside = f" + {self.servers} server{'s' if self.servers > 1 else ''}" if self.servers else ""
        return f"{self.model} {self.nodes}x{self.ranks_per_node}{beside}, batch {self.batch}, {self.exec}, {exchange}"

    def settings_text(self):
        """The choices in which published runs differ from convoy's defaults."""
        bucket = {"": "buckets of the model's own sizes", "tensor": "one exchange a tensor"}.get(
            self.bucket_mib, f"buckets of {self.bucket_mib} MiB"
        )
        return ", ".join(
            [
                "every rank reads all data" if self.unsharded else "data sharded",
                bucket,
                "exchanged after backward" if self.no_overlap else "overlapped with backward",
                "dead taps exchanged" if self.keep_dead_taps else "dead taps left out",
                "learning rate times world size" if self.scale_lr else "learning rate not scaled",
            ]
        )

    def words(self):
        """The program's options, except those of the protocol and of files."""
        words = ["--batch", str(self.batch), "--comm", self.comm]
        if self.model != "convnet":
            words += ["--model", self.model]
        words += ["--transport", self.transport, "--threads", str(self.threads), "--seed", str(self.seed)]
        if self.transport == "threads":
            words += ["--ranks", str(self.world)]
        if self.servers:
            words += ["--servers", str(self.servers), "--placement", "beside"]
        elif self.is_server:
            words += ["--servers", str(self.workers), "--placement", "among"]
        if self.exec == "cuda":
            words += ["--device", "cuda"]
        if self.exec == "replay":
            recorded = isinstance(self.replay[0], str)
            of_ranks = self.replay if len(self.replay) == 1 else [one for one in self.replay for _ in range(self.ranks_per_node)]
            each = [one if recorded else f"{one:g}" for one in of_ranks]
            words += ["--replay" if recorded else "--replay-rate", ",".join(each)]
        if self.optimizer:
            words += ["--optimizer", self.optimizer]
        if self.lr:
            words += ["--lr", f"{self.lr:g}"]
        if self.bucket_mib:
            words += ["--bucket-mib", self.bucket_mib]
        for flag in ("scale_lr", "unsharded", "no_overlap", "keep_dead_taps"):
            if getattr(self, flag):
                words.append("--" + flag.replace("_", "-"))
        return words + list(self.options)

    def as_json(self):
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Task:
    """A cell and how it is measured."""

    cell: Cell
    protocol: Protocol

    @property
    def key(self):
        """The same for the same cell and protocol, whatever file they came from."""
        text = json.dumps([self.cell.as_json(), self.protocol.as_json()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self):
        """Readable, unique, and valid as a folder name."""
        c = self.cell
        words = [self.protocol.kind, c.model, f"{c.nodes}x{c.ranks_per_node}", f"b{c.batch}", c.exec, c.comm, self.key]
        return re.sub(r"[^A-Za-z0-9.x-]", "_", "-".join(words))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting file: the experiment's title and description, and its tasks in order."""

    name: str
    title: str
    about: str
    tasks: tuple


def _value(where, field, value):
    """A field's value, converted for Cell; raises Failure if it has the wrong type."""
    if field.type in ("tuple", tuple):
        if not isinstance(value, list):
            raise Failure(f"{where}: {field.name} must be a list, not {value!r}")
        return tuple(value)
    kind = type(field.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if type(value) is not kind:
        raise Failure(f"{where}: {field.name} must be {kind.__name__}, not {value!r}")
    return value


def checked(cell, where):
    """The cell; raises Failure if its fields contradict each other."""
    if cell.model not in PROGRAMS:
        raise Failure(f"{where}: there is no model {cell.model!r}; models are " + ", ".join(PROGRAMS))
    if cell.exec not in EXECS:
        raise Failure(f"{where}: there is no exec {cell.exec!r}; execs are " + ", ".join(EXECS))
    for name in ("nodes", "ranks_per_node", "batch"):
        if getattr(cell, name) < 1:
            raise Failure(f"{where}: {name} must be at least 1, not {getattr(cell, name)}")
    if cell.comm == "none" and cell.world > 1:
        raise Failure(f"{where}: comm none is for one rank, not {cell.world}")
    if cell.servers and not cell.is_server:
        raise Failure(f"{where}: servers are for comm ps, ps-async and ps-stale, not {cell.comm}")
    if cell.transport == "threads" and cell.nodes > 1:
        raise Failure(f"{where}: transport threads is for one node, not {cell.nodes}")
    if cell.exec == "replay" and len(cell.replay) not in (1, cell.nodes):
        raise Failure(
            f"{where}: replay must list one rate or profile for all nodes, or one for each of the {cell.nodes} nodes, not {len(cell.replay)}"
        )
    if len({isinstance(one, str) for one in cell.replay}) > 1:
        raise Failure(f"{where}: replay must list rates or profiles, not both")
    return cell


def product(block, where):
    """The cells of a block: a list as a field (for `options` and `replay`, a list of lists) gives a cell for each of its values."""
    fields = {field.name: field for field in dataclasses.fields(Cell)}
    axes = []
    for name, value in block.items():
        if name not in fields:
            raise Failure(f"{where}: there is no field {name!r}; fields are " + ", ".join(fields))
        listed = isinstance(value, list)
        if fields[name].type in ("tuple", tuple):
            listed = listed and bool(value) and all(isinstance(v, list) for v in value)
        axes.append([(name, _value(where, fields[name], v)) for v in (value if listed else [value])])
    return [checked(Cell(**dict(choice)), where) for choice in itertools.product(*axes)]


def read_setting(path, overrides=None):
    """Reads a setting file. `overrides` replace fields of every cell, and protocol fields under "protocol"."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{path} is not a setting file: {error}") from None
    overrides = dict(overrides or {})
    protocol_overrides = overrides.pop("protocol", {})
    name = os.path.splitext(os.path.basename(path))[0]
    defaults = content.get("defaults", {})
    unknown = set(content) - {"title", "about", "defaults", "cells"}
    if unknown:
        raise Failure(f"{path}: there is no key {sorted(unknown)[0]!r}; keys are title, about, defaults, cells")
    for key in ("title", "about"):
        if not isinstance(content.get(key, ""), str):
            raise Failure(f"{path}: {key} must be a text, not {content[key]!r}")
    if not isinstance(defaults, dict):
        raise Failure(f"{path}: defaults must be a table, not {defaults!r}")
    blocks = content.get("cells", [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Failure(f"{path}: cells must be tables, each under [[cells]]")
    tasks = []
    for number, block in enumerate(blocks):
        where = f"{path}, cells {number}"
        merged = {**defaults, **block, **overrides}
        protocol = merged.pop("protocol", None)
        if not isinstance(protocol, dict):
            raise Failure(f'{where}: protocol is missing, such as protocol = {{ kind = "cumulative", steps = 400 }}')
        measured = Protocol.read({**protocol, **protocol_overrides}, where)
        tasks += [Task(cell, measured) for cell in product(merged, where)]
    if not tasks:
        raise Failure(f"{path}: there are no cells")
    return Setting(name, content.get("title", name), content.get("about", ""), tuple(dict.fromkeys(tasks)))
