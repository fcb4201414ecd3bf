"""The measurements in paired rounds, of programs that are not there and of no round."""

import os
import subprocess
import sys

from support import ROOT, Case


class Rounds(Case):
    def experiment(self, *words):
        command = [sys.executable, "-B", os.path.join(ROOT, "bench", "experiment"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_a_program_that_is_not_built_is_named(self):
        for name in ("scaling", "weighted", "overlap"):
            done = self.experiment(name, "--program", self.path("nowhere"))
            self.assertEqual(done.returncode, 1)
            self.assertEqual(
                done.stderr, f"experiment: there is no program {self.path('nowhere')}; cmake --build --preset release makes it\n"
            )

    def test_no_round_is_refused(self):
        for count in ("0", "-1", "1.5"):
            done = self.experiment("scaling", "--program", sys.executable, f"--rounds={count}")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"argument --rounds: '{count}' is not a whole number above 0", done.stderr)
