#!/usr/bin/env python3
"""The verbs transport beside perftest, turn by turn: wire_bandwidth, ib_write_bw and ib_write_lat between two processes
that share a device.

    verbs_compare.py BUILD [--device rxe0] [--gid 1] [--rounds 5]
    tests/vm/vm run --timeout 900 -- python3 perf/transports/verbs_compare.py build       # on soft-RoCE

BUILD is the folder of a build. Needs Debian's perftest. Prints medians, with the least and the greatest value beside them:
bandwidth in MiB/s, latency in microseconds one way.
"""
import argparse
import os
import statistics
import subprocess
import time

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
PORT = 13500


def messages(size):
    return max(100, min(2000, (128 << 20) // size))


def weft(args, *options):
    environment = dict(os.environ, WEFT_VERBS_DEVICES=args.device, WEFT_VERBS_GID_INDEX=str(args.gid))
    program = os.path.join(args.build, "perf/transports/wire_bandwidth")
    out = subprocess.run([program, *map(str, options)], env=environment, check=True, stdout=subprocess.PIPE, text=True,
                         timeout=300)
    return float(out.stdout)


def perftest(args, program, size, count, column):
    global PORT
    PORT += 1
    command = [program, "-d", args.device, "-x", str(args.gid), "-s", str(size), "-n", str(count), "-p", str(PORT), "-F"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(20):
            time.sleep(0.5)
            out = subprocess.run([*command, "localhost"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                 timeout=300)
            if out.returncode == 0:
                break
    finally:
        server.wait(timeout=60)
    line = next(line for line in out.stdout.splitlines() if line.split()[:1] == [str(size)])
    return float(line.split()[column])


def row(name, rounds, ours, theirs):
    columns = [[], []]
    for _ in range(rounds):
        columns[0].append(ours())
        columns[1].append(theirs())
    medians = [statistics.median(column) for column in columns]
    cells = [f"{median:.4g} ({min(column):.4g}-{max(column):.4g})" for median, column in zip(medians, columns)]
    print("| " + " | ".join([name, *cells, f"{medians[0] / medians[1]:.2f}"]) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--gid", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| what | weft | perftest | weft / perftest |\n" + 4 * "|---" + "|", flush=True)
    row("8 B, us one way (ib_write_lat)", args.rounds, lambda: weft(args, "--latency", "verbs", 8, 1000),
        lambda: perftest(args, "ib_write_lat", 8, 1000, 4))
    for size in SIZES:
        row(f"{size >> 10} KiB, MiB/s (ib_write_bw)", args.rounds, lambda: weft(args, "verbs", size, messages(size)),
            lambda: perftest(args, "ib_write_bw", size, messages(size), 3))


if __name__ == "__main__":
    main()
