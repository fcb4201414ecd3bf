"""Starts a cell's ranks: here, on the hosts of a file, or on hosts of the test bed. Each launch is a separate mpirun."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time

from . import hostlist
from .failure import Failure, Unavailable


def built(program):
    """The path of a program. Raises Failure unless the program is there."""
    if not os.path.exists(program):
        raise Failure(f"there is no program {program}; cmake --build --preset release makes it")
    return program


class Launch:
    """One start of a task's program. Its folder holds all files that it leaves; `ended.json` is written last."""

    def __init__(self, task, index, folder, argv):
        self.task, self.index, self.folder, self.argv = task, index, folder, argv

    @property
    def ended_path(self):
        return os.path.join(self.folder, "ended.json")

    def ended(self):
        """{"exit", "seconds", "hosts"}, or None while it has not ended."""
        try:
            with open(self.ended_path) as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Failure(f"{self.ended_path} cannot be read: {error}") from None

    def last_words(self):
        try:
            with open(os.path.join(self.folder, "log.txt"), errors="replace") as file:
                return last_words(file.read())
        except OSError:
            return "it left no log"


# Lines of a log that are not the cause of a failure. srun reports the ranks that exited with a code after their own error
# messages (only srun reports ranks that a signal ended). mpirun warns that ssh has started before mpirun could register it.
REMARKS = re.compile(r"srun: .*: Exited with exit code \d+$|\S+ plm:\w+: Warning: setpgid|Run with --help")


def last_words(log):
    """A program's last line, which is its error message if it failed. For a program that never started, the launcher's message."""
    lost = re.search(r"^ *Remote daemon *: .* on node (\S+)$", log, re.MULTILINE)
    if lost:
        return f"mpirun has lost its connection to {lost[1]}"
    # mpirun frames its own messages in dashes; the program's message comes before them, and so does that of ssh.
    own, *framed = re.split(r"^-----+$", log, flags=re.MULTILINE)
    lines = [line.strip() for line in own.splitlines() if line.strip()]
    told = [line for line in lines if not REMARKS.match(line)]
    if framed and not told:
        paragraphs = [" ".join(part.split()) for part in framed[0].strip().split("\n\n")]
        told = [" ".join(paragraphs[: 2 if paragraphs[0].endswith(":") else 1])]
    return (told or lines or ["it printed nothing"])[-1]


def environment():
    """The environment for mpirun: root is allowed, and a lost host is detected in 45 s, before the ranks' own deadline, instead
    of minutes."""
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_oob_tcp_keepalive_time": "20",
        "OMPI_MCA_oob_tcp_keepalive_intvl": "5",
        "OMPI_MCA_oob_tcp_keepalive_probes": "5",
        **os.environ,
    }


def stop(process):
    """Ends a process and all processes of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
            break
        except ProcessLookupError:
            process.wait()
            break
        except subprocess.TimeoutExpired:
            continue
    # mpirun puts each ssh into a process group of its own, and does not end one that waits for a host.
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextlib.contextmanager
def signals_held():
    """Holds back signals that end the driver: inside Popen, they would leave a child that nobody knows of."""
    came = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def wait_for(argv, log, limit):
    """Runs a command to its end or the limit in seconds, with its output in a file. Returns its exit code, 124 at the limit."""
    process = None
    try:
        with signals_held():
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
            )
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        stop(process)
        log.write(f"\nended after its limit of {limit:g} seconds\n".encode())
        return 124
    except BaseException as error:
        if process is not None:
            stop(process)
        elif isinstance(error, OSError):
            raise Failure(f"{argv[0]} cannot be started: {error.strerror}") from None
        raise


def execute(argv, folder, limit, hosts):
    """Runs a launch's command to its end or the limit, and leaves log.txt and ended.json in the folder."""
    started = time.monotonic()
    with open(os.path.join(folder, "log.txt"), "wb") as log:
        code = wait_for(argv, log, limit)
    write_ended(folder, code, time.monotonic() - started, hosts)


def write_ended(folder, code, seconds, hosts):
    path = os.path.join(folder, "ended.json")
    with open(path + ".part", "w") as file:
        json.dump({"exit": code, "seconds": seconds, "hosts": hosts}, file)
    os.replace(path + ".part", path)


class Launcher:
    """Starts launches one after the other. `submit` is called for all tasks before `complete` is called for the first."""

    kind = "local"

    def __init__(self, mpirun="mpirun", limit=3600.0):
        self.mpirun, self.limit = mpirun, limit

    def submit(self, task, launches):
        pass

    def hosts(self, task):
        return platform.node()

    def command(self, task, argv):
        cell = task.cell
        if cell.nodes > 1:
            raise Failure(f"{cell.nodes} nodes need --hosts FILE, --testbed or --slurm")
        if cell.transport == "threads":
            return argv
        return [self.mpirun, "--bind-to", "none", "--oversubscribe", "-np", str(cell.world), *argv]

    def complete(self, task, launches, progress):
        """Runs the launches that have not ended; afterwards all have ended."""
        for launch in launches:
            progress(launch)
            execute(self.command(task, launch.argv), launch.folder, self.limit, self.hosts(task))

    def close(self):
        pass


