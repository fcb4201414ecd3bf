"""The simulator's predictions, from the program `predict` of the build folder. Without the program, predictions are left out with
a note."""

import json
import os
import subprocess
import tempfile

from .cells import PROGRAMS
from .failure import Failure

SIZES = ("--layers", "--width", "--heads", "--ffn", "--image-size")
# Options of trainers that predict has, too, and the number of their values.
EXCHANGE = {"--background": 0, "--codec": 1, "--codec-fraction": 1, "--codec-rank": 1, "--staleness": 1, "--weighted": 0}


def of_exchange(options):
    """Those of a trainer's options that change what is predicted."""
    words = []
    for at, word in enumerate(options):
        name, equals, _ = word.partition("=")
        if name in EXCHANGE:
            words += options[at : at + 1 + (0 if equals else EXCHANGE[name])]
    return words


class Predictor:
    def __init__(self, program, clusters):
        """`clusters` is the folder of cluster files that settings name."""
        self.program, self.clusters = program, clusters

    @property
    def missing(self):
        """Why there are no predictions; None if there are."""
        if os.path.isfile(self.program) and os.access(self.program, os.X_OK):
            return None
        return f"Predictions are left out: there is no program {self.program}."

    def cluster(self, name):
        for path in (name, os.path.join(self.clusters, name), os.path.join(self.clusters, name + ".json")):
            if os.path.isfile(path):
                return path
        raise Failure(f"there is no cluster file {name}, neither here nor in {self.clusters}")

    @staticmethod
    def model(cell):
        """The simulator's name of the model, which has the suffix -mnist for MNIST's residual networks. The simulator knows only
        the published sizes."""
        other = [word for word in cell.options if word in SIZES]
        if other:
            raise Failure(f"the simulator knows {cell.model} only in its published sizes, not with {other[0]}")
        return cell.model + ("-mnist" if PROGRAMS[cell.model] == "mnist_resnet" else "")

    def words(self, cell, alone):
        """The options for a cell whose fastest rank alone computes `alone` samples per second (None: by the cluster file). The
        relative speed of other ranks is in the cluster file. Servers beside the workers are the last ranks, which the launchers
        place like the others; the simulator's nodes have equally many ranks."""
        if cell.world % cell.nodes:
            raise Failure(f"the simulator's nodes have equally many ranks, servers included; there are {cell.world} ranks on {cell.nodes} nodes")
        words = [
            "--model",
            self.model(cell),
            "--batch",
            str(cell.batch),
            "--nodes",
            str(cell.nodes),
            "--ranks-per-node",
            str(cell.world // cell.nodes),
        ]
        if cell.comm != "none":
            words += ["--comm", cell.comm]
        if cell.servers:
            words += ["--servers", str(cell.servers), "--servers-beside"]
        elif cell.is_server:
            words += ["--servers", str(cell.workers)]
        if cell.bucket_mib:
            words += ["--bucket-mib", cell.bucket_mib]
        if cell.no_overlap:
            words.append("--no-overlap")
        if cell.keep_dead_taps:
            words.append("--keep-dead-taps")
        if cell.optimizer:
            words += ["--optimizer", cell.optimizer]
        words += of_exchange(cell.options)
        if alone:
            words += ["--samples-per-second", f"{alone:g}"]
        return words

    def predict(self, cell, alone=None):
        """{"comm", "step_seconds", "exposed_seconds", "throughput", "scalability", "binds", "links"} of a cell."""
        if self.missing:
            raise Failure(self.missing)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prediction.json")
            argv = [self.program, self.cluster(cell.cluster), *self.words(cell, alone), "--json", path]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode:
                lines = done.stdout.strip().splitlines() or [f"it ended with {done.returncode}"]
                raise Failure(f"predict: {lines[-1]}")
            try:
                with open(path) as file:
                    answers = json.load(file)
            except (OSError, ValueError) as error:
                raise Failure(f"predict wrote no JSON: {error}") from None
        listed = answers.get("predictions", []) if isinstance(answers, dict) else []
        for answer in listed:
            if answer.get("comm") == cell.comm or cell.comm == "none" or len(listed) == 1:
                if not isinstance(answer.get("throughput"), (int, float)):
                    break
                return answer
        raise Failure(f"predict wrote no throughput of {cell.comm}")
