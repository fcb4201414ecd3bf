"""Oddities of the published tables are handled as the table `oddities` says."""

from support import Case

from experiments import published
from experiments.protocols import start_up
from experiments.tables import TABLES


class Published(Case):
    def test_repeats_are_filtered(self):
        self.assertTrue(
            all(
                row["source"] != "set 1b"
                for name in ("published_steps", "published_epochs", "published_throughput")
                for row in published.kept(name)
            )
        )
        self.assertFalse([key for key in published.logs() if key[:2] == ("resnet101", "lm6") and key[2] in "34"])
        self.assertEqual(len(published.logs()), 27)

    def test_the_second_step_1600_is_1800(self):
        steps = [step for _, step, _ in published.logs()["transformer", "lm6", "1"]]
        self.assertEqual(steps, list(range(200, 2000, 200)))

    def test_times_of_another_run_are_left_out(self):
        copied = [row for row in published.epochs() if row["seconds"] is None]
        self.assertEqual(
            [(r["model"], r["machines"], r["gpus"], r["epoch"], r["accuracy"]) for r in copied],
            [("resnet18", "lm1", "1", 1, 92.86)],
        )

    def test_start_up_explains_the_first_line(self):
        points = [(step, rate) for _, step, rate in published.logs()["resnet18", "lm1", "4"]]
        begin, step = start_up(points, 512)
        self.assertTrue(30 < begin < 50 and 1.5 < step < 1.7, (begin, step))
        for at, rate in points:
            self.assertLess(abs(at * 512 / (begin + at * step) / rate - 1), 0.02)

    def test_medians_of_seven_are_the_published_ones(self):
        for row in published.throughputs():
            if row["set"] == "3":
                runs = sorted(published.relaunches()[row["nodes"], int(row["gpus"]), row["batch"]])
                self.assertEqual((len(runs), runs[3]), (7, row["throughput"]))

    def test_averages_are_recomputed(self):
        means = {key[:3]: round(published.average_seconds(key[3])) for key in published.whole_runs() if key[4]}
        expected = {
            ("bigMNIST", 1, 1): "15:20:10",
            ("bigMNIST", 1, 2): "8:07:05",
            ("bigMNIST", 1, 3): "5:00:08",
            ("bigMNIST", 1, 4): "4:05:05",
            ("bigMNIST", 2, 1): "8:35:58",
            ("bigMNIST", 3, 1): "5:54:46",
            ("bigMNIST", 4, 1): "4:19:46",
        }
        for key, text in expected.items():
            self.assertLessEqual(abs(means[key] - published.seconds_of(text)), 1, key)

    def test_steps_that_are_not_due_and_the_epoch_zero(self):
        for dataset, nodes, gpus, runs, _ in published.whole_runs():
            for run in runs:
                self.assertEqual(run["epochs"], 1000 if dataset == "MNIST" else 10)
                if dataset == "bigMNIST":
                    self.assertEqual(run["steps"], run["due"] + 1)
        text = TABLES["runtime"](EMPTY)[0].markdown()
        self.assertIn("625 (due 469)", text)

    def test_quotients_stand_beside_what_is_printed(self):
        lines = TABLES["scalability"](EMPTY)[0].markdown().splitlines()
        (line,) = [line for line in lines if "lm6 (2)" in line and "ResNet-18" in line]
        self.assertRegex(line, r"198\.38 .* 120\.70 .* 1\.644 .* 1\.648")

    def test_no_set_is_divided_by_anothers_baseline(self):
        for row in published.throughputs():
            if row["set"] == "1":
                machine = "lm6" if row["machines"] == "lm6" else "lm1"
                self.assertAlmostEqual(row["baseline"], published.single()[row["model"], machine])


class Empty:
    records = {}

    def runs(self, kind=None):
        return []

    of_kind = runs

    def without_result(self):
        return []


EMPTY = Empty()
