"""Shared parts of the tests of the experiment driver: stand-ins for programs and launchers, and temporary folders."""

import os
import shutil
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(HERE, "stand_ins", "build")
sys.path.insert(0, os.path.join(ROOT, "bench"))

from experiments import cells, driver, launch, predictions, results  # noqa: E402
from experiments.cells import Cell, Task  # noqa: E402
from experiments.failure import Failure  # noqa: E402
from experiments.protocols import Protocol  # noqa: E402


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        path = os.path.join(HERE, "stand_ins", "bin") + os.pathsep + os.environ["PATH"]
        for patch in (mock.patch.dict(os.environ, {"PATH": path}), mock.patch.object(results, "note", self._note)):
            patch.start()
            self.addCleanup(patch.stop)
        self.notes = []

    def _note(self, text):
        self.notes.append(text)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def driver(self, launcher=None):
        predictor = predictions.Predictor(os.path.join(BUILD, "bench", "predict"), self.folder)
        return driver.Driver(ROOT, BUILD, self.path("out"), launcher or launch.Launcher(), predictor)

    def refused(self, pattern, function, *arguments):
        with self.assertRaisesRegex(Failure, pattern):
            function(*arguments)


def task(protocol=None, **fields):
    fields = {"data": "digits", **fields}
    return Task(
        cells.checked(Cell(**fields), "test"),
        Protocol.read(protocol or {"kind": "cumulative", "steps": 8, "log_every": 4}, "test"),
    )


def setting(*tasks):
    return cells.Setting("test", "Test", "", tasks)
