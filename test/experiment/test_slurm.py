import os

from support import Case, setting, task

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

    def test_a_job_that_leaves_nothing_is_a_failure(self):
        driver = self.driver(self.slurm(sbatch="true"))
        self.assertEqual(driver.run(setting(task())), 1)
        self.assertRegex(driver.store.without_result()[0]["error"], "left the queue, and launch 0 left no ended.json")

    def test_arrays(self):
        self.assertEqual(array_text([0, 1, 2, 5]), "0-2,5")
        self.assertEqual(array_text([3]), "3")
