import itertools
import os

from support import Case, task

from experiments import settings
from experiments.cells import read_setting
from experiments.command import overrides

GOOD = """
title = "A title"
[defaults]
batch = 64
[[cells]]
ranks_per_node = [1, 2]
comm = ["ring", "ps"]
protocol = { kind = "relaunches" }
"""


class Settings(Case):
    def test_lists_are_multiplied(self):
        read = read_setting(self.write("good.toml", GOOD))
        self.assertEqual(read.title, "A title")
        self.assertEqual(
            [(t.cell.ranks_per_node, t.cell.comm, t.cell.batch) for t in read.tasks],
            [(1, "ring", 64), (1, "ps", 64), (2, "ring", 64), (2, "ps", 64)],
        )
        protocol = read.tasks[0].protocol
        self.assertEqual((protocol.relaunches, protocol.ignore, protocol.measure, protocol.steps), (7, 20, 100, 140))

    def test_overrides_replace_fields_and_equal_cells_become_one(self):
        read = read_setting(
            self.write("good.toml", GOOD), overrides(["comm=ring", "batch=8", "protocol.relaunches=3", "exec=cuda"])
        )
        self.assertEqual(
            [(t.cell.ranks_per_node, t.cell.batch, t.cell.exec, t.protocol.relaunches) for t in read.tasks],
            [(1, 8, "cuda", 3), (2, 8, "cuda", 3)],
        )

    def test_overrides_are_words_of_the_command_line(self):
        words = ["batch=8,16", "options=--copies,0", "replay=81.84,120.7", "data=digits", "scale_lr=true", "protocol.steps=40"]
        self.assertEqual(
            overrides(words),
            {
                "batch": [8, 16],
                "options": ["--copies", "0"],
                "replay": [81.84, 120.7],
                "data": "digits",
                "scale_lr": True,
                "protocol": {"steps": 40},
            },
        )
        self.assertEqual(overrides(["replay=", "rate="]), {"replay": [], "rate": ""})
        self.refused("--set takes FIELD=VALUE, not 'batch'", overrides, ["batch"])

    def test_what_is_wrong_is_said_with_its_place(self):
        wrong = {
            "model = 3": 'model = "resnet19"',
            "there is no field 'modle'": 'modle = "resnet18"',
            "there is no model 'resnet19'": 'model = "resnet19"',
            "batch must be int, not 'many'": 'batch = "many"',
            "batch must be at least 1": "batch = 0",
            "comm none is for one rank, not 2": 'comm = "none"\nranks_per_node = 2',
            "or one for each of the 2 nodes, not 3": 'exec = "replay"\nnodes = 2\nreplay = [1.0, 2.0, 3.0]',
            "replay must list rates or profiles, not both": 'exec = "replay"\nnodes = 2\nreplay = [[1.0, "a"]]',
            "servers are for comm ps": "servers = 1",
            "transport threads is for one node, not 2": 'transport = "threads"\nnodes = 2',
        }
        for pattern, text in itertools.islice(wrong.items(), 1, None):
            path = self.write("wrong.toml", f'[[cells]]\n{text}\nprotocol = {{ kind = "timeline", steps = 4 }}\n')
            self.refused("wrong.toml, cells 0: .*" + pattern, read_setting, path)
        for pattern, protocol in {
            "protocol is missing": "",
            "no protocol 'guess'": 'protocol = { kind = "guess" }',
            "cumulative needs steps or epochs": 'protocol = { kind = "cumulative" }',
            "a protocol has no field 'stepz'; fields are": 'protocol = { kind = "cumulative", stepz = 3 }',
            "steps of a protocol must be an int of at least 0, not -1": 'protocol = { kind = "cumulative", steps = -1 }',
        }.items():
            self.refused(pattern, read_setting, self.write("wrong.toml", f"[[cells]]\n{protocol}\n"))
        for pattern, text in {
            r"wrong.toml: cells must be tables, each under \[\[cells\]\]": '[cells]\nmodel = "resnet18"\n',
            r"cells must be tables": "cells = [3]",
            r"defaults must be a table": "defaults = 3\n[[cells]]\n",
            r"title must be a text, not 3": "title = 3\n[[cells]]\n",
        }.items():
            self.refused(pattern, read_setting, self.write("wrong.toml", text))
        self.refused("is not a setting file", read_setting, self.write("wrong.toml", "[[cells"))
        self.refused("there are no cells", read_setting, self.write("wrong.toml", 'title = "x"'))
        self.refused("there is no experiment 'none such'; choose .*quick", settings.path_of, "none such")

    def test_every_shipped_setting_is_read(self):
        self.assertIn("quick", settings.names())
        for name in settings.names():
            for one in read_setting(settings.path_of(name)).tasks:
                self.assertNotIn(os.sep, one.name)

    def test_published_choices_reach_the_program_and_the_report(self):
        cell = task(
            model="resnet50",
            scale_lr=True,
            unsharded=True,
            bucket_mib="tensor",
            no_overlap=True,
            keep_dead_taps=True,
            lr=0.01,
            ranks_per_node=2,
            servers=1,
            comm="ps",
            optimizer="adam",
        ).cell
        words = " ".join(cell.words())
        for part in (
            "--model resnet50",
            "--scale-lr",
            "--unsharded",
            "--bucket-mib tensor",
            "--no-overlap",
            "--keep-dead-taps",
            "--lr 0.01",
            "--servers 1 --placement beside",
            "--optimizer adam",
        ):
            self.assertIn(part, words)
        self.assertEqual(
            cell.settings_text(),
            "every rank reads all data, one exchange a tensor, exchanged after backward, dead taps exchanged, "
            "learning rate times world size",
        )
        self.assertEqual(cell.world, 3)

    def test_a_replay_has_a_pace_or_a_profile_for_each_rank(self):
        two = {"exec": "replay", "nodes": 2, "ranks_per_node": 2}
        self.assertIn("--replay-rate 81.84,81.84,120.7,120.7", " ".join(task(**two, replay=(81.84, 120.7)).cell.words()))
        self.assertEqual(task(**two, replay=(81.84,)).cell.words()[-2:], ["--replay-rate", "81.84"])
        self.assertIn("--replay a,a,b,b", " ".join(task(**two, replay=("a", "b")).cell.words()))

    def test_the_key_depends_on_cell_and_protocol_alone(self):
        self.assertEqual(task(batch=8).key, task(batch=8).key)
        self.assertNotEqual(task(batch=8).key, task(batch=9).key)
        self.assertNotEqual(task(batch=8).key, task({"kind": "cumulative", "steps": 9}, batch=8).key)
