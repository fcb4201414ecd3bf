"""The guides and the files of docs/cluster: whatever guides name exists, the batch script runs with stand-ins for Slurm and the trainer, and
the job for Kubernetes has the operator's form."""

import json
import os
import re
import shlex
import subprocess

from support import BUILD, ROOT, Case

from experiments import settings
from experiments.tables import TABLES

CLUSTER = os.path.join(ROOT, "docs", "cluster")


class Guides(Case):
    def test_what_they_name_is_there(self):
        guides = [name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md")]
        self.assertIn("reproduce_published_results.md", guides)
        for guide in guides:
            with open(os.path.join(ROOT, "docs", guide)) as file:
                text = file.read()
            for name in re.findall(r"bench/experiment table ([a-z-]+)", text):
                self.assertIn(name, TABLES, guide)
            for name in re.findall(r"bench/experiment run ([a-z0-9_]+)", text):
                self.assertIn(name, settings.names(), guide)
            for path in re.findall(r"\]\(([^)#:]+)\)", text):
                self.assertTrue(os.path.exists(os.path.join(ROOT, "docs", path)), f"{guide}: {path}")

    def test_every_table_is_in_the_guide(self):
        with open(os.path.join(ROOT, "docs", "reproduce_published_results.md")) as file:
            text = file.read()
        for name in TABLES:
            self.assertRegex(text, rf"`(bench/experiment table )?{name}`")


class Files(Case):
    def test_the_batch_script_starts_all_ranks(self):
        done = subprocess.run(
            ["sbatch", os.path.join(CLUSTER, "resnet18.sbatch")],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "CONVOY_BUILD": BUILD, "CONVOY_SRUN_OPTIONS": "", "CONVOY_DATA": ""},
        )
        self.assertIn("77", done.stdout)
        with open(self.path("resnet18-77.txt")) as file:
            ranks = sorted(file.read().splitlines())
        self.assertEqual(ranks, [f"rank {i} of 8 on node {i // 4} of gn[03-04]" for i in range(8)])
        with open(self.path("resnet18-77.json")) as file:
            self.assertEqual(json.load(file)["world"], 8)

    def test_the_options_of_the_files_are_the_trainers(self):
        with open(os.path.join(ROOT, "examples", "common", "options.cpp")) as file:
            known = file.read()
        with open(os.path.join(CLUSTER, "resnet18.sbatch")) as file:
            words = shlex.split(file.read().split('mnist_resnet" ')[1].replace("\\\n", " "), comments=True)
        with open(os.path.join(CLUSTER, "resnet18_mpijob.yaml")) as file:
            words += [
                line.strip("- \n") and line.strip()[2:]
                for line in file.read().split("/mnist_resnet")[1].splitlines()
                if line.strip().startswith("- --")
            ]
        options = {word for word in words if word.startswith("--")}
        self.assertGreater(len(options), 10)
        for option in options - {"--model"}:
            self.assertIn(f'"{option}"', known)

    def test_the_job_for_kubernetes_has_the_operators_shape(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("there is no YAML parser here (python3-yaml)")
        with open(os.path.join(CLUSTER, "resnet18_mpijob.yaml")) as file:
            job = yaml.safe_load(file)
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        spec = job["spec"]
        self.assertLessEqual(set(spec), {"slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs"})
        self.assertIn(spec["runPolicy"]["cleanPodPolicy"], ("All", "Running", "None"))
        for replica in spec["mpiReplicaSpecs"].values():
            self.assertEqual(set(replica), {"replicas", "restartPolicy", "template"})
            self.assertIn(replica["restartPolicy"], ("Never", "OnFailure"))
        launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
        self.assertEqual(launcher["replicas"], 1)
        (start,), (serve,) = launcher["template"]["spec"]["containers"], worker["template"]["spec"]["containers"]
        args = start["args"]
        self.assertEqual(int(args[args.index("-np") + 1]), worker["replicas"] * spec["slotsPerWorker"])
        self.assertTrue(all(isinstance(word, str) for word in start["command"] + args + serve["command"] + serve["args"]))
        self.assertEqual(start["image"], serve["image"])
        self.assertEqual(serve["command"], ["/usr/sbin/sshd"])
        mounted = {mount["name"] for mount in serve["volumeMounts"]}
        self.assertEqual(mounted, {volume["name"] for volume in worker["template"]["spec"]["volumes"]})
        self.assertGreaterEqual(int(serve["resources"]["limits"]["cpu"]), spec["slotsPerWorker"])
