#!/usr/bin/env python3
"""Runs Weft and the MPI libraries of this machine side by side and prints a table of ratios.

Programs take turns (A B C A B C ...) collective by collective; the cache-line latency between the cores is measured
before and after each turn, and a turn during which it moved between "near" (under 120 ns) and "far" is thrown away and
repeated. Figures are medians over turns, of the median batch of each turn. A library that is not installed is reported
as missing.
"""
import argparse
import csv
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

COLLECTIVES = ["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"]
SIZES = [512, 4096, 32768, 524288, 8 << 20, 64 << 20]  # after one float for each rank
KEEP = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
HERE = pathlib.Path(__file__).resolve().parent


def compilers(work):
    """Compiles the MPI benchmark with each MPI that is there: name -> command prefix builder."""
    found = {}
    for name, wrapper, launcher in (
        ("openmpi", "mpicxx.openmpi", "mpirun.openmpi"),
        ("mpich", "mpicxx.mpich", "mpirun.mpich"),
    ):
        if not shutil.which(wrapper) or not shutil.which(launcher):
            print(f"{name}: missing ({wrapper} is not installed)", file=sys.stderr)
            continue
        binary = work / f"{name}_cells"
        subprocess.run([wrapper, "-O2", "-std=c++20", str(HERE / "mpi_cells.cpp"), "-o", str(binary)], check=True)
        found[name] = (launcher, binary)
    return found


def command(name, ranks, transport, build, mpi):
    environment = dict(os.environ)
    if name.startswith("weft"):
        environment["WEFT_TRANSPORT"] = transport
        if name == "weft-shared":
            environment["COMPARE_SHARED"] = "1"
        bind = "core" if ranks <= os.cpu_count() else "none"
        return [str(build / "tools/weft-run/weft-run"), "-n", str(ranks), "--no-prefix", "--bind", bind,
                str(build / "perf/compare/weft_cells")], environment
    launcher, binary = mpi[name]
    environment.update(KEEP)
    if name == "openmpi":
        bind = "core" if ranks <= os.cpu_count() else "none"
        btl = "self,tcp" if transport == "tcp" else "self,vader"
        return [launcher, "--allow-run-as-root", "--oversubscribe", "--bind-to", bind, "--mca", "pml", "ob1", "--mca",
                "btl", btl, "-np", str(ranks), str(binary)], environment
    if transport == "tcp":
        environment.update({"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"})
    bind = ["-bind-to", "core"] if ranks <= os.cpu_count() else []
    return [launcher] + bind + ["-np", str(ranks), str(binary)], environment


def regime(build):
    return float(subprocess.run([str(build / "perf/compare/regime")], capture_output=True, text=True, check=True,
                                timeout=60).stdout)


def turn(name, cells, args, mpi):
    argv, environment = command(name, args.ranks, args.transport, args.build, mpi)
    done = subprocess.run(argv + cells, capture_output=True, text=True, env=environment, timeout=600)
    result = {}
    for match in re.finditer(r"^cell (\S+) (\d+) (\S+) (\S+)$", done.stdout, re.M):
        result[(match[1], int(match[2]))] = float(match[3])
    if len(result) != len(cells):
        print(f"{name}: {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build", help="build folder of Weft")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", choices=["shm", "tcp"], default="shm")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", help="bytes, comma-separated")
    parser.add_argument("--shared", action="store_true", help="also Weft on memory of weftMemAlloc")
    parser.add_argument("--csv", type=pathlib.Path)
    args = parser.parse_args()
    args.sizes = args.sizes or ",".join(map(str, [4 * args.ranks] + SIZES))
    with tempfile.TemporaryDirectory() as work:
        mpi = compilers(pathlib.Path(work))
        names = ["weft"] + (["weft-shared"] if args.shared else []) + sorted(mpi)
        samples = {}
        latencies = []
        for collective in args.collectives.split(","):
            cells = [f"{collective}:{size}" for size in args.sizes.split(",")]
            for _ in range(args.turns):
                for name in names:
                    for _ in range(3):
                        before = regime(args.build)
                        result = turn(name, cells, args, mpi)
                        after = regime(args.build)
                        if (before < 120) == (after < 120):
                            break
                    latencies += [before, after]
                    for cell, time in result.items():
                        samples.setdefault((cell, name, "near" if after < 120 else "far"), []).append(time)
    rows = []
    print(f"{args.ranks} ranks, {args.transport}, us (median over turns); cache line one way "
          f"{min(latencies):.0f}-{max(latencies):.0f} ns; ratio: Weft / best other, below 1 Weft is faster")
    print("| collective | bytes | regime | " + " | ".join(names) + " | ratio |")
    print("|---|---|---|" + "---|" * (len(names) + 1))
    for collective in args.collectives.split(","):
        for size in map(int, args.sizes.split(",")):
            for kind in ("near", "far"):
                times = {name: statistics.median(samples[((collective, size), name, kind)])
                         for name in names if ((collective, size), name, kind) in samples}
                others = [time for name, time in times.items() if not name.startswith("weft")]
                if "weft" not in times or not others:
                    continue
                ratio = times["weft"] / min(others)
                rows.append([collective, size, kind] + [times.get(name) for name in names] + [ratio])
                print(f"| {collective} | {size} | {kind} | " +
                      " | ".join(f"{times[name]:.2f}" if name in times else "." for name in names) + f" | {ratio:.2f} |")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["collective", "bytes", "regime"] + names + ["ratio"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
