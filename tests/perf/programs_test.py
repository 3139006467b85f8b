"""The perf programs as a user runs them: thread ranks, processes under weft-run, output, files and exit codes.

usage: programs_test.py BUILD_PERF_DIRECTORY WEFT_RUN [TEST...]
WEFT_TEST_FULL=1 runs every program over all types and ops; WEFT_TEST_SEED repeats a drawn sample.
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FULL = os.environ.get("WEFT_TEST_FULL") == "1"
PERF, WEFT_RUN = sys.argv[1:3]
PROGRAMS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "alltoallv", "gather",
            "scatter", "sendrecv", "hypercube"]
REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
NO_IN_PLACE = {"alltoall", "alltoallv", "sendrecv"}
TYPES = "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2".split()
OPS = "sum prod max min avg mulsum".split()

NUMBER = r"\s+(\d+(?:\.\d+)?(?:e[+-]\d+)?)"
HALF = NUMBER * 3 + r"\s+(\d+(?:\.\d+)?(?:e[+-]\d+)?|N/A)"
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(-?\d+)" + HALF + HALF + r"$")


def run(program, *args, processes=0, env=None, timeout=90, launcher=()):
    command = [os.path.join(PERF, program + "_perf"), *map(str, args)]
    if processes:
        command = [WEFT_RUN, "-n", str(processes), "--no-prefix", *launcher, *command]
    full_env = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_TESTS_")}
    full_env.update(env or {})
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=full_env)


def rows(result):
    lines = [line for line in result.stdout.splitlines() if line and not line.startswith("#")]
    matches = [ROW.match(line) for line in lines]
    bad = [line for line, match in zip(lines, matches) if not match]
    assert not bad, f"not a row: {bad}\n{result.stderr}"
    return [match.groups() for match in matches]


class Base(unittest.TestCase):
    def good(self, result):
        self.assertEqual(result.returncode, 0, f"{result.args}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
        return rows(result)

    def check_program(self, program, args, ranks, processes=0):
        found = self.good(run(program, *args, processes=processes))
        self.assertTrue(found)
        for row in found:
            self.assertEqual(row[3] == "none", program not in REDUCING)
            self.assertEqual(int(row[4]) == -1, program not in ROOTED)
            self.assertEqual(row[8], "0", row)
            self.assertEqual(row[12], "N/A" if program in NO_IN_PLACE else "0", row)
            if ranks == 1:
                self.assertEqual((float(row[7]), float(row[11])), (0, 0), "B118")


class Correct(Base):
    def test_thread_ranks(self):
        for program in PROGRAMS:
            for ranks in (1, 2, 4) if program == "hypercube" else (1, 2, 3, 4):
                with self.subTest(program=program, ranks=ranks):
                    self.check_program(program, ["-g", ranks, "-b", 0, "-e", "64K", "-f", 8, "-n", 2], ranks)

    def test_processes(self):
        for program in PROGRAMS:
            ranks = 4 if program == "hypercube" else 3
            with self.subTest(program=program):
                self.check_program(program, ["-b", 4, "-e", "1M", "-f", 16, "-n", 2], ranks, processes=ranks)

    def test_processes_of_thread_ranks(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                self.check_program(program, ["-g", 2, "-b", "4K", "-e", "64K", "-f", 16, "-n", 1], 4, processes=2)

    def test_under_mpirun(self):
        for mpirun in ("mpirun.openmpi", "mpirun.mpich"):
            with self.subTest(mpirun=mpirun):
                if not shutil.which(mpirun):
                    self.skipTest(f"{mpirun} is not installed")
                env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
                extra = ["--oversubscribe"] if "openmpi" in mpirun else []
                result = subprocess.run([mpirun, *extra, "-n", "3", os.path.join(PERF, "all_reduce_perf"), "-b", "8", "-e",
                                         "64K", "-f", "32", "-n", "2"], capture_output=True, text=True, timeout=90,
                                        env={**os.environ, **env})
                self.assertEqual(len(self.good(result)), 3)
                self.assertIn("#  Rank  2 ", result.stdout)

    def test_large_and_exact(self):
        """B116: no false alarm on 1e8 floats; a tenth of that in a short run."""
        size = 4 * (10**8 if FULL else 10**7)
        found = self.good(run("all_reduce", "-g", 8, "-b", size, "-e", size, "-n", 1, "-w", 0, timeout=300))
        self.assertEqual((int(found[0][1]), found[0][8], found[0][12]), (size // 4, "0", "0"))

    def test_types_and_ops(self):
        """Every type and op; in a full run of every program, else of a drawn sample."""
        seed = int(os.environ.get("WEFT_TEST_SEED", random.randrange(1 << 30)))
        print(f"seed {seed} (WEFT_TEST_SEED={seed} repeats)")
        draw = random.Random(seed)
        for program in PROGRAMS if FULL else ["all_reduce"] + draw.sample(PROGRAMS[1:], 3):
            ranks = draw.choice([2, 4]) if program == "hypercube" else draw.choice([2, 3, 4])
            with self.subTest(program=program, ranks=ranks):
                result = run(program, "-g", ranks, "-b", 1000, "-e", 1000, "-n", 1, "-w", 0, "-d", "all", "-o", "all", "-r",
                             -1, timeout=300)
                found = self.good(result)
                self.assertEqual({row[2] for row in found}, set(TYPES))
                self.assertEqual({row[3] for row in found}, set(OPS) if program in REDUCING else {"none"})
                self.assertEqual({int(row[4]) for row in found}, set(range(ranks)) if program in ROOTED else {-1})
                for row in found:
                    self.assertEqual(row[8], "0", row)

    def test_loop_options(self):
        variants = [["-m", 4], ["-z", 1], ["-z", 2], ["-z", 3], ["--async"], ["--async", "-m", 3, "-z", 1], ["-u", 1],
                    ["-u", 3, "-d", "int8"], ["-R", 1], ["-R", 2], ["-a", 0], ["-a", 2], ["-a", 3], ["-p", 1], ["-c", 0],
                    ["-c", 3], ["-C", 1], ["-G", 2], ["-y", 1], ["-M", 1], ["-t", 2], ["-T", 60], ["-N", 2]]
        for extra in variants:
            with self.subTest(extra=extra):
                found = self.good(run("all_reduce", "-g", 2, "-b", 64, "-e", "64K", "-f", 32, "-n", 3, *extra))
                self.assertEqual(len(found), 6 if extra == ["-N", 2] else 3)
                self.assertEqual(found[0][8], "N/A" if extra == ["-c", 0] else "0")

    def test_transports_and_algorithms(self):
        for extra in (["--transport", "tcp"], ["--transport", "loop"], ["--algo", "allreduce:ring"]):
            with self.subTest(extra=extra):
                self.good(run("all_reduce", "-g", 3, "-b", 8, "-e", "1M", "-f", 64, "-n", 2, *extra))
        self.good(run("all_reduce", "-b", 8, "-e", "1M", "-f", 64, "-n", 2, "--transport", "tcp", processes=2))

    def test_split(self):
        env = {"NCCL_TESTS_SPLIT": "MOD 2"}
        result = run("all_gather", "-b", 1024, "-e", 1024, "-n", 2, processes=4, env=env)
        self.good(result)
        groups = re.findall(r"#  Rank +(\d+) Group +(\d+)", result.stdout)
        self.assertEqual(groups, [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")])

    def test_alltoallv_matrix(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "matrix")
            path.write_text("16 0 160\n0 0 0\n320 64 48\n")
            env = {"NCCL_TESTS_ALLTOALLV_MATRIX_FILE": str(path)}
            found = self.good(run("alltoallv", "-g", 3, "-b", "4K", "-e", "4K", env=env))
            self.assertEqual(found[0][0], "432")
            for args, said in ((["-g", 4, "-b", "4K", "-e", "4K"], "4 ranks"), (["-g", 3, "-b", 64, "-e", 64], "too small"),
                               (["-g", 3, "-b", 64, "-e", "4K"], "equal")):
                result = run("alltoallv", *args, env=env)
                self.assertEqual(result.returncode, 6)
                self.assertIn(said, result.stderr)


class Corruption(Base):
    """A planted wrong byte on one rank is seen by all."""

    def test_threads(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                result = run(program, "-g", 4, "-b", 1024, "-e", 1024, "-n", 1, "--plant-corruption", 3)
                self.assertEqual(result.returncode, 7, result.stderr)
                self.assertEqual(rows(result)[0][8], "1")
                self.assertIn("FAILED", result.stdout)

    def test_every_process_exits_7(self):
        with tempfile.TemporaryDirectory() as directory:
            script = f"'{PERF}/all_reduce_perf' -b 1024 -e 1024 -n 1 --plant-corruption 1; echo $? > {directory}/$WEFT_RANK"
            subprocess.run([WEFT_RUN, "-n", "3", "sh", "-c", script], capture_output=True, timeout=60)
            codes = [pathlib.Path(directory, str(rank)).read_text().strip() for rank in range(3)]
            self.assertEqual(codes, ["7", "7", "7"])


class ExitCodes(Base):
    def test_usage(self):
        """B115"""
        for program, args, said in (("all_reduce", ["-b", "2M", "-e", "1M"], "above"), ("all_reduce", ["-f", 0], "stepfactor"),
                                    ("all_reduce", ["--bogus"], "bogus"), ("broadcast", ["-g", 2, "-r", 2], "2 ranks"),
                                    ("hypercube", ["-g", 3], "power of two"),
                                    ("all_reduce", ["-b", "1G", "-e", "1G", "--max-memory", "1M"], "does not fit"),
                                    ("all_reduce", ["-J", "/nonexistent/x.json"], "/nonexistent")):
            with self.subTest(args=args):
                result = run(program, *args)
                self.assertEqual(result.returncode, 6)
                self.assertIn(said, result.stderr)

    def test_help(self):
        result = run("all_reduce", "-h")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--stepfactor", result.stdout)

    def test_memory_limit_skips_rows(self):
        result = run("all_reduce", "-g", 2, "-b", "16K", "-e", "1M", "-f", 2, "-n", 1, "--max-memory", "256K")
        found = self.good(result)
        self.assertEqual([row[0] for row in found], ["16384", "32768", "65536"])
        self.assertIn("Reducing maxBytes to 65536 due to memory limitation", result.stdout)

    def test_bandwidth_bound(self):
        for bound, code, verdict in (("1e6", 7, "FAILED"), ("1e-9", 0, "OK")):
            result = run("all_reduce", "-g", 2, "-b", "64K", "-e", "64K", "-n", 2, env={"NCCL_TESTS_MIN_BW": bound})
            self.assertEqual(result.returncode, code)
            self.assertRegex(result.stdout, rf"# Avg bus bandwidth    : \S+ {verdict}")
        self.assertEqual(run("all_reduce", env={"NCCL_TESTS_MIN_BW": "x"}).returncode, 6)

    def test_timeout(self):
        for processes, ranks in ((0, ["-g", 3]), (3, [])):
            result = run("all_reduce", *ranks, "-b", 8, "-e", 8, "-n", 1, "-T", 1, "--plant-stall", 1, processes=processes,
                         timeout=30)
            self.assertEqual(result.returncode, 4, result.stderr)
            self.assertIn("Test timeout (1s)", result.stderr)

    def test_bad_transport(self):
        result = run("all_reduce", "-g", 2, "--transport", "pigeon")
        self.assertEqual(result.returncode, 3)
        self.assertIn("pigeon", result.stderr)


class Results(Base):
    def test_json(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "r.json")
            result = run("reduce", "-b", 64, "-e", 256, "-f", 2, "-n", 4, "-I", 1, "-r", "all", "-J", path, processes=2,
                         env={"WEFT_TEST_TOKEN": "hush"})
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                text = file.read()
            self.assertNotIn("hush", text)
            data = json.loads(text)
            self.assertEqual([device["rank"] for device in data["config"]["devices"]], [0, 1])
            self.assertEqual([device["device"] for device in data["config"]["devices"]], [0, 1])
            self.assertEqual(len({device["pid"] for device in data["config"]["devices"]}), 2)
            self.assertEqual([(r["size"], int(r["root"])) for r in data["results"]],
                             [(64, 0), (128, 0), (256, 0), (64, 1), (128, 1), (256, 1)])
            for entry in data["results"]:
                self.assertEqual(len(entry["out_of_place_per_iter"]["times_us"]), 4)
                for half in ("out_of_place", "in_place"):
                    self.assertEqual(entry[half]["nwrong"], 0)
                    self.assertGreater(entry[half]["time"], 0)
                    # algbw is bytes over time, and reduce's bus bandwidth is the same
                    self.assertAlmostEqual(entry[half]["alg_bw"], entry["size"] / entry[half]["time"] / 1000)
                    self.assertAlmostEqual(entry[half]["bus_bw"], entry[half]["alg_bw"])
            self.assertEqual(data["errors"], [])

    def test_bus_factors(self):
        n = 4
        factors = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1, "sendrecv": 1, "hypercube": 1}
        with tempfile.TemporaryDirectory() as directory:
            for program in PROGRAMS:
                path = os.path.join(directory, program + ".json")
                self.good(run(program, "-g", n, "-b", "64K", "-e", "64K", "-n", 1, "-J", path))
                with open(path) as file:
                    entry = json.load(file)["results"][0]
                half = entry["out_of_place"]
                moved = entry["size"] * ((n - 1) / n if program == "hypercube" else 1)
                self.assertAlmostEqual(half["alg_bw"], moved / half["time"] / 1000, msg=program)
                self.assertAlmostEqual(half["bus_bw"] / half["alg_bw"], factors.get(program, (n - 1) / n), msg=program)
                per_rank = program not in ("all_reduce", "broadcast", "reduce", "sendrecv")
                self.assertEqual(entry["count"], 16384 // n if per_rank else 16384)

    def test_counts_are_whole_16_bytes_per_rank(self):
        for size, count in ((100, 8), (47, 0), (48, 4)):
            found = self.good(run("all_gather", "-g", 3, "-b", size, "-e", size, "-n", 1))
            self.assertEqual((int(found[0][0]), int(found[0][1])), (count * 3 * 4, count))

    def test_only_rank_0_prints(self):
        result = run("all_reduce", "-b", 64, "-e", 64, "-n", 1, processes=3)
        self.assertEqual(result.stdout.count("Collective test starting"), 1)
        self.assertEqual(result.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
