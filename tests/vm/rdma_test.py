"""Jobs over verbs in a guest with two rails, which lose rails, buffers and patience; and over two guests.

usage: rdma_test.py BUILD_FOLDER [TEST...]
"""
import json
import os
import pathlib
import re
import sys

import vmtest

FULL = "WEFT_TEST_FULL" in os.environ
build = pathlib.Path(sys.argv.pop(1)).resolve()
RUN = [build / "tools/weft-run/weft-run", "--timeout", 400]
JOB = build / "tests/vm/rdma-job"
PERF = build / "perf/all_reduce_perf"
VERBS = {"WEFT_TRANSPORT": "verbs"}


class Jobs(vmtest.Base):
    def job(self, ranks, *command, devices=2, env=None, **options):
        return self.guest("--devices", devices, "--timeout", 420, "--", *RUN, "-n", ranks, *command,
                          env={**VERBS, **(env or {})}, timeout=500, **options)

    def sums(self, ranks, env=None, devices=2):
        result = self.job(ranks, PERF, "-b", 8, "-e", "512K", "-f", 16, "-c", 1, env=env, devices=devices)
        self.assertIn("Out of bounds values : 0 OK", result.stdout)

    def test_one_rail(self):
        self.sums(2, devices=1)

    def test_several_queue_pairs(self):
        self.sums(4, {"WEFT_VERBS_QUEUE_PAIRS": "3", "WEFT_VERBS_FRAGMENT": "16K", "WEFT_VERBS_MTU": "1024"})

    def test_connection_manager(self):
        self.sums(4, {"WEFT_VERBS_CONNECT": "rdmacm", "WEFT_VERBS_QUEUE_PAIRS": "2"})

    def test_both_rails_carry(self):
        rails = json.loads(re.search(r"\[\{.*\}\]", self.job(2, JOB, "rails").stdout)[0])
        self.assertEqual(len(rails), 2)
        sent = [rail["bytes_sent"] for rail in rails]
        self.assertGreater(min(sent), 0.3 * sum(sent), rails)

    def test_rails_are_lost_and_come_back(self):
        result = self.job(4, JOB, "faults", 100 if FULL else 15, 7)
        print("\n" + result.stdout, file=sys.stderr)
        self.assertRegex(result.stdout, r"faults \d+")

    def test_rails_are_lost_with_the_connection_manager(self):
        self.job(2, JOB, "links", 6, 3, env={"WEFT_VERBS_CONNECT": "rdmacm"})

    def test_the_last_rail_is_lost(self):
        result = self.job(4, JOB, "last")
        self.assertEqual(len(re.findall(r"after \d+ ms: .*all rails to rank \d", result.stdout)), 4, result.stdout)

    # Nothing is written to memory that was given back after an abort.
    def test_abort(self):
        self.assertIn("nothing was written", self.job(2, JOB, "abort").stdout)

    # B83, with a device.
    def test_memory_is_mapped_again(self):
        self.assertEqual(self.job(2, JOB, "remap").stdout.count("right"), 2)

    # B32: the limit is named, and the job runs over tcp.
    def test_locked_memory_is_limited(self):
        script = ("chmod 666 /dev/infiniband/*; ulimit -l 64; exec setpriv --reuid 65534 --regid 65534 --clear-groups "
                  f"{' '.join(map(str, RUN))} -n 2 {PERF} -b 8 -e 64K -f 16 -c 1")
        result = self.shell(script, "--devices", 1, env={"WEFT_TRANSPORT": "verbs,tcp", "WEFT_DEBUG": "warn"})
        self.assertIn("Out of bounds values : 0 OK", result.stdout)
        self.assertRegex(result.stdout + result.stderr, r"may lock 64 KiB of memory; raise it")

    # B37: a device that is listed and cannot be opened is left alone.
    def test_a_device_that_cannot_be_opened(self):
        script = (f"chmod 600 /dev/infiniband/uverbs0; exec setpriv --reuid 65534 --regid 65534 --clear-groups "
                  f"{build}/tools/weft-info/weft-info --transports")
        result = self.shell(script, "--devices", 2)
        self.assertRegex(result.stdout, r"rxe0:1 is not used: it is listed, but cannot be opened")
        self.assertRegex(result.stdout, r"rxe1:1 is used: active")

    def test_two_hosts(self):
        script = (f"export WEFT_RANK=$WEFT_TEST_VM_PEER WEFT_WORLD_SIZE=2 WEFT_ROOT=192.168.80.1:5000 WEFT_SECRET=x; "
                  f"exec {PERF} -b 8 -e 256K -f 16 -c 1")
        result = self.shell(script, "--peers", 2, "--devices", 0, env=VERBS)
        self.assertIn("Out of bounds values : 0 OK", result.stdout)


if __name__ == "__main__":
    vmtest.main()
