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
