#!/usr/bin/env python3
"""Predictions beside measurements: what weft-sim says that a call takes, and what it takes.

For each number of ranks and each transport weft-probe measures the links, by messages from rank to rank only; weft-sim
predicts every algorithm of every collective from that; then each is run. Nothing that is compared was used to
calibrate anything. Probes and runs take turns, so that both see the machine in the same mood.

    perf/predict/predict.py --build build                      a table of errors, and of the worst misses
    perf/predict/predict.py --build build --sites 2x2,3x2 --transports "" --mbit 400 --delay-ms 5
                                                               sites in network namespaces (perf/wan/weft-wan; root)

The error is |predicted / measured - 1|. "choice" is the measured time of the algorithm that is predicted to be the
fastest, over that of the fastest one.
"""
import argparse
import collections
import contextlib
import csv
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

PROGRAMS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
            "broadcast": "broadcast", "reduce": "reduce", "alltoall": "alltoall"}
def load(path):
    """A program without .py at its end, as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


weft_wan = load(pathlib.Path(__file__).resolve().parent.parent / "wan/weft-wan")
CORES = len(os.sched_getaffinity(0))


def size_of(text):
    units = {"K": 1 << 10, "M": 1 << 20}
    unit = units.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


class Build:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()

    def program(self, name):
        for path in (f"perf/{name}", f"tools/{name}/{name}"):
            if (self.folder / path).is_file():
                return str(self.folder / path)
        sys.exit(f"predict: {name} is not in {self.folder}")

    def run(self, command, environment=None, limit=120):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=limit,
                              env={**variables, **(environment or {})})
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def job(self, ranks, *command):
        bind = "core" if ranks <= CORES else "none"
        return [self.program("weft-run"), "-n", ranks, "--no-prefix", "--bind", bind, *command]


class Case:
    """One number of ranks over one transport."""

    iterations, cycles, warmup = 1000, 3, 3  # iterations at most

    def __init__(self, build, transport, ranks, args):
        self.build, self.transport, self.ranks, self.args = build, transport, ranks, args
        self.name = f"{transport} {ranks}"

    def place(self):
        return contextlib.nullcontext()

    def job(self, environment, *command):
        self.build.run(self.build.job(self.ranks, *command), {"WEFT_TRANSPORT": self.transport, **environment})

    def probe(self, path):
        self.job({}, self.build.program("weft-probe"), "-o", path)

    def predict(self, path, collective):
        sizes = ",".join(map(str, self.args.sizes))
        # Calls of this library's perf programs are out of place and in place, half of each.
        calls = json.loads(self.build.run([self.build.program("weft-sim"), "run", collective, "-T", path, "-b", sizes,
                                           "--format", "json"]))
        return {(call["algorithm"], call["bytes"]): call["microseconds"] for call in calls if "microseconds" in call}

    def measure(self, path, collective, algorithm, size):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            iterations = 200 if size <= 4096 else 40 if size <= 1 << 18 else 8
            self.job({"WEFT_ALGO": f"{collective}:{algorithm}", "WEFT_TOPOLOGY": str(path)},
                     self.build.program(PROGRAMS[collective] + "_perf"), "-b", size, "-e", size, "-n",
                     min(iterations, self.iterations), "-N", self.cycles, "-w", self.warmup, "-c", 0, "-a", 3, "-J", out)
            rows = json.loads(out.read_text())["results"]
        return rows[0]["size"], rows[0]["in_place"]["time"]

    def run(self, rows):
        with self.place(), tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "topology.json")
            predicted, measured = collections.defaultdict(list), collections.defaultdict(list)
            for _ in range(self.args.turns):
                self.probe(path)
                for collective in self.args.collectives:
                    for key, value in self.predict(path, collective).items():
                        predicted[collective, *key].append(value)
                        size, took = self.measure(path, collective, *key)
                        if size == key[1] and took > 0:
                            measured[collective, *key].append(took)
        for key, times in measured.items():
            rows.append({"case": self.name, "collective": key[0], "algorithm": key[1], "bytes": key[2],
                         "predicted_us": statistics.median(predicted[key]), "measured_us": statistics.median(times)})


class SitesCase(Case):
    """Sites with long links between them, so many ranks at each."""

    iterations, cycles, warmup = 2, 1, 1

    def __init__(self, build, shape, args):
        sites, ranks = map(int, shape.split("x"))
        super().__init__(build, f"sites {shape}", sites * ranks, args)
        self.sites, self.each = sites, ranks
        self.name = f"sites {shape}"

    def place(self):
        link = ["--mbit", self.args.mbit, "--delay-ms", self.args.delay_ms]
        self.there = weft_wan.Sites(self.sites, weft_wan.link_program(self.build.folder), link)
        return self.there

    def job(self, environment, *command):
        done = self.there.job(self.build.program("weft-run"), self.each, command, environment, capture_output=True, text=True,
                              timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]}: {done.returncode}: {done.stderr.strip()[-300:]}")


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def summary(rows):
    lines = ["| what | calls | median error | 95 % of errors below | choice: median, worst |", "|---|---|---|---|---|"]
    groups = [("all", rows)]
    for field in ("case", "collective", "bytes"):
        for value in dict.fromkeys(row[field] for row in rows):
            groups.append((f"{field} {value}", [row for row in rows if row[field] == value]))
    for name, group in groups:
        errors = [abs(row["predicted_us"] / row["measured_us"] - 1) for row in group]
        calls = collections.defaultdict(list)
        for row in group:
            calls[row["case"], row["collective"], row["bytes"]].append(row)
        choices = []
        for call in calls.values():
            taken = min(call, key=lambda row: row["predicted_us"])
            choices.append(taken["measured_us"] / min(row["measured_us"] for row in call))
        lines.append(f"| {name} | {len(group)} | {statistics.median(errors):.0%} | {percentile(errors, 0.95):.0%} | "
                     f"{statistics.median(choices):.2f}, {max(choices):.2f} |")
    return "\n".join(lines)


def misses(rows, count):
    lines = ["| case | collective | algorithm | bytes | predicted us | measured us | ratio |",
             "|---|---|---|---|---|---|---|"]
    worst = sorted(rows, key=lambda row: -abs(math.log(row["predicted_us"] / row["measured_us"])))
    for row in worst[:count]:
        lines.append(f"| {row['case']} | {row['collective']} | {row['algorithm']} | {row['bytes']} | "
                     f"{row['predicted_us']:.4g} | {row['measured_us']:.4g} | "
                     f"{row['predicted_us'] / row['measured_us']:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--collectives", default=",".join(PROGRAMS))
    parser.add_argument("--sizes", default="1K,64K,1M,16M", help="bytes of the call, each a multiple of 16 for each rank")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sites", default="", help="2x2,3x2: sites of so many ranks each")
    parser.add_argument("--mbit", type=float, default=400)
    parser.add_argument("--delay-ms", type=float, default=5)
    parser.add_argument("--csv", help="write all pairs there")
    args = parser.parse_args()
    args.sizes = [size_of(text) for text in args.sizes.split(",")]
    args.collectives = args.collectives.split(",")
    build, rows = Build(args.build), []
    cases = [Case(build, transport, ranks, args) for transport in filter(None, args.transports.split(","))
             for ranks in map(int, args.ranks.split(","))]
    if args.sites:
        if reason := weft_wan.why_not(build.folder):
            sys.exit(f"predict: {reason}")
        cases += [SitesCase(build, shape, args) for shape in args.sites.split(",")]
    for case in cases:
        try:
            case.run(rows)
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            print(f"predict: {case.name}: {problem}", file=sys.stderr)
        print(f"predict: {case.name}: {len(rows)} pairs", file=sys.stderr)
    if not rows:
        sys.exit("predict: nothing was measured")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file, contextlib.closing(file):
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    print(summary(rows), "\n", misses(rows, 12), sep="\n")


if __name__ == "__main__":
    main()
