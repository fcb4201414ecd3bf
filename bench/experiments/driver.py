"""Runs the tasks of a setting, keeps finished results, and continues after a cell that fails."""

import datetime
import fcntl
import os
import shutil
import time

from . import data, protocols, results
from .cells import PROGRAMS
from .failure import Failure, Unavailable
from .launch import Launch, built

HOW = {"host": "ran on processors", "cuda": "ran on GPUs", "replay": "replayed"}


def duration(seconds):
    """1:02:03, or 2:03."""
    seconds = round(seconds)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


class Progress:
    """Progress lines with the time left, estimated from the mean time of the launches so far."""

    def __init__(self, tasks, launches, clock=time.monotonic):
        self.tasks, self.launches, self.clock = tasks, launches, clock
        self.done = self.begun = 0
        self.started = clock()

    def left(self):
        if not self.begun:
            return ""
        return f", about {duration((self.clock() - self.started) / self.begun * (self.launches - self.begun))} left"

    def begin(self, task, launch):
        again = f", launch {launch.index + 1} of {task.protocol.launches}" if task.protocol.launches > 1 else ""
        results.note(f"[{self.done + 1}/{self.tasks}] {task.cell.text()}: {task.protocol.kind}{again}{self.left()}")
        self.begun += 1

    def end(self, task, text):
        self.done += 1
        results.note(f"[{self.done}/{self.tasks}] {task.cell.text()}: {text}")


class Driver:
    def __init__(self, root, build, out, launcher, predictor):
        """`root` is the source tree, `build` the folder with examples/ and bench/, `out` the experiment's own."""
        self.root, self.build, self.out = root, build, os.path.abspath(out)
        self.launcher, self.predictor = launcher, predictor
        self.store = results.Store(self.out)

    def program(self, task):
        if task.protocol.kind == "bandwidth":
            return os.path.join(self.build, "bench", "comm_bench")
        return os.path.join(self.build, "examples", PROGRAMS[task.cell.model])

    def _folder(self, task, index):
        return os.path.join(self.out, "runs", task.name, str(index))

    def argv(self, task, index):
        program = built(self.program(task))
        folder, cell = self._folder(task, index), task.cell
        if task.protocol.kind == "bandwidth":
            argv = [
                program,
                f"--benchmark_filter={task.protocol.filter or '.'}",
                f"--benchmark_out={os.path.join(folder, 'comm.json')}",
                "--benchmark_out_format=json",
                *cell.options,
            ]
            return argv + (["--ranks", str(cell.world)] if cell.transport == "threads" else [])
        return [program, *cell.words(), *data.words(cell, self.root, self.out), *task.protocol.words(folder)]

    def _launches(self, task):
        """All launches of a task. Clears the folders of launches that failed."""
        made = []
        for index in range(task.protocol.launches):
            folder = self._folder(task, index)
            launch = Launch(task, index, folder, self.argv(task, index))
            ended = launch.ended()
            if ended and ended["exit"]:
                shutil.rmtree(folder)
            os.makedirs(folder, exist_ok=True)
            made.append(launch)
        return made

    def _record(self, task, status, **fields):
        self.store.add(
            {
                "key": task.key,
                "name": task.name,
                "status": status,
                "cell": task.cell.as_json(),
                "text": task.cell.text(),
                "settings": task.cell.settings_text(),
                "family": task.cell.family,
                "pace": task.cell.pace,
                "protocol": {**task.protocol.as_json(), "text": task.protocol.text()},
                "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "machine": results.machine(),
                "versions": results.versions(self.program(task)),
                "commit": results.commit(self.root),
                **fields,
            }
        )

    def _finish(self, task, launches):
        ended = [launch.ended() for launch in launches]
        for launch, how in zip(launches, ended):
            if how["exit"]:
                raise Failure(f"launch {launch.index} ended with {how['exit']}: {launch.last_words()}")
        found = protocols.measure(task.protocol, [launch.folder for launch in launches], [how["seconds"] for how in ended])
        drawn = any(os.path.join(self.out, "drawn") in word for word in launches[0].argv)
        self._record(
            task,
            "ok",
            how=HOW[task.cell.exec],
            hosts=ended[0]["hosts"],
            launcher=self.launcher.kind,
            drawn=drawn,
            folder=os.path.relpath(os.path.dirname(launches[0].folder), self.out),
            argv=launches[0].argv,
            **found,
        )
        throughput = found.get("throughput")
        return (f"{throughput:.1f} samples/s" if throughput else "done") + f" in {duration(found['wall_seconds'])}"

    def _alone(self, task):
        """Samples per second of the fastest rank alone: the replayed rate, or a run here with the same model and batch."""
        cell = task.cell
        if cell.pace:
            return max(cell.replay)
        for record in self.store.runs():
            c = record["cell"]
            if (c["model"], c["batch"], c["exec"], c["options"]) == (
                cell.model,
                cell.batch,
                cell.exec,
                list(cell.options),
            ) and record["world"] == 1:
                return record["throughput"]
        return None

    def _predict(self, task):
        if not task.cell.cluster or self.predictor.missing:
            return
        try:
            answer = self.predictor.predict(task.cell, self._alone(task))
        except Failure as failure:
            results.note(f"  no prediction for {task.cell.text()}: {failure}")
            return
        record = self.store.records.get(task.key)
        if record is None or record.get("how") == "predicted":
            self._record(task, "ok", how="predicted", prediction=answer)
        elif record.get("prediction") != answer:
            self.store.add({**record, "prediction": answer})

    def run(self, setting):
        """Runs the unfinished tasks and returns the number of cells that failed. A lock keeps a second driver out of the folder."""
        os.makedirs(self.out, exist_ok=True)
        with open(os.path.join(self.out, "lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failure(f"another experiment is running in {self.out}") from None
            return self._run(setting)

    def _run(self, setting):
        wanted = [task for task in setting.tasks if task.protocol.launches]
        kept = [task for task in wanted if self.store.finished(task.key)]
        if kept:
            of = {self.store.records[task.key]["commit"] for task in kept}
            results.note(
                f"{len(kept)} of {len(wanted)} cells are finished and kept, from commit {', '.join(sorted(of)) or 'none'}"
                " (to run them again, choose another --out or delete its results.jsonl)"
            )
        left = [task for task in wanted if not self.store.finished(task.key)]
        progress = Progress(len(left), sum(task.protocol.launches for task in left))
        failed, ready = 0, []
        try:
            for task in left:
                try:
                    launches = self._launches(task)
                    self.launcher.submit(task, [launch for launch in launches if launch.ended() is None])
                    ready.append((task, launches))
                except Failure as failure:
                    failed += self._failed(task, failure, progress)
            for task, launches in ready:
                try:
                    self.launcher.complete(
                        task,
                        [launch for launch in launches if launch.ended() is None],
                        lambda launch, of=task: progress.begin(of, launch),
                    )
                    progress.end(task, self._finish(task, launches))
                except Failure as failure:
                    failed += self._failed(task, failure, progress)
        finally:
            self.launcher.close()
        for task in setting.tasks:
            self._predict(task)
        if self.predictor.missing and any(task.cell.cluster for task in setting.tasks):
            results.note(self.predictor.missing)
        return failed

    def _failed(self, task, failure, progress):
        """Records why a task has no result. Returns 1 if it failed, 0 if this machine cannot run it."""
        left_out = isinstance(failure, Unavailable)
        self._record(task, "left out" if left_out else "failed", error=str(failure))
        progress.end(task, f"{'left out' if left_out else 'FAILED'}: {failure}")
        return 0 if left_out else 1
