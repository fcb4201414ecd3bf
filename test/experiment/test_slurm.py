import os
from unittest import mock

from support import Case, setting, task

from experiments import results
from experiments.slurm import Slurm, array_text


class SlurmJobs(Case):
    def slurm(self, **more):
        return Slurm(poll=0.01, **more)

    def test_relaunches_are_one_array_and_ranks_see_slurms_variables(self):
        one = task(
            {"kind": "relaunches", "relaunches": 3, "ignore": 5, "measure": 10, "steps": 20},
            nodes=2,
            ranks_per_node=2,
            batch=10,
            threads=4,
        )
        driver = self.driver(self.slurm(options=["--partition=gpu"]))
        self.assertEqual(driver.run(setting(one)), 0)
        (record,) = driver.store.runs("relaunches")
        self.assertEqual(
            (record["hosts"], record["world"], record["launcher"], len(record["runs"])), ("gn[03-04]", 4, "slurm", 3)
        )
        folder = self.path("out", "runs", one.name)
        with open(os.path.join(folder, "job.sbatch")) as file:
            script = file.read()
        for line in (
            "--nodes=2",
            "--ntasks=4",
            "--ntasks-per-node=2",
            "--array=0-2%1",
            "--cpus-per-task=4",
            "--partition=gpu",
            "--exclusive",
        ):
            self.assertIn(f"#SBATCH {line}\n", script)
        with open(os.path.join(folder, "2", "log.txt")) as file:
            ranks = sorted(file.read().splitlines())
        self.assertEqual(ranks, [f"rank {i} of 4 on node {i // 2} of gn[03-04]" for i in range(4)])
        with open(os.path.join(folder, "job")) as file:
            self.assertEqual(file.read(), "77\n")

    def test_ranks_that_are_threads_are_one_task(self):
        one = task(ranks_per_node=2, transport="threads", threads=4)
        driver = self.driver(self.slurm())
        self.assertEqual(driver.run(setting(one)), 0)
        with open(self.path("out", "runs", one.name, "job.sbatch")) as file:
            script = file.read()
        for line in ("--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=8"):
            self.assertIn(f"#SBATCH {line}\n", script)

    def test_only_launches_without_a_result_are_submitted_again(self):
        one = task({"kind": "relaunches", "relaunches": 3, "ignore": 5, "measure": 10, "steps": 20}, batch=10)
        first = self.driver(self.slurm())
        first.run(setting(one))
        os.remove(self.path("out", "results.jsonl"))
        os.remove(self.path("out", "runs", one.name, "1", "ended.json"))
        again = self.driver(self.slurm())
        self.assertEqual(again.run(setting(one)), 0)
        with open(self.path("out", "runs", one.name, "job.sbatch")) as file:
            self.assertIn("--array=1%1\n", file.read())

    def test_failing_and_refused_jobs_are_reported_and_the_rest_goes_on(self):
        driver = self.driver(self.slurm())
        self.assertEqual(driver.run(setting(task(seed=13), task(batch=7))), 1)
        self.assertRegex(driver.store.without_result()[0]["error"], "ended with 1: mnist_resnet: rank 1 does not answer")
        self.assertEqual(len(driver.store.runs()), 1)
        closed = self.driver(self.slurm(options=["--partition=closed"]))
        self.assertEqual(closed.run(setting(task(batch=8))), 1)
        self.assertRegex(closed.store.records[task(batch=8).key]["error"], "invalid partition specified: closed")

    def killed(self):
        """The path of an sbatch that prints a job's number; the job leaves nothing but Slurm's own words."""
        path = self.write(
            "killed",
            """#!/bin/bash
echo "slurmstepd: error: *** JOB 77 ON gn03 CANCELLED DUE TO TIME LIMIT ***" > "$(dirname "$2")/slurm-0.txt"
echo 77
""",
        )
        os.chmod(path, 0o755)
        return path

    def queue(self, *lines):
        path = self.write("queue", "".join(line + "\n" for line in lines))
        patch = mock.patch.dict(os.environ, {"STAND_IN_QUEUE": path})
        patch.start()
        self.addCleanup(patch.stop)
        return path

    def test_a_job_that_leaves_nothing_is_a_failure(self):
        driver = self.driver(self.slurm(sbatch="true"))
        self.assertEqual(driver.run(setting(task())), 1)
        self.assertRegex(driver.store.without_result()[0]["error"], "left the queue, and launch 0 left no ended.json")

    def test_a_job_that_slurm_ends_is_reported_in_slurms_words(self):
        self.queue("RUNNING None", "ended")
        driver = self.driver(self.slurm(sbatch=self.killed()))
        self.assertEqual(driver.run(setting(task())), 1)
        self.assertRegex(driver.store.without_result()[0]["error"], r"left no ended.json in .*: .*DUE TO TIME LIMIT \*\*\*$")

    def test_what_a_job_waits_for_is_said_once_and_a_silent_controller_ends_no_job(self):
        queue = self.queue("PENDING None", "PENDING Priority", "PENDING Priority", "unreachable", "unreachable", "RUNNING None", "ended")
        driver = self.driver(self.slurm(sbatch=self.killed()))
        self.assertEqual(driver.run(setting(task())), 1)
        self.assertEqual(
            [note for note in self.notes if note.startswith("  ")],
            [
                "  job 77 waits in the queue: Priority",
                "  squeue does not report the state of job 77: slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            ],
        )
        with open(queue) as file:
            self.assertEqual(file.read(), "")

    def test_an_array_that_runs_one_element_at_a_time_does_not_wait(self):
        slurm = self.slurm()
        (launch,) = self.driver()._launches(task())
        with open(slurm._job_path([launch]), "w") as file:
            file.write("77\n")
        path = self.write("squeue", "#!/bin/sh\necho 'PENDING JobArrayTaskLimit'\necho 'RUNNING None'\n")
        os.chmod(path, 0o755)
        slurm.squeue = path
        self.assertEqual(slurm._queued([launch]), "job 77 runs")

    def test_folders_with_blanks_and_signs_of_percent(self):
        driver = self.driver(self.slurm())
        driver.out = self.path("of 50%j")
        driver.store = results.Store(driver.out)
        self.assertEqual(driver.run(setting(task())), 0)
        self.assertIn("slurm-0.txt", os.listdir(os.path.join(driver.out, "runs", task().name)))

    def test_arrays(self):
        self.assertEqual(array_text([0, 1, 2, 5]), "0-2,5")
        self.assertEqual(array_text([3]), "3")
