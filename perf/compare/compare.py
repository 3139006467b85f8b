#!/usr/bin/env python3
"""Runs Weft and other libraries side by side and prints a table of ratios.

Programs take turns (A B C A B C ...) collective by collective, pinned to a core each while there are enough. The
latency of a cache line between the first two cores is measured before and after each turn, and a turn during which it
moved between "near" (under 120 ns) and "far" is thrown away and repeated. Figures are medians over turns, of the median
batch of each turn, and a ratio is made within one regime only. A library that is not there is reported as missing.

Beside the libraries stand the bounds of two ranks on one host: the same collectives written by hand (bounds.cpp), on
private memory ("bound-private"), on memory that both ranks map ("bound-shared"), and their bytes alone over one socket
("bound-tcp"). Gloo is not pinned: it has a thread of its own for the network.

Libraries: openmpi-ob1, openmpi-ucx, mpich and gloo as Debian packages them (openmpi-bin libopenmpi-dev, mpich
libmpich-dev, libgloo-dev), ucc and oneccl from the prefixes that are given. MPI is run with malloc told to keep memory
(--malloc default: as it comes), which spares it page faults in its scratch memory.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

COLLECTIVES = ["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"]
SIZES = [512, 4096, 32768, 524288, 8 << 20, 64 << 20, 256 << 20]  # after one float for each rank
KEEP = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
HERE = pathlib.Path(__file__).resolve().parent
NEAR = 120  # ns


class Runner:
    """One library: how its program is made and started."""

    def __init__(self, name, args, work):
        self.name, self.args, self.work = name, args, work
        self.binary = None
        self.libraries = None  # a folder for LD_LIBRARY_PATH

    def compile(self, source, compiler, *flags):
        self.binary = self.work / self.name
        command = [compiler, "-O2", "-std=c++20", str(HERE / source), "-o", str(self.binary), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return f"{source} does not compile: {done.stderr.strip().splitlines()[0] if done.stderr else compiler}"
        return None

    def prepare(self):
        """None, or why the library is missing."""
        tcp, build = self.args.transport == "tcp", self.args.build
        if self.name.startswith("weft"):
            self.binary = build / "perf/compare/weft_cells"
            return None if self.binary.exists() else f"{self.binary} is not built"
        if self.name.startswith("bound"):
            self.binary = build / "perf/compare/bounds"
            if self.args.ranks != 2 or tcp != (self.name == "bound-tcp"):
                return "there is one for two ranks, and its own transport"
            return None if self.binary.exists() else f"{self.binary} is not built"
        if self.name.startswith("openmpi") or self.name == "mpich":
            flavour = self.name.split("-")[0]
            for tool in (f"mpicxx.{flavour}", f"mpirun.{flavour}"):
                if not shutil.which(tool):
                    return f"{tool} is not installed"
            return self.compile("mpi_cells.cpp", f"mpicxx.{flavour}")
        if self.name == "gloo":
            return self.compile("gloo_cells.cpp", "c++", "-lgloo", "-pthread")
        prefix = getattr(self.args, self.name)
        if prefix is None:
            return f"no --{self.name} PREFIX"
        self.libraries = prefix / "lib"
        library = {"ucc": ["-lucc"], "oneccl": ["-lccl"]}[self.name]
        return self.compile(f"{self.name}_cells.cpp", "c++", f"-I{prefix}/include", f"-L{prefix}/lib", *library)

    def command(self, cells, folder):
        args, environment = self.args, dict(os.environ, COMPARE_FOLDER=folder)
        pin = args.ranks <= os.cpu_count() and self.name != "gloo"  # which has a thread of its own for the network
        if self.libraries is not None:
            environment["LD_LIBRARY_PATH"] = f"{self.libraries}:{environment.get('LD_LIBRARY_PATH', '')}"
        if self.name.startswith("bound"):
            return [str(self.binary), self.name.split("-")[1], *cells], environment
        if self.name.startswith("openmpi"):
            layer = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp" if args.transport == "tcp" else "self,vader"]
            if self.name.endswith("ucx"):
                layer = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
            environment["UCX_TLS"] = "tcp,self" if args.transport == "tcp" else "posix,sysv,cma,self"
            environment.update(KEEP if args.malloc == "kept" else {})
            return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "core" if pin else "none",
                    *layer, "-np", str(args.ranks), str(self.binary), *cells], environment
        if self.name == "mpich":
            if args.transport == "tcp":
                environment.update({"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"})
            environment.update(KEEP if args.malloc == "kept" else {})
            return ["mpirun.mpich", *(["-bind-to", "core"] if pin else []), "-np", str(args.ranks), str(self.binary),
                    *cells], environment
        environment["WEFT_TRANSPORT"] = args.transport
        if self.name == "weft-shared":
            environment["COMPARE_SHARED"] = "1"
        if self.name == "ucc":
            environment["UCX_TLS"] = "tcp,self" if args.transport == "tcp" else "posix,sysv,cma,self"
        return [str(args.build / "tools/weft-run/weft-run"), "-n", str(args.ranks), "--no-prefix", "--bind",
                "core" if pin else "none", str(self.binary), *cells], environment

    def run(self, cells):
        with tempfile.TemporaryDirectory() as folder:
            argv, environment = self.command(cells, folder)
            done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=600)
        found = re.findall(r"^cell (\S+) (\d+) (\S+) (\S+)$", done.stdout, re.M)
        if not found and done.returncode != 0:
            print(f"{self.name}: {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return {(collective, int(size)): float(median) for collective, size, median, _ in found}


def regime(build):
    return float(subprocess.run([str(build / "perf/compare/regime")], capture_output=True, text=True, check=True,
                                timeout=60).stdout)


def kind_of(latency):
    return "near" if latency < NEAR else "far"


def measure(runners, args):
    """(cell, library, regime) -> times of the turns, and all latencies."""
    samples, latencies = {}, []
    for collective in args.collectives.split(","):
        cells = [f"{collective}:{size}" for size in args.sizes.split(",")]
        for _ in range(args.turns):
            for runner in runners:
                for _ in range(3):
                    before = regime(args.build)
                    result = runner.run(cells)
                    after = regime(args.build)
                    if kind_of(before) == kind_of(after):
                        break
                latencies += [before, after]
                for cell, time in result.items():
                    samples.setdefault((cell, runner.name, kind_of(after)), []).append(time)
    return samples, latencies


def table(samples, names, args):
    rows = []
    for collective in args.collectives.split(","):
        for size in map(int, args.sizes.split(",")):
            for kind in ("near", "far"):
                times = {name: samples[((collective, size), name, kind)] for name in names
                         if ((collective, size), name, kind) in samples}
                medians = {name: statistics.median(all_turns) for name, all_turns in times.items()}
                peers = [time for name, time in medians.items() if not name.startswith(("weft", "bound"))]
                if "weft" not in medians:
                    continue
                row = {"collective": collective, "bytes": size, "regime": kind, "times": medians,
                       "spread": {name: max(all_turns) / min(all_turns) for name, all_turns in times.items()}}
                for name in ("weft", "weft-shared"):
                    if name in medians and peers:
                        row[f"ratio {name}"] = medians[name] / min(peers)
                rows.append(row)
    return rows


def show(rows, names, latencies, args):
    ratios = [name for name in ("weft", "weft-shared") if any(f"ratio {name}" in row for row in rows)]
    print(f"{args.ranks} ranks, {args.transport}, us (median over {args.turns} turns); cache line one way "
          f"{min(latencies):.0f}-{max(latencies):.0f} ns; x: over the best other library, below 1 Weft is faster")
    print("| collective | bytes | regime | " + " | ".join(names + [f"x {name}" for name in ratios]) + " |")
    print("|---|---|---|" + "---|" * (len(names) + len(ratios)))
    for row in rows:
        times = [f"{row['times'][name]:.2f}" if name in row["times"] else "." for name in names]
        over = [f"{row[f'ratio {name}']:.2f}" if f"ratio {name}" in row else "." for name in ratios]
        print(f"| {row['collective']} | {row['bytes']} | {row['regime']} | " + " | ".join(times + over) + " |")


def write_files(rows, names, args):
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["collective", "bytes", "regime"] + names)
            for row in rows:
                writer.writerow([row["collective"], row["bytes"], row["regime"]] +
                                [row["times"].get(name) for name in names])
    if args.plot:
        plot(rows, names, args)


def plot(rows, names, args):
    """Latency and bus bandwidth against size, one curve for each library; a row of axes for each collective."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    collectives = args.collectives.split(",")
    part = (args.ranks - 1) / args.ranks
    factor = {"allreduce": 2 * part, "broadcast": 1}
    figure, axes = pyplot.subplots(len(collectives), 2, figsize=(12, 4 * len(collectives)), squeeze=False)
    for (left, right), collective in zip(axes, collectives):
        for name in names:
            points = sorted((row["bytes"], row["times"][name]) for row in rows
                            if row["collective"] == collective and name in row["times"])
            if not points:
                continue
            sizes, times = zip(*points)
            left.plot(sizes, times, marker=".", label=name)
            right.plot(sizes, [size / time / 1e3 * factor.get(collective, part) for size, time in points], marker=".")
        for axis, label in ((left, "us"), (right, "bus bandwidth, GB/s")):
            axis.set(xscale="log", yscale="log", xlabel="bytes", ylabel=label, title=collective)
        left.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(args.plot)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build", help="build folder of Weft")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", choices=["shm", "tcp"], default="shm")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", help="bytes, comma-separated")
    parser.add_argument("--libraries", help="only these, comma-separated")
    parser.add_argument("--shared", action="store_true", help="also Weft on memory of weftMemAlloc, and the bounds of shm")
    parser.add_argument("--malloc", choices=["kept", "default"], default="kept", help="of the MPI libraries")
    parser.add_argument("--ucc", type=pathlib.Path, metavar="PREFIX")
    parser.add_argument("--oneccl", type=pathlib.Path, metavar="PREFIX")
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="a .svg or .png file; needs python3-matplotlib")
    args = parser.parse_args()
    args.sizes = args.sizes or ",".join(map(str, [4 * args.ranks] + SIZES))
    names = ["weft", "openmpi-ob1", "openmpi-ucx", "mpich", "gloo", "ucc", "oneccl"]
    if args.shared:
        names[1:1] = ["weft-shared", "bound-private", "bound-shared"]
    if args.transport == "tcp" and args.ranks == 2:
        names[1:1] = ["bound-tcp"]
    if args.libraries:
        names = args.libraries.split(",")
    with tempfile.TemporaryDirectory() as work:
        runners = []
        for name in names:
            runner = Runner(name, args, pathlib.Path(work))
            missing = runner.prepare()
            if missing is None:
                runners.append(runner)
            else:
                print(f"{name}: missing ({missing})", file=sys.stderr)
        names = [runner.name for runner in runners]
        samples, latencies = measure(runners, args)
    rows = table(samples, names, args)
    show(rows, names, latencies, args)
    write_files(rows, names, args)


if __name__ == "__main__":
    main()