class HostFile(Launcher):
    """The first hosts of a file with one host per line, as in mpirun's host files. A repeated host counts once. Settings after a
    name, such as slots=4, are ignored: a cell sets the number of ranks per node."""

    kind = "hosts"
    patience = 60.0

    def __init__(self, path, **more):
        super().__init__(**more)
        try:
            with open(path) as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise Failure(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Failure(f"{path} is a binary file, not a list of hosts") from None
        names = [name for number, line in enumerate(lines, 1) for name in self._names(line, f"{path}, line {number}")]
        self.names = list(dict.fromkeys(names))
        if not self.names:
            raise Failure(f"{path} names no host")
        self.reached, self.lost = set(), {}

    @staticmethod
    def _names(line, where):
        name, *settings = line.split("#")[0].split(maxsplit=1) or [""]
        if settings and not re.fullmatch(r"([\w-]+\s*=\s*\S+\s*)+", settings[0]):
            raise Failure(f"{where}: after a host, expected settings such as slots=4, not {settings[0].strip()!r}")
        try:
            names = hostlist.expand(name) if name else []
        except Failure as failure:
            raise Failure(f"{where}: {failure}") from None
        for one in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", one):
                raise Failure(f"{where}: {one!r} is not the name of a host, which consists of letters, digits, '.', '_' and '-'")
        return names

    def chosen(self, task):
        if task.cell.nodes > len(self.names):
            raise Failure(f"{task.cell.nodes} nodes are more than the {len(self.names)} hosts of the file")
        return self.names[: task.cell.nodes]

    def hosts(self, task):
        return hostlist.compress(self.chosen(task))

    def _on(self, hosts, processes, argv):
        slots = -(-processes // len(hosts))
        listed = ",".join(f"{name}:{slots}" for name in hosts)
        return [self.mpirun, "--bind-to", "none", "--host", listed, "--map-by", "slot", "-np", str(processes), *argv]

    def command(self, task, argv):
        return self._on(self.chosen(task), task.cell.processes, argv)

    def _why_not(self, hosts):
        """The error if mpirun does not start a program on each of these hosts; None if it does."""
        with tempfile.TemporaryFile() as log:
            code = wait_for(self._on(hosts, len(hosts), ["true"]), log, self.patience)
            log.seek(0)
            if code == 124:
                return f"no answer in {self.patience:g} seconds"
            return last_words(log.read().decode(errors="replace")) if code else None

    def _reach(self, hosts):
        """Raises Failure if mpirun cannot start a program on one of the hosts. With several hosts mpirun does not say which one
        failed, so that they are then tried one by one."""
        new = [name for name in hosts if name not in self.reached]
        if new and not self.lost.keys() & new:
            why = self._why_not(new)
            if why is None:
                self.reached.update(new)
                return
            for name in new:
                alone = self._why_not([name]) if len(new) > 1 else why
                if alone:
                    self.lost[name] = alone
                    break
            else:
                raise Failure(f"mpirun starts programs on each of the hosts alone, but not on all together: {why}")
        for name in new:
            if name in self.lost:
                raise Failure(f"mpirun starts no program on host {name}: {self.lost[name]}")

    def complete(self, task, launches, progress):
        hosts = self.chosen(task)
        if launches:
            self._reach(hosts)
        super().complete(task, launches, progress)
        if any(launch.ended()["exit"] for launch in launches):
            self.reached.difference_update(hosts)  # one of them may be the cause


class TestBed(Launcher):
    """Hosts made of network namespaces with shaped links (scripts/testbed.sh), one for each node of the cell, up only while
    needed."""

    kind = "testbed"
    bed = "experiment"

    def __init__(self, script, **more):
        super().__init__(**more)
        self.script, self.up = script, None

    def _call(self, *words):
        done = subprocess.run(
            [self.script, *words],
            env={**environment(), "CONVOY_BED": self.bed},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line] or [f"it ended with {done.returncode}"]
            raise Unavailable("the test bed is not up: " + "; ".join(line.removeprefix("testbed.sh: ") for line in lines[-2:]))

    def hosts(self, task):
        return hostlist.compress(f"{self.bed}-{i}" for i in range(task.cell.nodes))

    def command(self, task, argv):
        cell = task.cell
        slots = -(-cell.processes // cell.nodes)
        return ["env", f"CONVOY_BED={self.bed}", self.script, "run", "-np", str(cell.processes), "--per-host", str(slots), *argv]

    def complete(self, task, launches, progress):
        wanted = (task.cell.nodes, task.cell.rate or "1gbit")
        if self.up != wanted:
            self.close()
            self._call("up", "--hosts", str(wanted[0]), "--rate", wanted[1])
            self.up = wanted
        super().complete(task, launches, progress)

    def close(self):
        if self.up:
            self.up = None
            self._call("down")


class ByCell(Launcher):
    """Cells of one node here, cells of several in the test bed."""

    kind = "local and testbed"

    def __init__(self, script, **more):
        super().__init__(**more)
        self.bed = TestBed(script, **more)

    def _of(self, task):
        return self.bed if task.cell.nodes > 1 or task.cell.rate else self

    def hosts(self, task):
        return self.bed.hosts(task) if self._of(task) is self.bed else super().hosts(task)

    def complete(self, task, launches, progress):
        if self._of(task) is self.bed:
            self.bed.complete(task, launches, progress)
        else:
            super().complete(task, launches, progress)

    def close(self):
        self.bed.close()
