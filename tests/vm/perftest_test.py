"""What others' programs measure over soft-RoCE: verbs work in the guest, and between two guests.

usage: perftest_test.py [TEST...]
"""
import re
import shutil
import sys

import vmtest

PROGRAMS = {"ibv_rc_pingpong": "ibverbs-utils", "rping": "rdmacm-utils", "ib_write_bw": "perftest",
            "ib_write_lat": "perftest"}
# A server needs a moment until it listens.
TRY = "try() { for i in 1 2 3 4 5 6 7 8; do sleep 1; \"$@\" && return; done; return 1; }; set -e; "


class Soft(vmtest.Base):
    def test_one_guest(self):
        result = self.shell(
            TRY + "ping='ibv_rc_pingpong -d rxe0 -g 1 -n 200'; $ping >/dev/null & try $ping localhost; wait $!;"
            "rping -s -a 192.168.70.1 -C 5 & try rping -c -a 192.168.70.1 -C 5; wait $!; echo rping works;"
            "write='ib_write_bw -d rxe0 -x 1 -s 65536 -n 500'; $write >/dev/null & try $write localhost; wait $!",
            "--timeout", 120)
        self.assertRegex(result.stdout, r"200 iters in [\d.]+ seconds")
        self.assertIn("rping works", result.stdout)
        bandwidth = re.search(r"^ *65536 +500 +[\d.]+ +([\d.]+)", result.stdout, re.MULTILINE)
        self.assertTrue(bandwidth, result.stdout)
        self.assertGreater(float(bandwidth[1]), 1)  # MB/s

    def test_two_guests(self):
        result = self.shell(
            TRY + 'measure="ib_write_lat -d rxe_eth0 -x 1 -s 8 -n 200"; if [ $WEFT_TEST_VM_PEER = 0 ]; then $measure;'
            "else try $measure $WEFT_TEST_VM_OTHER; fi", "--peers", 2, "--devices", 0, "--timeout", 120)
        for peer in (0, 1):
            self.assertRegex(result.stdout, rf"(?m)^\[{peer}\]  *8 +200 +[\d.]+ +[\d.]+")


if __name__ == "__main__":
    if not vmtest.FULL:
        print("others' programs: only with WEFT_TEST_FULL (tools/check --full)")
        sys.exit(77)
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            print(f"{program} is not installed (Debian package {package})")
            sys.exit(77)
    vmtest.main()
