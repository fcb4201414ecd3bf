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

    def test_options_that_are_malformed_are_refused(self):
        for words, said in (
            (["--setting", "plain"], "argument --setting: 'plain' is not NAME=VALUE with a name of layout, mode, adam, memory"),
            (["--setting", "mode=eager,colour=red"], "argument --setting: 'colour=red' is not NAME=VALUE"),
            (["--cores", "0,x"], "argument --cores: '0,x' is not a list of processors out of "),
            (["--cores", "100000"], "argument --cores: '100000' is not a list of processors out of "),
        ):
            done = subprocess.run([sys.executable, "-B", COMPARE, *words, "--", "true"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"compare.py: error: {said}", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_programs_that_are_missing_are_named(self):
        there, missing = self.stand_in("gpt2", f"echo '{json.dumps(OURS)}' > \"$1\""), os.path.join(self.folder, "nowhere")
        for python, convoy, said in ((there, missing, "convoy"), (missing, there, "the peer")):
            words = ["--python", python, "--setting", "mode=eager", "--wait", "0", "--", convoy, "{json}"]
            done = subprocess.run([sys.executable, "-B", COMPARE, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"compare.py: {said} cannot be started: [Errno 2] No such file or directory: '{missing}'", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_the_images_of_mnist_resnet_have_one_channel_and_ten_classes_at_any_size(self):
        peer, large = self.stand_in("python", f"echo '{json.dumps(THEIRS)}'"), ["--model", "resnet50", "--image-size", "224", "--batch", "8"]
        for name, own, said in (
            ("mnist_resnet", [], "model resnet50, image 224, precision f32, batch 8, threads 1, ranks 1, channels 1, classes 10\n"),
            ("mnist_resnet", ["--classes", "100"], "channels 1, classes 100\n"),
            ("bench", [], "threads 1, ranks 1\n"),
        ):
            convoy = self.stand_in(name, f"echo '{json.dumps(OURS)}' > \"$1\"")
            words = ["--python", peer, "--setting", "mode=eager", "--pairs", "1", "--wait", "0", "--threads", "1", *own, "--"]
            done = subprocess.run([sys.executable, "-B", COMPARE, *words, convoy, "{json}", *large], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, done.stdout)

    def test_the_hidden_features_of_gpt2_are_four_times_its_width(self):
        for words, ffn in (([], 3072), (["--width", "128"], 512), (["--width", "128", "--ffn", "64"], 64)):
            self.assertEqual(torch_step.parse(["--model", "gpt2", *words]).ffn, ffn)
