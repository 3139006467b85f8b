#!/usr/bin/env python3
"""Bandwidth of the ucx transport beside UCX itself: wire_bandwidth and ucx_perftest, turn by turn.

    ucx_compare.py BUILD [--rounds 5] [--cpus 0,1]

BUILD is the folder of a build. Needs Debian's ucx-utils. Prints a table of medians, in MiB/s, with the least and the
greatest value beside them.
"""
import argparse
import os
import statistics
import subprocess
import time

KINDS = {"shm": "posix,sysv,cma", "tcp": "tcp"}
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
PORT = 13400


def messages(size):
    return max(200, min(20000, (2 << 30) // size))


def weft(build, tls, size, cpus):
    environment = dict(os.environ, WEFT_UCX_TLS=tls)
    program = os.path.join(build, "perf/transports/wire_bandwidth")
    out = subprocess.run([program, "ucx", str(size), str(messages(size)), *cpus], env=environment, check=True,
                         stdout=subprocess.PIPE, text=True, timeout=120)
    return float(out.stdout)


def ucx(tls, size, cpus):
    global PORT
    PORT += 1
    environment = dict(os.environ, UCX_TLS=tls, UCX_LOG_LEVEL="fatal")
    common = ["ucx_perftest", "-t", "ucp_am_bw", "-s", str(size), "-n", str(messages(size)),
              "-w", str(messages(size) // 10 + 1), "-p", str(PORT), "-f"]
    server = subprocess.Popen([*common, "-c", cpus[0]], env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        out = subprocess.run([*common, "-c", cpus[1], "127.0.0.1"], env=environment, check=True,
                             stdout=subprocess.PIPE, text=True, timeout=120)
    finally:
        server.wait(timeout=60)
    # Final: iterations, three latencies, bandwidth (average, overall), message rate (average, overall).
    fields = [line for line in out.stdout.splitlines() if line.strip()][-1].split()
    return float(fields[-3])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", default="0,1")
    args = parser.parse_args()
    cpus = args.cpus.split(",")
    print("| over | bytes | weft | ucx_perftest | x weft |\n|---|---|---|---|---|", flush=True)
    for kind, tls in KINDS.items():
        for size in SIZES:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(weft(args.build, tls, size, cpus))
                theirs.append(ucx(tls, size, cpus))
            cells = [f"{statistics.median(each):.0f} ({min(each):.0f}-{max(each):.0f})" for each in (ours, theirs)]
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(f"| {kind} | {size} | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
