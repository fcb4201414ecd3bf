"""Cells as Slurm jobs: one sbatch script per task, whose job array runs the task's relaunches one at a time."""

import os
import shlex
import subprocess
import time

from . import results
from .failure import Failure
from .launch import Launcher, environment


def array_text(indices):
    """Array indices as sbatch takes them: 0-2,5."""
    runs = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def script_text(task, launches, options, srun):
    """The batch script. Each element of the array runs one launch and leaves log.txt and ended.json in the launch's folder."""
    cell = task.cell
    folder = os.path.dirname(launches[0].folder)
    # The commands of the launches differ only in the folder.
    quoted = [[shlex.quote(part) if part else "" for part in word.split(launches[0].folder)] for word in launches[0].argv]
    command = " ".join('"$folder"'.join(parts) or "''" for parts in quoted)
    # In a directive, sbatch splits words at blanks and interprets %.
    output = '"' + folder.replace("%", "%%") + '/slurm-%a.txt"'
    directives = [
        f"--job-name=convoy-{task.name}",
        f"--nodes={cell.nodes}",
        f"--ntasks={cell.processes}",
        f"--ntasks-per-node={-(-cell.processes // cell.nodes)}",
        f"--array={array_text(launch.index for launch in launches)}%1",
        f"--output={output}",
        "--exclusive",
    ]
    if cell.threads:
        directives.append(f"--cpus-per-task={cell.threads * cell.world // cell.processes}")
    if cell.exec == "cuda":
        directives.append(f"--gpus-per-node={cell.ranks_per_node}")
    directives += options
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives), "set -u"]
    if cell.threads:
        lines.append(
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # which srun has not taken over by itself since Slurm 22.05"
        )
    lines += [
        f"folder={shlex.quote(folder)}/$SLURM_ARRAY_TASK_ID",
        'mkdir -p "$folder"',
        "started=$(date +%s.%N)",
        f'{srun} {command} > "$folder/log.txt" 2>&1',
        "code=$?",
        'seconds=$(echo "$started $(date +%s.%N)" | awk \'{ printf "%.3f", $2 - $1 }\')',
        'printf \'{"exit": %d, "seconds": %s, "hosts": "%s"}\\n\' $code "$seconds" "$SLURM_JOB_NODELIST" > "$folder/ended.json.part"',
        'mv "$folder/ended.json.part" "$folder/ended.json"',
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


class Slurm(Launcher):
    """Submits all tasks, then waits for each. If an interrupted experiment has left a job in the queue, waits for it instead of
    submitting it again."""

    kind = "slurm"

    def __init__(self, options=(), srun="srun", sbatch="sbatch", squeue="squeue", poll=10.0, **more):
        super().__init__(**more)
        self.options, self.srun, self.sbatch, self.squeue, self.poll = list(options), srun, sbatch, squeue, poll

    def _run(self, *words):
        try:
            return subprocess.run(
                words,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        except OSError as error:
            raise Failure(f"{words[0]} cannot be started: {error.strerror}") from None

    @staticmethod
    def _job_path(launches):
        return os.path.join(os.path.dirname(launches[0].folder), "job")

    def _queued(self, launches):
        """squeue's state of the job that the file `job` beside the launches names; None once the job has left the queue."""
        try:
            with open(self._job_path(launches)) as file:
                job = file.read().strip()
        except OSError:
            return None
        if not job:
            return None
        listed = self._run(self.squeue, "--noheader", "--jobs", job, "--format", "%T %r")
        if listed.returncode:
            error = listed.stderr.strip()
            # A controller that does not answer or is restarting says nothing about the job.
            return None if "Invalid job id" in error else f"squeue does not report the state of job {job}: {error}"
        elements = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if line.strip()]
        if not elements:
            return None
        reasons = sorted({reason for _, reason in elements if reason not in ("None", "JobArrayTaskLimit")})
        waits = reasons and all(state == "PENDING" for state, _ in elements)
        return f"job {job} waits in the queue: {', '.join(reasons)}" if waits else f"job {job} runs"

    def submit(self, task, launches):
        if not launches or self._queued(launches):
            return
        script = os.path.join(os.path.dirname(launches[0].folder), "job.sbatch")
        with open(script, "w") as file:
            file.write(script_text(task, launches, self.options, self.srun))
        done = self._run(self.sbatch, "--parsable", script)
        if done.returncode:
            raise Failure(f"{self.sbatch} refused {script}: {(done.stderr or done.stdout).strip()}")
        with open(self._job_path(launches), "w") as file:
            file.write(done.stdout.strip().split(";")[0] + "\n")

    def complete(self, task, launches, progress):
        said = None
        for launch in launches:
            progress(launch)
            while launch.ended() is None:
                queued = self._queued(launches)
                if queued is None:
                    # A shared file system may show the file after the job has left the queue; listing the folder makes NFS
                    # refresh it.
                    time.sleep(min(self.poll, 3.0))
                    os.listdir(launch.folder)
                    if launch.ended() is None:
                        raise Failure(
                            f"its job has left the queue, and launch {launch.index} left no ended.json in {launch.folder}"
                            + self._why(launch)
                        )
                    break
                if queued != said and not queued.endswith(" runs"):
                    results.note(f"  {queued}")
                said = queued
                time.sleep(self.poll)

    @staticmethod
    def _why(launch):
        """Slurm's last line in the job's log, such as that the time limit was reached."""
        try:
            with open(os.path.join(os.path.dirname(launch.folder), f"slurm-{launch.index}.txt"), errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        except OSError:
            return ""
        return f": {lines[-1]}" if lines else ""
