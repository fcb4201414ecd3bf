from support import Case

from experiments.hostlist import compress, expand


class Hosts(Case):
    def test_expands_what_slurm_compresses(self):
        self.assertEqual(expand("gn[01-03,07],lm1"), ["gn01", "gn02", "gn03", "gn07", "lm1"])
        self.assertEqual(expand("r[1-2]n[09-10]"), ["r1n09", "r1n10", "r2n09", "r2n10"])
        self.assertEqual(expand("node"), ["node"])

    def test_compresses(self):
        self.assertEqual(compress(["gn05", "gn03", "gn04"]), "gn[03-05]")
        self.assertEqual(compress(["gn01", "gn02", "gn07", "gn08"]), "gn[01-02,07-08]")
        self.assertEqual(compress(["gn9", "gn10", "gn11", "lm"]), "gn[10-11],gn9,lm")
        self.assertEqual(compress(["a", "a"]), "a")

    def test_each_undoes_the_other(self):
        for names in (["gn01"], ["a1", "a2", "b3"], [f"n{i:03}" for i in range(95, 120)], ["x-1", "x-3"]):
            self.assertEqual(sorted(expand(compress(names))), sorted(names))

    def test_refuses_what_is_no_list(self):
        for text in ("gn[03-07-09]", "gn[1-", "gn]1[", "gn[5-3]", "a,,b", "", "gn[a-b]", "gn[0-99999999]"):
            self.refused("is not a list of hosts", expand, text)
