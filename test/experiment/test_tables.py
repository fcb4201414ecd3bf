"""The tables' text. CONVOY_GOLDEN=write in the environment writes golden/ anew; read the changes before committing them."""

import os

from support import HERE, Case, task

from experiments import page, results
from experiments.tables import TABLES
from experiments.tables.common import MODELS


def record(one, throughput, **more):
    """A result of a task that never ran."""
    cell = one.cell
    return {
        "key": one.key,
        "name": one.name,
        "status": "ok",
        "cell": cell.as_json(),
        "text": cell.text(),
        "settings": cell.settings_text(),
        "family": cell.family,
        "pace": cell.pace,
        "protocol": {**one.protocol.as_json(), "text": one.protocol.text()},
        "finished": "2026-01-01T00:00:00+00:00",
        "commit": "0123456789ab",
        "versions": {"MPI": "Open MPI 9.9.9"},
        "machine": {
            "host": "box",
            "processor": "Some CPU",
            "processors": 2,
            "memory_gib": 4,
            "gpus": [],
            "system": "Some Linux 1",
            "kernel": "6.0",
        },
        "how": {"host": "ran on processors", "replay": "replayed"}[cell.exec],
        "hosts": "box",
        "launcher": "local",
        "drawn": False,
        "folder": "runs/x",
        "throughput": throughput,
        "wall_seconds": 30.0,
        "world": cell.workers,
        "device": "cpu",
        "data": "drawn digits",
        "steps": 20,
        "count": 20,
        "mean": 0.5,
        "last": 0.4,
        "total": 10.0,
        "passed": 2560,
        "epochs": [],
        "parameters": 1000,
        **more,
    }


def results_of(folder):
    """A result of every kind."""
    store = results.Store(folder)
    epochs = [
        {"epoch": 0, "seconds": 5.0, "test_seconds": 1.0, "test_accuracy": 0.75},
        {"epoch": 1, "seconds": 4.5, "test_seconds": 1.0, "test_accuracy": 0.9},
    ]
    lines = [[10, 90.0], [20, 100.0]]
    twice = {"model": "convnet", "batch": 64, "options": ("--copies", "0", "--repeats", "1")}
    whole = {"kind": "runtime", "epochs": 2, "described": 1000}
    seven = {"kind": "relaunches"}
    narrow = {"model": "bert", "batch": 8, "options": ("--layers", "2")}
    prediction = {
        "comm": "ring",
        "step_seconds": 1.5,
        "exposed_seconds": 0.25,
        "throughput": 150.0,
        "scalability": 1.8,
        "binds": "NIC of node 0",
    }
    records = [
        record(task(), 100.0, lines=lines, epochs=epochs),
        record(task(ranks_per_node=2, scale_lr=True), 180.0, lines=[[10, 170.0], [20, 180.0]], epochs=epochs),
        record(task(ranks_per_node=2, comm="ps"), 160.0, lines=[[10, 150.0], [20, 160.0]], epochs=epochs),
        record(
            task(
                nodes=2,
                exec="replay",
                replay=(81.84, 120.7),
                machines="lm1+lm6",
                cluster="pair",
                rate="1gbit",
                bucket_mib="tensor",
                no_overlap=True,
            ),
            141.0,
            lines=[[10, 140.0]],
            prediction=prediction,
            launcher="testbed",
        ),
        record(task(seven, **narrow), 70.0, runs=[70.0 + i for i in (-3, -2, -1, 0, 1, 2, 3)], unit="words", units_per_row=32.0),
        record(task(seven, ranks_per_node=2, **narrow), 126.0, runs=[126.0] * 7, unit="words", units_per_row=32.0),
        record(task(whole, **twice), 1000.0, described_seconds=7205.0, around_seconds=2.0),
        record(task(whole, seed=1, **twice), 1000.0, described_seconds=7195.0, around_seconds=2.0),
        record(task(whole, ranks_per_node=2, **twice), 1900.0, described_seconds=3800.0, around_seconds=2.0),
        {
            **record(
                task({"kind": "prediction"}, nodes=16, ranks_per_node=2, cluster="pair"),
                0,
                prediction={**prediction, "throughput": 2000.0, "scalability": 25.0},
            ),
            "how": "predicted",
        },
        {**record(task(seed=13), 0), "status": "failed", "error": "launch 0 ended with 1: rank 1 does not answer"},
        {**record(task(nodes=3, rate="1gbit"), 0), "status": "left out", "error": "the test bed is not up: it needs root"},
    ]
    for one in records:
        if one["how"] == "predicted" or one["status"] != "ok":
            del one["throughput"]
        store.add(one)
    return results.Store(folder)


