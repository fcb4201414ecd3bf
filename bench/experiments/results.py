"""Results as JSON Lines, one per task, each with its machine, software versions and commit."""

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys

from .failure import Failure


class Store:
    """The file results.jsonl of a folder. The last line of a task counts."""

    def __init__(self, folder):
        self.folder = folder
        self.path = os.path.join(folder, "results.jsonl")
        self.records = {}
        self.cut = 0
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise Failure(f"{self.path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                self.records[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                # Only the last line can be incomplete, if a driver was killed.
                if content.endswith(b"\n") or number != content.count(b"\n") + 1:
                    raise Failure(f"{self.path}, line {number} is not a result") from None
                self.cut = len(line)

    def add(self, record):
        line = json.dumps(record)
        os.makedirs(self.folder, exist_ok=True)
        with open(self.path, "ab") as file:
            if self.cut:
                file.truncate(file.tell() - self.cut)
                self.cut = 0
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[record["key"]] = json.loads(line)

    def finished(self, key):
        return self.records.get(key, {}).get("status") == "ok"

    def runs(self, kind=None):
        """Finished results with a throughput, in the order of their first line; only those of protocol `kind`, if given."""
        return [
            r
            for r in self.records.values()
            if r["status"] == "ok" and "throughput" in r and kind in (None, r["protocol"]["kind"])
        ]

    def of_kind(self, kind):
        return [r for r in self.records.values() if r["status"] == "ok" and r["protocol"]["kind"] == kind]

    def without_result(self):
        """The tasks that failed or that the machine could not run."""
        return [r for r in self.records.values() if r["status"] != "ok"]


def _output(*words):
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _first(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else ""


@functools.cache
def machine():
    """The machine that the driver runs on. The hosts of a launch are in the result's `hosts`."""
    try:
        with open("/proc/cpuinfo") as file:
            processor = _first(r"^model name\s*:\s*(.*)$", file.read())
        with open("/proc/meminfo") as file:
            memory = int(_first(r"^MemTotal:\s*(\d+)", file.read()) or 0) / (1 << 20)
    except OSError:
        processor, memory = "", 0.0
    gpus = [
        line.strip() for line in _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines() if line.strip()
    ]
    return {
        "host": platform.node(),
        "processor": processor or platform.machine(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory, 1),
        "gpus": gpus,
        "system": _first(r'^PRETTY_NAME="?([^"\n]*)', _output("cat", "/etc/os-release")) or platform.system(),
        "kernel": platform.release(),
    }


@functools.cache
def versions(program):
    """Software that a program was built with and runs on, as far as it can be determined."""
    linked = _output("ldd", program) if shutil.which("ldd") and os.path.exists(program) else ""

    def library(name):
        path = _first(rf"^\s*lib{name}\.so\S* => (\S+)", linked)
        return _first(r"\.so\.([0-9.]+)$", os.path.realpath(path)) if path else ""

    found = {
        "MPI": _first(r"^(?:mpirun|mpiexec)?\s*\(?((?:Open MPI|Intel|PRTE|HYDRA)\)?.*)$", _output("mpirun", "--version")).replace(
            ")", ""
        ),
        "oneDNN": library("dnnl"),
        "CUDA runtime": library("cudart"),
        "cuDNN": library("cudnn"),
        "NCCL": library("nccl"),
        "compiler": _first(r"(GCC: .*|clang version \S+)", _compiler_comment(program)),
        "Slurm": _first(r"slurm\S* (\S+)", _output("srun", "--version")),
        "driver": _first(r"^(\S+)$", _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")),
        "Python": platform.python_version(),
    }
    return {name: text for name, text in found.items() if text}


def _compiler_comment(program):
    if not os.path.exists(program):
        return ""
    return _output("readelf", "-p", ".comment", program)


@functools.cache
def commit(root):
    """The commit of the source tree, with a + if files differ from it; empty outside a clone."""
    name = _output("git", "-C", root, "rev-parse", "--short=12", "HEAD").strip()
    changed = _output("git", "-C", root, "status", "--porcelain", "--untracked-files=no").strip()
    return name + ("+" if name and changed else "")


def note(text):
    print(text, file=sys.stderr, flush=True)
