"""scripts/gpu.sh and its report, with stand-ins for the GPU and the programs."""

import json
import os
import pathlib
import shutil
import subprocess

from support import ROOT, Case

PROGRAMS = ("test_core_device", "test_optim_gpu", "test_comm_peer_gpu", "test_exec_cuda_gpu", "test_train_cuda_gpu")
STEP = {"samples_per_sec": 20, "step_ms": 2.0, "median_ms": 2.0, "most_ms": 3.0, "TFLOP_per_sec": 1.0}


def step(name, **more):
    return {"name": f"step/{name}", **STEP, **more}


class Gpu(Case):
    def setUp(self):
        super().setUp()
        for name in ("scripts/gpu.sh", "scripts/usage.sh", "bench/gpu_report.py"):
            target = pathlib.Path(self.folder, name)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), target)
        self.work = pathlib.Path(self.folder, "build", "gpu")
        self.work.mkdir(parents=True)
        pathlib.Path(self.folder, "bench", "results").mkdir()

    def program(self, path, *lines):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
        path.chmod(0o755)

    def run_script(self, *parts, **environment):
        """(the exit code, the output) of gpu.sh on a machine with an H100 and the libraries, but without nvcc. The programs were built
        elsewhere."""
        bins, libraries = pathlib.Path(self.folder, "bin"), pathlib.Path(self.folder, "libraries")
        self.program(bins / "nvidia-smi", 'case "$*" in *compute_cap*) echo 9.0 ;; *) echo "NVIDIA H100, 580" ;; esac')
        self.program(bins / "nvcc", "echo no nvcc here >&2", "exit 1")
        libraries.mkdir(exist_ok=True)
        for name in ("libcudnn.so.9", "libcublasLt.so.13"):
            libraries.joinpath(name).touch()
        self.work.joinpath("done.build").write_text("sm_90\n")
        self.work.joinpath("cuda").write_text("13.0\n")
        names = {"PATH": f"{bins}:/usr/bin:/bin", "CUDNN_PATH": str(libraries), **environment}
        done = subprocess.run(["bash", "scripts/gpu.sh", *parts], cwd=self.folder, env={**os.environ, **names}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.returncode, done.stdout

    lists = ("""[ "$1" = --list-test-cases ] && { echo "[doctest] listing"; echo "===="; echo "a case, and more<float>"; exit; }""",)

    def programs(self, *, bench=("exit 0",), but=()):
        """Stand-ins that end at once."""
        for name in PROGRAMS:
            if name not in but:
                self.program(self.work / name, *self.lists, f'[ "$1" = --count ] || echo "$1" >>{self.work / name}.runs')
        self.program(self.work / "gpu_bench", *bench)

    def runs(self, name):
        path = self.work / f"{name}.runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def page(self):
        (page,) = pathlib.Path(self.folder, "bench", "results").glob("nvidia-h100-*.md")
        return page.read_text()

    def test_what_was_built_elsewhere_runs_without_nvcc(self):
        self.programs(bench=[f"echo '{json.dumps(step('bert/128/bf16/batch:64'))}'"])
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertNotIn("nvcc", output)
        text = self.page()
        self.assertIn("CUDA 13.0.", text)
        self.assertIn("step/bert/128/bf16/batch:64", text)
        self.assertIn(f"{len(PROGRAMS)} of {len(PROGRAMS)} test cases passed", text)
        for name in PROGRAMS:
            self.assertEqual(self.work.joinpath(f"{name}.runs").read_text(), "-tc=a case? and more<float>\n")
        code, output = self.run_script()  # what is done is not done again
        self.assertEqual(code, 0, output)
        self.assertIn("bench is done", output)

    def test_a_program_that_does_not_end_when_asked_is_killed_and_runs_again(self):
        self.programs()
        self.program(self.work / PROGRAMS[0], *self.lists, "trap '' TERM", "while :; do sleep 1; done")
        code, output = self.run_script("tests", GPU_SECONDS="1")
        self.assertEqual(code, 1, output)
        self.assertIn(f"{len(PROGRAMS) - 1} of {len(PROGRAMS)} test cases passed", output)
        self.assertIn("tests was cut off", output)
        code, output = self.run_script("report")
        self.assertIn("Cut off, so that cases are missing: tests.", self.page())
        self.assertIn(f"{PROGRAMS[0]} a_case__and_more_float_ was cut off", self.page())
        self.programs()
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertEqual([self.runs(name) for name in PROGRAMS], [1] * len(PROGRAMS))
        self.assertNotIn("Cut off", self.page())

    def test_a_run_goes_on_with_what_has_not_been_measured(self):
        first, second = (json.dumps(step(f"bert/128/{precision}/batch:64")) for precision in ("bf16", "f16"))
        # The second case is slow unless the first one is left out.
        self.programs(bench=['case "$*" in *all_reduce*|*--list*|*codec*|*--properties*) exit 0 ;; esac', f"echo \"$*\" >>{self.work}/asked",
                             f"""case "$*" in *--but*) echo '{second}' ;; *) echo '{first}'; sleep 20 ;; esac"""])
        code, output = self.run_script(GPU_SECONDS="4")
        self.assertEqual(code, 1, output)
        self.assertIn("bench was cut off", output)
        self.assertIn("step/bert/128/bf16/batch:64", self.page())
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertIn("tests is done", output)
        self.assertEqual(self.work.joinpath("asked").read_text().splitlines(), ["", "--but build/gpu/bench.jsonl"])
        for precision in ("bf16", "f16"):
            self.assertIn(f"step/bert/128/{precision}/batch:64", self.page())

    def test_the_sanitizer_has_a_share_of_the_time_and_runs_what_it_has_not_run(self):
        self.programs(bench=["exit 0"])
        sanitizer = pathlib.Path(self.folder, "bin", "compute-sanitizer")
        slow = 'case "$*" in *racecheck*operation*agrees*) sleep 20 ;; esac'
        self.program(sanitizer, f"echo \"$*\" >>{self.work}/sanitized", slow, "echo ERROR SUMMARY: 0 errors")
        code, output = self.run_script("sanitizer", GPU_SECONDS="4")
        self.assertEqual(code, 1, output)
        self.program(sanitizer, f"echo \"$*\" >>{self.work}/sanitized", "echo ERROR SUMMARY: 0 errors")
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        asked = self.work.joinpath("sanitized").read_text().splitlines()
        self.assertEqual(len(asked), 8 + 1)
        self.assertEqual(asked[-1], asked[4])
        self.assertEqual(self.page().count("ERROR SUMMARY: 0 errors"), 8)

    def test_the_properties_of_the_gpu_are_kept(self):
        self.programs(bench=["""case "$*" in *--properties*) echo '{"deviceVer":900}' ;; esac"""])
        code, output = self.run_script("bench", "report")
        self.assertEqual(code, 0, output)
        (kept,) = pathlib.Path(self.folder, "bench", "results").glob("nvidia-h100-*.properties.json")
        self.assertEqual(json.loads(kept.read_text()), {"deviceVer": 900})

    def test_results_of_another_gpu_are_not_mixed_in(self):
        self.programs()
        self.work.joinpath("device").write_text("NVIDIA H200, 580\n")
        self.work.joinpath("bench.jsonl").write_text(json.dumps(step("bert/128/bf16/batch:64")) + "\n")
        for part in ("tests", "bench", "peers", "sanitizer"):
            self.work.joinpath(f"done.{part}").touch()
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertEqual(self.runs(PROGRAMS[0]), 1)
        self.assertNotIn("step/bert", self.page())

    def report(self, bench, peers=(), cases=()):
        """The page's lines."""
        self.work.joinpath("cases").write_text("".join(name + "\n" for name in cases))
        for name, rows in (("bench.jsonl", bench), ("peers.jsonl", peers)):
            self.work.joinpath(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = subprocess.run(["python3", "bench/gpu_report.py", "build/gpu", "NVIDIA H100, 580", "13.0"], cwd=self.folder,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (page,) = pathlib.Path(self.folder, "bench", "results").glob("nvidia-h100-*.md")
        return page.read_text().splitlines()

    def test_a_step_is_reported_with_and_without_a_peer(self):
        peer = {"model": "bert/128", "precision": "bf16", "setting": "graph", "samples_per_sec": 10.0}
        page = self.report([step("bert/128/bf16/batch:64"), step("bert/128/tf32/batch:64/resident")], [peer])
        self.assertIn("| step/bert/128/bf16/batch:64 | 20 | 2.0 | 1.0 |  |  | 10 (graph) | 2.00 |", page)
        self.assertIn("| step/bert/128/tf32/batch:64/resident | 20 | 2.0 | 1.0 |  |  |  |  |", page)

    def goal(self, page, name):
        """The measured values of a goal, and whether it was reached."""
        (row,) = (line for line in page if line.startswith(f"| {name}"))
        return tuple(row.strip("| ").split(" | ")[2:])

    def peers(self, precision, **rates):
        return [{"model": "bert/128", "precision": precision, "setting": setting, "samples_per_sec": rate} for setting, rate in rates.items()]

    def test_a_goal_is_reached_only_when_all_that_it_needs_was_measured(self):
        own = [step("bert/128/bf16/batch:64"), step("bert/128/f16/batch:64")]
        bert = "BERT-base, length 128"
        eager = self.peers("bf16", eager=5, graph=10)
        self.assertEqual(self.goal(self.report(own, eager), bert), ("bf16 over graph 2 (0 of 2 measured)", "not decided"))
        compiled = self.peers("bf16", compile=12)
        self.assertEqual(self.goal(self.report(own, eager + compiled), bert),
                         ("bf16 over compile 1.667 (1 of 2 measured)", "not decided"))
        half = self.peers("f16", eager=10, compile=11)
        self.assertEqual(self.goal(self.report(own, eager + compiled + half), bert),
                         ("bf16 over compile 1.667; f16 over compile 1.818", "yes"))
        refused = {"model": "bert/128", "precision": "f16", "setting": "compile", "error": "too long"}
        page = self.report(own, eager + compiled + half[:1] + [refused])
        self.assertEqual(self.goal(page, bert)[1], "not decided")
        self.assertIn("- bert/128 f16 compile: too long", page)
        # A step that is too slow against any setting is so against the best.
        self.assertEqual(self.goal(self.report(own, self.peers("bf16", eager=19)), bert),
                         ("bf16 over eager 1.053 (0 of 2 measured)", "no"))

    def test_a_goal_needs_all_cases_that_gpu_bench_lists(self):
        cases = [f"optimizer/adam/{count}" for count in (25557032, 109482240)]
        rows = [{"name": name, "GB_per_sec": 9, "least": 8, "most": 10, "of_copy": of_copy} for name, of_copy in zip(cases, (0.95, 0.94))]
        self.assertEqual(self.goal(self.report(rows[:1], cases=cases), "Adam"),
                         (f"{cases[0]} 0.95 (1 of 2 measured)", "not decided"))
        self.assertEqual(self.goal(self.report(rows, cases=cases), "Adam")[1], "yes")
        self.assertEqual(self.goal(self.report([], cases=cases), "Adam"), ("not measured", "not decided"))
        self.assertEqual(self.goal(self.report(rows), "Adam")[1], "not decided")  # what there is is not known

    def test_the_later_of_two_results_counts_and_lines_that_were_cut_off_do_not(self):
        for name, rows in (("bench.jsonl", [step("bert/128/bf16/batch:64"), step("bert/128/bf16/batch:64", samples_per_sec=30)]),):
            self.work.joinpath(name).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"name": "step/')
        subprocess.run(["python3", "bench/gpu_report.py", "build/gpu", "NVIDIA H100, 580", "13.0"], cwd=self.folder, check=True,
                       capture_output=True)
        rows = [line for line in self.page().splitlines() if line.startswith("| step/")]
        self.assertEqual(rows, ["| step/bert/128/bf16/batch:64 | 30 | 2.0 | 1.0 |  |  |  |  |"])

    def test_an_all_reduce_is_reported_by_the_formulae_of_nccl_tests(self):
        row = {"name": "all_reduce/x", "GB_per_sec": 50, "least": 49, "most": 51, "of_copy": 0.5, "algbw": 10.0, "busbw": 10.0}
        self.assertIn("| all_reduce/x | 50 (49, 51) | 0.5 | 10.0, 10.0 |", self.report([row]))
