#!/usr/bin/env python3
"""Collectives between sites with long links: right, and with as many bytes on the link as the algorithm says.
levels_test.py BUILD; exit code 77: it cannot run here, and why."""
import importlib.machinery
import importlib.util
import pathlib
import sys

BUILD = pathlib.Path(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


def load(path):
    loader = importlib.machinery.SourceFileLoader("weft_wan", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("weft_wan", loader))
    loader.exec_module(module)
    return module


weft_wan = load(SOURCE / "perf/wan/weft-wan")
COUNT = 1 << 19  # floats: 2 MiB
BYTES = 4 * COUNT
CALLS = 4
TOLERANCE = 0.02
failures = []


def expect(good, what):
    print(("ok      " if good else "FAILED  ") + what)
    if not good:
        failures.append(what)


def run(sites, ranks, collective, count, algorithm):
    before = sites.sent()
    done = sites.job(BUILD / "tools/weft-run/weft-run", ranks,
                     [BUILD / "tests/wan/wan-job", collective, count, CALLS],
                     {"WEFT_ALGO": f"{collective}:{algorithm}", "WEFT_TIMEOUT": "30"}, capture_output=True, text=True,
                     timeout=100)
    if done.returncode != 0:
        expect(False, f"{collective} {algorithm}: {done.returncode}: {done.stderr.strip()[-300:]}")
        return None
    return [after - earlier for after, earlier in zip(sites.sent(), before)]


def check_bytes(what, sent, expected):
    """Out of each site, over all calls."""
    for site, (found, wanted) in enumerate(zip(sent, expected)):
        wanted *= CALLS + 1
        # Connections, barriers and acknowledgements are what the tolerance is for.
        expect(wanted * (1 - TOLERANCE) <= found <= wanted * (1 + TOLERANCE) + 100_000,
               f"{what}: site {site} sent {found / 1e6:.2f} MB, by the formula {wanted / 1e6:.2f}")


def main():
    if reason := weft_wan.why_not(BUILD):
        print(reason)
        sys.exit(77)
    link = ["--mbit", 400, "--delay-ms", 5]
    for count, ranks in ((2, 2), (3, 2)):
        with weft_wan.Sites(count, weft_wan.link_program(BUILD), link) as sites:
            took = sites.round_trip_ms(0, 1)
            expect(took is not None and 9 < took < 14, f"the link's round trip is {took} ms, of 10")
            everyone, vector = count * ranks, BYTES
            sent = run(sites, ranks, "allreduce", COUNT, "ring")
            if sent:  # the ring enters each site at one rank and leaves it at another
                check_bytes("allreduce ring", sent, [2 * (everyone - 1) / everyone * vector] * count)
            sent = run(sites, ranks, "allreduce", COUNT, "hierarchical")
            if sent:
                check_bytes("allreduce hierarchical", sent, [2 * (count - 1) / count * vector] * count)
            sent = run(sites, ranks, "allgather", COUNT // everyone, "hierarchical")
            if sent:  # around the sites: a site sends what is not the next one's
                check_bytes("allgather hierarchical", sent, [(count - 1) * ranks * (vector / everyone)] * count)
            sent = run(sites, ranks, "broadcast", COUNT, "hierarchical")
            if sent:  # a chain
                check_bytes("broadcast hierarchical", sent, [vector] * (count - 1) + [0])
            sent = run(sites, ranks, "alltoall", COUNT // everyone, "hierarchical")
            if sent:
                check_bytes("alltoall hierarchical", sent,
                            [ranks * (everyone - ranks) * (vector / everyone)] * count)
    sys.exit(1 if failures else 0)


main()
