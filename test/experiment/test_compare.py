"""compare.py with stand-ins for convoy's program and for the interpreter that runs the peer."""

import json
import os
import subprocess
import sys

from support import ROOT, Case

sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))

import torch_step  # noqa: E402

COMPARE = os.path.join(ROOT, "bench", "peers", "compare.py")
OURS = {"samples_per_sec": 50.0, "step_ms": {"median": 100.0}, "batch_per_rank": 8, "world": 1, "parameters": 1000,
        "options": {"accumulate": "1"}}
SETTING = {"layout": "plain", "mode": "eager", "adam": "fused", "memory": "default"}
THEIRS = {**SETTING, "torch": "0", "batch": 8, "ranks": 1, "parameters": 1000, "samples_per_sec": 40.0, "samples_per_sec_mean": 40.0}


class Compare(Case):
    def stand_in(self, name, script):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)
        return path

    def compare(self, theirs=THEIRS, **ours):
        convoy = self.stand_in("gpt2", f"echo '{json.dumps({**OURS, **ours})}' > \"$1\"")
        peer = self.stand_in("python", f"echo '{json.dumps(theirs)}'")
        setting = ",".join(f"{name}={value}" for name, value in SETTING.items())
        command = [COMPARE, "--python", peer, "--setting", setting, "--pairs", "1", "--wait", "0", "--", convoy, "{json}", "--batch", "8"]
        return subprocess.run([sys.executable, "-B", *command], capture_output=True, text=True)

    def test_the_ratio_of_equal_steps(self):
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"median step +convoy 80\.0, peer 40\.0 samples/s; ratio 2\.000")

    def test_different_steps_are_refused(self):
        for ours, said in (
            ({"batch_per_rank": 16}, "batch 16 and 8"),
            ({"world": 2, "parameters": 10}, "ranks 2 and 1, parameters 10 and 1000"),
            ({"options": {"accumulate": "4"}}, "accumulate 4 and 1"),
        ):
            done = self.compare(**ours)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"compare.py: convoy and the peer make different steps, with {said}: name the sizes, ", done.stderr)
            self.assertNotIn("ratio 2", done.stdout)

    def test_the_hidden_features_of_gpt2_are_four_times_its_width(self):
        for words, ffn in (([], 3072), (["--width", "128"], 512), (["--width", "128", "--ffn", "64"], 64)):
            self.assertEqual(torch_step.parse(["--model", "gpt2", *words]).ffn, ffn)
