from support import Case

from experiments import steplog

LOG = """### lm6-1 GPU
Step200: 57.27 data/sec, loss:0.43210, lr:0.001
Epoch 0 in 1033.6 sec, test time 23.66 sec, test accuracy:0.9743, test loss:0.08123
Step400: 58.51 data/sec
Epoch 2 in 957.91 sec, test time 18.63 sec. test accuracy:0.9786
Step 1600 60.44
Epoch 3 in 1025.45 sec, test time 18.65 sec, est accuracy:0.9815
## lm1- 2 GPU
Step200: 144.31 data/sec
nothing of the kind
Epoch 0 in 5.48 sec, loss:2.62908
"""


class Logs(Case):
    def test_published_lines_and_their_slips(self):
        first, second = steplog.parse(LOG, "log")
        self.assertEqual((first.heading, second.heading), ("lm6-1 GPU", "lm1- 2 GPU"))
        self.assertEqual(first.steps, [(200, 57.27), (400, 58.51), (1600, 60.44)])
        self.assertEqual(first.epochs, [(0, 1033.6, 23.66, 0.9743), (2, 957.91, 18.63, 0.9786), (3, 1025.45, 18.65, 0.9815)])
        self.assertEqual(second.epochs, [(0, 5.48, None, None)])

    def test_start_up_takes_the_samples_of_a_step(self):
        rates, epochs = steplog.tables(steplog.parse(LOG, "log"), 128)
        self.assertEqual(rates.rows[0][:5], ["lm6-1 GPU", "3", "57.27", "60.44", "60.44"])
        self.assertAlmostEqual(float(rates.rows[0][7]), 60.95, delta=0.3)
        self.assertEqual(rates.rows[1][5:], ["", "", ""])
        self.assertEqual(epochs.rows[2], ["lm6-1 GPU", "3", "1025.45", "18.65", "98.15%"])

    def test_lines_that_determine_no_start_up_leave_it_empty(self):
        for lines in ("Step200: 10.0 data/sec\nStep200: 11.0 data/sec\n", "Step200: 0.00 data/sec\nStep400: 11.0 data/sec\n"):
            rates, *_ = steplog.tables(steplog.parse(lines, "log"), 128)
            self.assertEqual(rates.rows[0][5:], ["", "", ""])

    def test_what_is_no_log_is_refused(self):
        self.refused("has no line such as", steplog.read, [self.write("a.txt", "hello\n")])
        self.refused("cannot be read", steplog.read, [self.path("none")])