class Tables(Case):
    def golden(self, name, text):
        path = os.path.join(HERE, "golden", name)
        if os.environ.get("CONVOY_GOLDEN") == "write":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        with open(path) as file:
            self.assertEqual(text, file.read(), name)

    def test_all_tables_of_a_folder(self):
        store = results_of(self.path("out"))
        for name, make in TABLES.items():
            if name != "bandwidth":
                tables = make(store)
                self.golden(f"{name}.md", "\n".join(table.markdown() for table in tables))
        self.golden("throughput.csv", TABLES["throughput-csv"](store)[0].csv())

    def test_every_table_works_without_results(self):
        store = results.Store(self.path("none"))
        for name, make in TABLES.items():
            for table in make(store):
                self.assertIn("###", table.markdown(), name)

    def test_own_rows_are_told_apart_from_published_ones(self):
        lines = TABLES["scalability"](results_of(self.path("out")))[0].rows
        kinds = {row[-1].split(",")[0] for row in lines}
        self.assertEqual(kinds, {"published", "ran on processors", "replayed", "predicted"})

    def test_hosts_are_not_said_to_be_the_machine_of_the_driver(self):
        note = "the device is that of the machine from which the experiment was started"
        for launcher, said in (("local", False), ("testbed", False), ("hosts", True), ("slurm", True)):
            store = results.Store(self.path(launcher))
            store.add(record(task(nodes=2), 100.0, launcher=launcher, hosts="gn[01-02]"))
            (table,) = TABLES["test-beds"](store)
            self.assertEqual(note in table.markdown(), said, launcher)

    def test_a_half_finished_table_has_no_accuracy_of_drawn_data(self):
        store = results.Store(self.path("out"))
        store.add(
            record(
                task(model="transformer"),
                10.0,
                drawn=True,
                lines=[],
                epochs=[{"epoch": 0, "seconds": 5.0, "test_seconds": 1.0, "test_accuracy": 0.2}],
            )
        )
        text = TABLES["epochs"](store)[0].markdown() + TABLES["log"](store)[-1].markdown()
        own = [line for line in text.splitlines() if MODELS["transformer"] in line]
        self.assertNotIn("20.00%", text)
        self.assertTrue(own)

    def test_a_run_that_classified_nothing_has_its_test_and_no_accuracy(self):
        store = results.Store(self.path("out"))
        epoch = {"epoch": 0, "seconds": 5.0, "test_seconds": 1.25, "test_accuracy": None}
        store.add(record(task(model="transformer"), 10.0, lines=[], epochs=[epoch]))
        own = [row for row in TABLES["epochs"](store)[0].rows if MODELS["transformer"] in row[0] and row[4] == "5.00"]
        self.assertEqual([row[5:7] for row in own], [["1.25", ""]])
        self.assertIn("Epoch 0 in 5.00 sec, test time 1.25 sec |", "".join(t.markdown() for t in TABLES["log"](store)))

    def test_the_page_has_everything_and_says_when_matplotlib_is_missing(self):
        import builtins
        from unittest import mock

        imported = builtins.__import__

        def without(name, *rest, **more):
            if name.split(".")[0] == "matplotlib":
                raise ImportError(name)
            return imported(name, *rest, **more)

        with mock.patch.object(builtins, "__import__", without), mock.patch.object(page, "note", self._note):
            path = page.write_page(self.path("out"), results_of(self.path("out")), "A <title>", "", "Predictions are left out.")
        self.assertEqual(len(self.notes), 1)
        self.assertIn("python3-matplotlib", self.notes[0])
        with open(path) as file:
            text = file.read()
        for part in (
            "A &lt;title&gt;",
            "Predictions are left out.",
            "Scalability",
            "141.00",
            "published, set 3",
            "python3-matplotlib",
            "Cells without a result",
        ):
            self.assertIn(part, text)


class Plots(Case):
    def test_pictures_of_everything(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not here")
        path = page.write_page(self.path("out"), results_of(self.path("out")), "Title", "")
        made = os.listdir(self.path("out", "plots"))
        for name in ("throughput-resnet18-node", "throughput-resnet18-nodes", "throughput-bert-node", "logs"):
            self.assertIn(name + ".svg", made)
            self.assertIn(name + ".png", made)
        with open(path) as file:
            self.assertIn("data:image/svg+xml;base64,", file.read())
