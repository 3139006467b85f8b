#!/usr/bin/env python3
"""Bandwidth of the ucx transport beside UCX itself: wire_bandwidth, ucx_perftest, and ucx_perftest with endpoints that
may fail (-e), as the transport's may, turn by turn.

    ucx_compare.py BUILD [--rounds 5] [--cpus 0,1]

BUILD is the folder of a build. Needs Debian's ucx-utils. Prints a table of medians, in MiB/s, with the least and the
greatest value beside them. All send one buffer over and over, which was never written, and receive into another.
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
    return max(200, min(10000, (1 << 30) // size))


def weft(build, tls, size, cpus):
    environment = dict(os.environ, WEFT_UCX_TLS=tls)
    program = os.path.join(build, "perf/transports/wire_bandwidth")
    out = subprocess.run([program, "ucx", str(size), str(messages(size)), *cpus], env=environment, check=True,
                         stdout=subprocess.PIPE, text=True, timeout=120)
    return float(out.stdout)


def ucx(tls, size, cpus, *options):
    global PORT
    PORT += 1
    environment = dict(os.environ, UCX_TLS=tls, UCX_LOG_LEVEL="fatal", UCX_MM_ERROR_HANDLING="y", UCX_CMA_MEMORY_INVALIDATE="y",
                       UCX_ALLOC_PRIO="mmap")
    common = ["ucx_perftest", "-t", "ucp_am_bw", "-s", str(size), "-n", str(messages(size)),
              "-w", str(messages(size) // 10 + 1), "-p", str(PORT), "-f", *options]
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
    print("| over | bytes | weft | ucx_perftest | ucx_perftest -e | x weft | x weft, -e |\n" + 7 * "|---" + "|", flush=True)
    for kind, tls in KINDS.items():
        for size in SIZES:
            columns = [[], [], []]
            for _ in range(args.rounds):
                columns[0].append(weft(args.build, tls, size, cpus))
                columns[1].append(ucx(tls, size, cpus))
                columns[2].append(ucx(tls, size, cpus, "-e"))
            medians = [statistics.median(column) for column in columns]
            cells = [f"{median:.0f} ({min(column):.0f}-{max(column):.0f})" for median, column in zip(medians, columns)]
            ratios = [f"{medians[0] / median:.2f}" for median in medians[1:]]
            print("| " + " | ".join([kind, str(size), *cells, *ratios]) + " |", flush=True)


if __name__ == "__main__":
    main()
