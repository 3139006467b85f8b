"""weft-tune: its arithmetic, and files that it measures, merges and checks with next to no time.

usage: weft_tune_test.py WEFT_TUNE BUILD_FOLDER [TEST...]
"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOOL, BUILD = map(os.path.abspath, sys.argv[1:3])
loader = importlib.machinery.SourceFileLoader("weft_tune", TOOL)
weft_tune = importlib.util.module_from_spec(importlib.util.spec_from_loader("weft_tune", loader))
loader.exec_module(weft_tune)

SMALL = ["--kinds", "shm", "--ranks", "2", "--rounds", "1", "--minutes", "2", "--min-bytes", "8", "--max-bytes", "4K"]
TCP = ("kind tcp\nalpha 3       # as it was\nmessage 1\nbeta 1\ngamma 1\nallreduce ring 2  8:1.5 64K:2\n")


def run(*args):
    return subprocess.run([sys.executable, TOOL, *map(str, args), "--build", BUILD], capture_output=True, text=True,
                          timeout=250)


def plan(*args):
    return subprocess.run([f"{BUILD}/tools/weft-plan/weft-plan", *map(str, args)], capture_output=True, text=True,
                          timeout=60)


class Arithmetic(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([weft_tune.size_of(text) for text in ("8", "4K", "64M")], [8, 4096, 64 << 20])
        self.assertEqual([weft_tune.text_of(size) for size in (8, 1000, 4096, 64 << 20)], ["8", "1000", "4K", "64M"])
        pieces = weft_tune.ranges(8, 64 << 20, 4)
        self.assertEqual(pieces[0], [8, 32, 128, 512, 2048])
        self.assertEqual(pieces[-1], [64 << 20])
        self.assertEqual(weft_tune.ranges(8, 8, 4), [[8]])

    def test_fit_finds_the_parameters(self):
        wanted = {"alpha": 2.0, "message": 0.5, "beta": 0.25, "gamma": 0.125}
        points = []
        for steps, messages, moved, combined in ((1, 2, 3, 4), (2, 1, 8, 0), (5, 20, 1, 1), (1, 1, 1000, 900),
                                                 (1, 9, 100, 0)):
            terms = {"alpha": steps, "message": messages, "beta": moved, "gamma": combined}
            points.append((terms, weft_tune.predict(wanted, terms)))
        for name, value in weft_tune.fit(points).items():
            self.assertAlmostEqual(value, wanted[name], places=2)

    def test_fit_has_no_negative_parameters(self):
        points = [({"alpha": 1, "message": 2, "beta": 1, "gamma": 0}, 5),
                  ({"alpha": 2, "message": 1, "beta": 9, "gamma": 1}, 1)]
        self.assertGreater(min(weft_tune.fit(points).values()), 0)

    def test_times_rise(self):
        points = [(8, 1.0), (16, 4.0), (32, 1.0), (64, 5.0)]
        found = weft_tune.rising(points)
        self.assertEqual([size for size, _ in found], [8, 16, 32, 64])
        for (_, value), wanted in zip(found, (1, 2, 2, 5)):
            self.assertAlmostEqual(value, wanted)

    def test_jumps(self):
        good = {("shm", "allreduce", "", ranks, size): ranks + size / 100
                for ranks in (7, 8) for size in (100, 120, 144)}
        self.assertEqual(weft_tune.jumps(good), [])
        up = {**good, ("shm", "allreduce", "", 8, 144): 40}
        self.assertIn("8 ranks", weft_tune.jumps(up)[-1][0])
        self.assertIn("144", weft_tune.jumps(up)[-1][0])
        ranks = {**good, ("shm", "allreduce", "", 7, 120): 20.0}
        self.assertEqual([text for text, _ in weft_tune.jumps(ranks)],
                         ["shm allreduce, 120 bytes: 20.00 us on 7 ranks, 9.20 on 8"])
        # Sizes that are far from each other may be.
        self.assertEqual(weft_tune.jumps({("shm", "reduce", "", 2, 8): 1, ("shm", "reduce", "", 2, 800): 90}), [])


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "my.tune")

    def test_help(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--minutes", "--check", "--merge", "WEFT_TUNE_FILE"):
            self.assertIn(word, result.stdout)

    def test_measures_and_checks(self):
        result = run("-o", self.path, *SMALL, "--collectives", "allreduce,alltoallv")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = self.path.read_text()
        for word in ("weft-tune 1\n", "# machine: ", "# date: ", "# library: 0.", "kind shm\ncores ", "allreduce ring 2  8:",
                     "alltoallv pairwise 2  1M:", "allgatherv ring 2  1M:"):
            self.assertIn(word, text)
        self.assertNotIn("kind tcp", text)
        shown = plan("cost", "allreduce", "-P", "2,7", "-b", "8,4K", "--tune", self.path, "--format", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        costs = json.loads(shown.stdout)
        self.assertTrue(all(cost["measured"] and cost["microseconds"] > 0 for cost in costs))
        self.assertEqual(sum(cost["chosen"] for cost in costs), 4)
        result = run("--check", self.path, *SMALL, "--collectives", "broadcast")
        self.assertRegex(result.stdout.splitlines()[-1], r"^\d+ places, 2 runs: \d+ jumps?; 0 runs failed, 0 were cut off$")
        self.assertEqual(result.returncode, 1 if len(result.stdout.splitlines()) > 1 else 0)

    def test_merges(self):
        self.path.write_text("weft-tune 1\n" + TCP)
        args = ["-o", self.path, *SMALL, "--collectives", "scatter"]
        refused = run(*args)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("exists", refused.stderr)
        result = run(*args, "--merge")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = self.path.read_text()
        self.assertIn(TCP, text)
        self.assertIn("scatter flat 2  32:", text)
        self.assertEqual(plan("cost", "scatter", "-P", 2, "--tune", self.path).returncode, 0)

    def test_refuses(self):
        self.path.write_text("weft-tune 1\nkind mars\n")
        for args in (["--check", self.path], ["-o", self.path, "--merge"]):
            result = run(*args, *SMALL)
            self.assertEqual(result.returncode, 1)
            self.assertIn(":2: mars", result.stderr)
        for args in (["--collectives", "allredcue"], ["--kinds", "pigeon"], ["--ranks", "1"]):
            result = run("-o", f"{self.path}.new", *args)
            self.assertEqual(result.returncode, 2)
            self.assertIn("legal: ", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
