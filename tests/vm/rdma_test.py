"""Jobs over verbs in a guest with two rails, which lose rails, buffers and patience; and over two guests. The jobs of one
guest run in it one after the other: each has a test that looks at how it went.

usage: rdma_test.py BUILD_FOLDER [TEST...]
"""
import json
import pathlib
import re
import sys

import vmtest

build = pathlib.Path(sys.argv.pop(1)).resolve()
RUN = f"{build}/tools/weft-run/weft-run --timeout 400"
JOB = f"{build}/tests/vm/rdma-job"
PERF = f"{build}/perf/all_reduce_perf"
SUMS = f"{PERF} -b 8 -e 512K -f 64 -c 1"
PROGRAMS = sorted(program.name for program in (build / "perf").glob("*_perf"))
ALL = "; ".join(f"{RUN} -n 4 {build}/perf/{program} -b 256 -e 64K -f 256 -n 2 -w 1 -c 1 || exit 1" for program in PROGRAMS)
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"

# Name: what runs. Those that take a rail away for good come last.
JOBS = {
    "one_rail": f"WEFT_VERBS_DEVICES=rxe1 {RUN} -n 2 {SUMS}",
    "several_queue_pairs": f"WEFT_VERBS_QUEUE_PAIRS=3 WEFT_VERBS_FRAGMENT=16K WEFT_VERBS_MTU=1024 {RUN} -n 4 {SUMS}",
    "connection_manager": f"WEFT_VERBS_CONNECT=rdmacm WEFT_VERBS_QUEUE_PAIRS=2 {RUN} -n 4 {SUMS}",
    "all_collectives": ALL,
    "both_rails_carry": f"{RUN} -n 2 {JOB} rails",
    "memory_is_mapped_again": f"{RUN} -n 2 {JOB} remap",
    "abort": f"{RUN} -n 2 {JOB} abort",
    "locked_memory_is_limited": f"chmod 666 /dev/infiniband/*; ulimit -l 64; WEFT_TRANSPORT=verbs,tcp WEFT_DEBUG=warn "
                                f"{NOBODY} {RUN} -n 2 {SUMS}",
    "a_device_cannot_be_opened": f"chmod 600 /dev/infiniband/uverbs0; {NOBODY} {build}/tools/weft-info/weft-info",
    "rails_are_lost_and_come_back": f"{RUN} -n 4 {JOB} faults {100 if vmtest.FULL else 10} 7",
    # A link only, and for good: soft-RoCE's own queue pair, which the connection manager needs, does not survive that.
    "a_link_is_lost_with_the_connection_manager": f"WEFT_VERBS_CONNECT=rdmacm {RUN} -n 2 {JOB} one",
    "the_last_rail_is_lost": f"ip link set a1 up; sleep 1; {RUN} -n 4 {JOB} last",
}

if vmtest.FULL:  # they run without a guest, too
    # Over rc and ud, UCX 1.13 does not come up on soft-RoCE: its wire-up, by ud, times out.
    UCX = "UCX_TLS=tcp,sysv,posix,cma,self"
    JOBS["all_collectives_over_ucx"] = f"export WEFT_TRANSPORT=ucx {UCX}; {ALL}"
    JOBS["conformance_over_ucx"] = f"{UCX} {build}/tests/conformance/conformance-tests --gtest_filter='*/ucx_*'"


class OneGuest(vmtest.Base):
    @classmethod
    def setUpClass(cls):
        script = "".join(f"echo '=== {name}'; ({command}) 2>&1; echo \"=== status $?\";" for name, command in JOBS.items())
        result = vmtest.run("run", "--devices", 2, "--timeout", 900, "--", "sh", "-c", script,
                            env={"WEFT_TRANSPORT": "verbs"}, timeout=1000)
        cls.parts = dict(re.findall(r"=== (\w+)\n(.*?=== status \d+)$", result.stdout, re.MULTILINE | re.DOTALL))
        cls.all = f"{result.returncode}\n{result.stdout[-4000:]}\n{result.stderr}"

    def went(self, name):
        """The output of a job that ended well."""
        self.assertIn(name, self.parts, self.all)
        self.assertTrue(self.parts[name].endswith("=== status 0"), self.parts[name][-4000:])
        return self.parts[name]

    def sums_are_right(self, name):
        output = self.went(name)
        self.assertIn("Out of bounds values : 0 OK", output)
        return output

    def test_one_rail(self):
        self.sums_are_right("one_rail")

    def test_several_queue_pairs(self):
        self.sums_are_right("several_queue_pairs")

    def test_connection_manager(self):
        self.sums_are_right("connection_manager")

    def test_all_collectives(self):
        self.assertEqual(self.went("all_collectives").count("Out of bounds values : 0 OK"), len(PROGRAMS))

    @vmtest.full
    def test_all_collectives_over_ucx(self):
        self.assertEqual(self.went("all_collectives_over_ucx").count("Out of bounds values : 0 OK"), len(PROGRAMS))

    @vmtest.full
    def test_conformance_over_ucx(self):
        self.assertIn("[  PASSED  ]", self.went("conformance_over_ucx"))

    def test_both_rails_carry(self):
        rails = json.loads(re.search(r"\[\{.*\}\]", self.went("both_rails_carry"))[0])
        self.assertEqual(len(rails), 2)
        sent = [rail["bytes_sent"] for rail in rails]
        self.assertGreater(min(sent), 0.3 * sum(sent), rails)

    def test_memory_is_mapped_again(self):
        """B83, with a device."""
        self.assertEqual(self.went("memory_is_mapped_again").count("right"), 2)

    def test_abort(self):
        """Nothing is written to memory that was given back after an abort, by a peer that was stopped meanwhile."""
        self.assertIn("nothing was written", self.went("abort"))

    def test_locked_memory_is_limited(self):
        """B32: the limit is named, and the job runs over tcp."""
        self.assertRegex(self.sums_are_right("locked_memory_is_limited"), r"may lock 64 KiB of memory; raise it")

    def test_a_device_cannot_be_opened(self):
        """B37: it is left alone."""
        output = self.went("a_device_cannot_be_opened")
        self.assertRegex(output, r"rxe0:1 is not used: it is listed, but cannot be opened")
        self.assertRegex(output, r"rxe1:1 is used: active")

    def test_rails_are_lost_and_come_back(self):
        output = self.went("rails_are_lost_and_come_back")
        print(f"\n{output}", file=sys.stderr)
        self.assertRegex(output, r"faults \d+")

    def test_a_link_is_lost_with_the_connection_manager(self):
        output = self.went("a_link_is_lost_with_the_connection_manager")
        self.assertEqual(output.count("right, with 1 connections"), 2, output)

    def test_the_last_rail_is_lost(self):
        output = self.went("the_last_rail_is_lost")
        self.assertEqual(len(re.findall(r"after \d+ ms: .*all rails to rank \d", output)), 4, output)


class TwoGuests(vmtest.Base):
    def test_two_hosts(self):
        script = ("export WEFT_RANK=$WEFT_TEST_VM_PEER WEFT_WORLD_SIZE=2 WEFT_ROOT=192.168.80.1:5000 WEFT_SECRET=x; "
                  f"exec {SUMS}")
        result = self.shell(script, "--peers", 2, "--devices", 0, env={"WEFT_TRANSPORT": "verbs"})
        self.assertIn("Out of bounds values : 0 OK", result.stdout)


if __name__ == "__main__":
    vmtest.main()
