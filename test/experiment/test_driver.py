import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import unittest.mock

from support import BUILD, ROOT, Case, setting, task

from experiments import launch, predictions, protocols, results
from experiments.driver import Progress


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def left_running(word):
    """The processes with this word in their command lines. A process that was killed may take a moment to disappear."""
    deadline = time.monotonic() + 10
    while True:
        left = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if word.encode() in command_line(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def lines_of(path):
    try:
        with open(path) as file:
            return file.read().count("\n")
    except FileNotFoundError:
        return 0


class Runs(Case):
    def test_cumulative_throughput_and_the_record(self):
        driver = self.driver()
        self.assertEqual(driver.run(setting(task(batch=100, ranks_per_node=2))), 0)
        (record,) = results.Store(self.path("out")).runs()
        # Steps of 0.5 s, then 0.1 s, with 200 rows each: 800 rows in 1.2 s, 1600 in 1.6 s.
        self.assertEqual([(step, round(rate, 3)) for step, rate in record["lines"]], [(4, 666.667), (8, 1000.0)])
        self.assertAlmostEqual(record["throughput"], 1000)
        self.assertEqual((record["count"], record["passed"], record["world"], record["how"]), (8, 1600, 2, "ran on processors"))
        for field in ("machine", "versions", "commit", "hosts", "finished", "settings", "wall_seconds"):
            self.assertTrue(record[field] or field == "commit", field)

    def test_the_median_of_seven_relaunches(self):
        driver = self.driver()
        driver.run(setting(task({"kind": "relaunches", "ignore": 5, "measure": 10, "steps": 20}, batch=100)))
        (record,) = driver.store.runs()
        self.assertEqual([round(run, 2) for run in record["runs"]], [round(1000 * 1.01**i, 2) for i in range(7)])
        self.assertAlmostEqual(record["throughput"], 1000 * 1.01**3)

    def test_a_shortened_whole_run_says_what_was_estimated(self):
        driver = self.driver()
        driver.run(setting(task({"kind": "runtime", "epochs": 1, "described": 1000}, batch=10)))
        (record,) = driver.store.runs()
        inside = 40 * 0.01 + 2 * 0.04 + 1.5
        self.assertAlmostEqual(record["described_seconds"], record["around_seconds"] + 1000 * inside, places=3)
        self.assertIn("shortened from 1000", record["protocol"]["text"])

    def test_a_failing_cell_is_reported_and_the_rest_goes_on(self):
        driver = self.driver()
        tasks = task(seed=13, ranks_per_node=2), task(batch=4), task(nodes=2), task(batch=5)
        self.assertEqual(driver.run(setting(*tasks)), 2)
        store = results.Store(self.path("out"))
        self.assertEqual(len(store.runs()), 2)
        why = [record["error"] for record in store.without_result()]
        self.assertRegex(why[0], "launch 0 ended with 1: mnist_resnet: rank 1 does not answer")
        self.assertRegex(why[1], "2 nodes need --hosts FILE, --testbed or --slurm")
        self.assertEqual(sum("FAILED" in note for note in self.notes), 2)

    def test_finished_cells_are_kept_and_failed_ones_run_again(self):
        first = self.driver()
        first.run(setting(task(seed=13), task(batch=4)))
        before = first.store.records[task(batch=4).key]
        again = self.driver()
        self.assertEqual(again.run(setting(task(seed=13), task(batch=4), task(batch=5))), 1)
        self.assertEqual(again.store.records[task(batch=4).key], before)
        self.assertEqual(len(again.store.runs()), 2)
        self.assertTrue(any("1 of 3 cells are finished and kept" in note for note in self.notes))

    def test_a_killed_driver_goes_on_where_it_was(self):
        path = self.write(
            "three.toml",
            """
[[cells]]
data = "digits"
batch = [4, 5]
protocol = { kind = "cumulative", steps = 8, log_every = 4 }
[[cells]]
data = "digits"
seed = 14
protocol = { kind = "cumulative", steps = 8, log_every = 4 }
""",
        )
        words = [
            sys.executable,
            os.path.join(ROOT, "bench", "experiment"),
            "run",
            path,
            "--build",
            BUILD,
            "--out",
            self.path("out"),
            "--no-page",
        ]
        running = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(lambda: running.poll() is None and running.kill())
        log = self.path("out", "results.jsonl")
        deadline = time.monotonic() + 20
        while lines_of(log) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGTERM)
        self.assertEqual(running.wait(timeout=20), 130)
        self.assertFalse(left_running(self.folder))
        # A driver that is killed by SIGKILL may leave half a line.
        with open(log, "a") as file:
            file.write('{"key": "half')
        store = results.Store(self.path("out"))
        self.assertEqual(len(store.runs()), 2)
        # A resumed driver writes whole lines after the half one.
        store.add({"key": "x", "status": "failed", "error": "", "protocol": {}})
        self.assertEqual(sorted(results.Store(self.path("out")).records), sorted(store.records))
        with open(log) as file:
            self.assertEqual([json.loads(line)["status"] for line in file], ["ok", "ok", "failed"])

    def test_finished_launches_of_a_cell_are_kept(self):
        one = task({"kind": "relaunches", "relaunches": 3, "ignore": 5, "measure": 10, "steps": 20}, batch=10)
        driver = self.driver()
        launches = driver._launches(one)
        launch.execute(launches[1].argv, launches[1].folder, 10, "elsewhere")
        stamp = os.stat(launches[1].ended_path).st_mtime_ns
        driver.run(setting(one))
        self.assertEqual(os.stat(launches[1].ended_path).st_mtime_ns, stamp)
        self.assertEqual(len(driver.store.runs()[0]["runs"]), 3)

    def test_two_drivers_do_not_share_a_folder(self):
        driver = self.driver()
        os.makedirs(self.path("out"))
        with open(self.path("out", "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refused("another experiment is running in", driver.run, setting(task()))
        self.assertEqual(driver.run(setting(task())), 0)

    def test_a_broken_line_in_the_middle_is_an_error(self):
        os.makedirs(self.path("out"))
        self.write("out/results.jsonl", 'nonsense\n{"key": "a", "status": "ok"}\n')
        self.refused("line 1 is not a result", results.Store, self.path("out"))

    def test_a_limit_ends_a_launch(self):
        driver = self.driver(launch.Launcher(limit=0.5))
        self.assertEqual(driver.run(setting(task(seed=14))), 1)
        self.assertRegex(driver.store.without_result()[0]["error"], "ended with 124: ended after its limit of 0.5 seconds")

    def test_a_signal_while_a_program_is_started_leaves_no_process(self):
        word = f"started{os.getpid()}"
        start = subprocess.Popen

        def interrupted(*words, **options):
            process = start(*words, **options)
            signal.raise_signal(signal.SIGTERM)
            return process

        def end(number, frame):
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, end))
        with open(self.path("log"), "wb") as log, unittest.mock.patch("subprocess.Popen", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                launch.wait_for([sys.executable, "-c", "import time; time.sleep(600)", word], log, 30)
        self.assertFalse(left_running(word))

    def test_hosts_of_a_file(self):
        path = self.write("hosts", "gn[03-04] slots=4 max_slots = 8\n# a remark\nlm1\ngn03\n")
        hosts = launch.HostFile(path)
        one = task(nodes=2, ranks_per_node=2)
        self.assertEqual(hosts.hosts(one), "gn[03-04]")
        self.assertIn("gn03:2,gn04:2", hosts.command(one, ["program"]))
        self.refused("4 nodes are more than the 3 hosts", hosts.command, task(nodes=4), ["program"])
        self.refused("names no host", launch.HostFile, self.write("none", "\n"))
        self.assertEqual(hosts.command(task(ranks_per_node=3, transport="threads"), ["program"])[-4:], ["slot", "-np", "1", "program"])

    def test_a_file_that_is_no_list_of_hosts(self):
        for text, sentence in (
            ("gn01\ngn02 gn03\n", "hosts, line 2: after a host, expected settings such as slots=4, not 'gn03'"),
            ("gn01:4\n", "hosts, line 1: 'gn01:4' is not the name of a host"),
            ("me@gn01\n", "hosts, line 1: 'me@gn01' is not the name of a host"),
            ("--gn01\n", "hosts, line 1: '--gn01' is not the name of a host"),
            ("# hosts\n\ngn[1-\n", "hosts, line 3: 'gn\\[1-' is not a list of hosts: its brackets do not match"),
        ):
            self.refused(sentence, launch.HostFile, self.write("hosts", text))
        with open(self.path("binary"), "wb") as file:
            file.write(b"\x7fELF\xff\xfe")
        self.refused("binary is a binary file, not a list of hosts", launch.HostFile, self.path("binary"))
        self.refused("gone cannot be read: No such file", launch.HostFile, self.path("gone"))

    def test_hosts_that_are_down_are_named_and_the_rest_goes_on(self):
        mute = f"mute{os.getpid()}"
        hosts = launch.HostFile(self.write("hosts", f"gn01\n{mute}\n"))
        hosts.patience = 3  # a host that does answer may take a second on a busy machine
        driver = self.driver(hosts)
        self.assertEqual(driver.run(setting(task(nodes=2), task(batch=4), task(nodes=2, batch=5))), 2)
        sentence = f"mpirun starts no program on host {mute}: no answer in 3 seconds"
        self.assertEqual([record["error"] for record in driver.store.without_result()], [sentence] * 2)
        self.assertFalse(left_running(mute))
        again = self.driver(launch.HostFile(self.write("hosts", "gn01\ndown1\n")))
        self.assertEqual(again.run(setting(task(nodes=2))), 1)
        self.assertEqual(
            again.store.records[task(nodes=2).key]["error"],
            "mpirun starts no program on host down1: ssh: connect to host down port 22: Connection refused",
        )

    def test_last_words_of_mpirun(self):
        exited = "-----\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n-----\n"
        begun = "[lm1:11] plm:rsh: Warning: setpgid(12,12) failed in parent with errno=Permission denied(13)\n"
        for log, words in (
            ("Step3: 9 data/sec\nrank 1 does not answer\n" + exited, "rank 1 does not answer"),
            ("no such option\nRun with --help for more information.\n" + exited, "no such option"),
            (
                begun + "-----\nmpirun could not access\nan executable:\n\nExecutable: /a\nNode: gn01\n\nwhile starting.\n-----\n",
                "mpirun could not access an executable: Executable: /a Node: gn01",
            ),
            (
                "Step3: 9 data/sec\n-----\nORTE has lost communication with a remote daemon.\n\n"
                "  HNP daemon   : [[1,0],0] on node lm1\n  Remote daemon: [[1,0],2] on node gn02\n-----\n",
                "mpirun has lost its connection to gn02",
            ),
            ("", "it printed nothing"),
        ):
            self.assertEqual(launch.last_words(log), words)

    def test_time_left(self):
        now = [0.0]
        progress = Progress(2, 4, clock=lambda: now[0])
        self.assertEqual(progress.left(), "")
        one = task({"kind": "relaunches", "relaunches": 3, "measure": 1})
        progress.begin(one, launch.Launch(one, 0, self.folder, []))
        now[0] = 60
        progress.begin(one, launch.Launch(one, 1, self.folder, []))
        self.assertRegex(self.notes[-1], r"^\[1/2\] resnet18 .*: relaunches, launch 2 of 3, about 3:00 left$")

    def test_programs_that_are_missing(self):
        driver = self.driver()
        driver.run(setting(task(model="bert")))
        self.assertRegex(driver.store.without_result()[0]["error"], "there is no program .*bert_pretrain; cmake --build")


class Predictions(Case):
    def test_cells_that_ran_and_cells_that_only_are_predicted(self):
        self.write("pair.json", "{}")
        driver = self.driver()
        ran, only = (
            task(batch=100, cluster="pair"),
            task({"kind": "prediction"}, nodes=16, ranks_per_node=2, batch=100, cluster="pair"),
        )
        self.assertEqual(driver.run(setting(ran, only)), 0)
        answers = [driver.store.records[one.key]["prediction"]["throughput"] for one in (ran, only)]
        # One rank ran at 500 samples/s; the larger cell is predicted from that.
        self.assertEqual([round(a) for a in answers], [500, 14400])
        self.assertEqual(driver.store.records[only.key]["how"], "predicted")

    def test_servers_beside_the_workers_are_ranks_of_the_cluster(self):
        words = predictions.Predictor("", "").words(task(nodes=2, ranks_per_node=3, comm="ps", servers=2).cell, None)
        self.assertIn("--nodes 2 --ranks-per-node 4 --comm ps --servers 2 --servers-beside", " ".join(words))
        uneven = task(nodes=2, ranks_per_node=3, comm="ps", servers=1).cell
        self.refused("7 ranks on 2 nodes", predictions.Predictor("", "").words, uneven, None)

    def test_options_of_the_exchange_are_predicted_with(self):
        options = ("--codec", "topk", "--codec-fraction=0.1", "--threads", "2", "--background")
        words = predictions.Predictor("", "").words(task(nodes=2, ranks_per_node=1, optimizer="muon", options=options).cell, None)
        self.assertEqual(words[-6:], ["--optimizer", "muon", "--codec", "topk", "--codec-fraction=0.1", "--background"])

    def test_what_cannot_be_predicted_is_said_and_no_failure(self):
        self.write("pair.json", "{}")
        driver = self.driver()
        tasks = (
            task({"kind": "prediction"}, batch=666, cluster="pair"),
            task({"kind": "prediction"}, cluster="none such"),
            task({"kind": "prediction"}, model="bert", cluster="pair", options=("--layers", "2")),
        )
        self.assertEqual(driver.run(setting(*tasks)), 0)
        self.assertRegex(self.notes[0], "no prediction for .*: predict: no worker holds a batch of 666")
        self.assertRegex(self.notes[1], "there is no cluster file none such")
        self.assertRegex(self.notes[2], "the simulator knows bert only in its published sizes, not with --layers")

    def test_without_the_program_one_sentence_says_so(self):
        driver = self.driver()
        driver.predictor.program = self.path("predict")
        driver.run(setting(task({"kind": "prediction"}, cluster="pair")))
        self.assertEqual(self.notes, [f"Predictions are left out: there is no program {self.path('predict')}."])


class Start(Case):
    def test_the_start_in_cumulative_rates_is_found(self):
        lines = [(step, step * 128 / (30 + 1.5 * step)) for step in (200, 400, 600)]
        begin, step = protocols.start_up(lines, 128)
        self.assertAlmostEqual(begin, 30)
        self.assertAlmostEqual(step, 1.5)
        self.refused("two lines", protocols.start_up, lines[:1], 128)
