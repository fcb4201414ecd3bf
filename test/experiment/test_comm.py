"""comm_bench's JSON as tables, and one step of a Chrome trace."""

import json

from support import Case

from experiments import comm, timeline


def entry(name, rate, **more):
    return {"name": name + "/manual_time", "run_type": "iteration", "algbw_GBps": rate, **more}


class Comm(Case):
    def tables(self):
        own = [entry("all_reduce/ring/mpi/f32/1048576", rate, bound_percent=80.0) for rate in (1.0, 2.0, 3.0)]
        own += [
            entry("all_reduce/native/mpi/f32/1048576", 1.0),
            entry("exchange/ring/mpi/resnet18", 0.5),
            {"name": "all_reduce/ring/mpi/f32/1048576/manual_time_mean", "run_type": "aggregate", "algbw_GBps": 9.0},
        ]
        peer = [entry("all_reduce/mpich/mpi/f32/1048576", 4.0)]
        paths = [self.write(f"{i}.json", json.dumps({"benchmarks": one})) for i, one in enumerate((own, peer))]
        return comm.tables(comm.read(paths))

    def test_medians_spreads_ratios_and_bounds(self):
        rates, bounds, exchange = self.tables()
        self.assertEqual(rates.columns, ["policy", "1 MiB"])
        self.assertEqual(rates.rows, [["native/mpi", "1"], ["mpich/mpi", "4 (~4.00x)"], ["ring/mpi", "2 ±50% (2.00x)"]])
        self.assertEqual(bounds.rows, [["ring/mpi", "80"]])
        self.assertEqual((exchange.columns[1], exchange.rows), ("resnet18", [["ring/mpi", "0.5"]]))

    def test_what_is_no_benchmark_is_refused(self):
        self.refused("is not Google Benchmark's JSON", comm.read, [self.write("a.json", "{}")])
        self.refused("there is no case with algbw_GBps in .*b.json", comm.read, [self.write("b.json", '{"benchmarks": []}')])


class Timeline(Case):
    def trace(self, steps):
        events = [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}
            for rank in (0, 1)
            for tid, name in enumerate(("compute", "exchange", "optimizer"))
        ]
        for step in range(steps):
            for rank in (0, 1):
                at = 1000.0 * step + rank
                bars = [
                    (0, "forward", at, 100),
                    (0, "backward", at + 100, 300),
                    (1, "bucket 0", at + 200, 150),
                    (1, "bucket 1", at + 300, 150),
                    (2, "update", at + 450, 50),
                ]
                events += [
                    {"ph": "X", "name": name, "pid": rank, "tid": tid, "ts": ts, "dur": dur} for tid, name, ts, dur in bars
                ]
        return self.write("trace.json", json.dumps({"traceEvents": events}))

    def test_one_step_of_all_ranks(self):
        bars = timeline.step_of(timeline.read(self.trace(5)))
        self.assertEqual(len(bars), 10)
        self.assertAlmostEqual(min(start for *_, start, _ in bars), 0)
        self.assertAlmostEqual(max(start + seconds for *_, start, seconds in bars), 501e-6)

    def test_bars_that_overlap_lie_on_rows_of_their_own(self):
        rows = timeline.lanes(timeline.step_of(timeline.read(self.trace(5))))
        self.assertEqual(
            [label for label, _ in rows],
            [
                "rank 0 compute",
                "rank 0 exchange",
                "",
                "rank 0 optimizer",
                "rank 1 compute",
                "rank 1 exchange",
                "",
                "rank 1 optimizer",
            ],
        )

    def test_what_is_no_trace_is_refused(self):
        self.refused("is not a Chrome trace", timeline.read, self.write("a.json", "[]"))
        self.refused("fewer than two steps", timeline.step_of, timeline.read(self.trace(1)))
