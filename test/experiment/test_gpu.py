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
        for name in ("scripts/gpu.sh", "bench/gpu_report.py"):
            target = pathlib.Path(self.folder, name)
            target.parent.mkdir()
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

    def test_what_was_built_elsewhere_runs_without_nvcc(self):
        for name in PROGRAMS:
            self.program(self.work / name, "echo '[doctest] test cases: 1 | 1 passed'")
        self.program(self.work / "gpu_bench", f"echo '{json.dumps(step('bert/128/bf16/batch:64'))}'")
        for part in ("peers", "sanitizer"):
            self.work.joinpath(f"done.{part}").touch()
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertNotIn("nvcc", output)
        (page,) = pathlib.Path(self.folder, "bench", "results").glob("nvidia-h100-*.md")
        text = page.read_text()
        self.assertIn("CUDA 13.0.", text)
        self.assertIn("step/bert/128/bf16/batch:64", text)
        self.assertEqual(text.count("1 passed"), len(PROGRAMS))
        code, output = self.run_script()  # what is done is not done again
        self.assertEqual(code, 0, output)
        self.assertIn("bench is done", output)

    def test_a_program_that_does_not_end_when_asked_is_killed(self):
        for name in PROGRAMS:
            self.program(self.work / name, "echo '[doctest] test cases: 1 | 1 passed'")
        self.program(self.work / PROGRAMS[0], "trap '' TERM", "while :; do sleep 1; done")
        code, output = self.run_script("tests", GPU_SECONDS="1")
        self.assertEqual(code, 1, output)
        self.assertEqual(output.count("1 passed"), len(PROGRAMS) - 1)

    def report(self, bench, peers=()):
        """The page's lines."""
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
