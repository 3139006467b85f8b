"""`vm` itself: commands go in, output and status come out, and every way to end is told from the others.

usage: boot_test.py [TEST...]
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import vmtest

# So that nobody's own kernel is hurt, should this ever run elsewhere.
SYSRQ = "grep -q oops=panic /proc/cmdline && [ -e /run/rails ] && echo {} > /proc/sysrq-trigger; sleep 60"


class Commands(vmtest.Base):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_status_and_outputs(self):
        script = 'echo "to $1"; echo "to $2" >/dev/stderr; cat; printf "no end"; exit 7'
        result = self.guest("--devices", 0, "--", "sh", "-c", script, "sh", "out, it's $HOME", "err", status=7)
        self.assertEqual((result.stdout, result.stderr), ("to out, it's $HOME\nno end", "to err\n"))

    @vmtest.full
    def test_bytes(self):
        code = r"import os; [os.write(1, bytes(range(256)) * 256) for i in range(16)]; os.write(2, b'\1\r\0\1weft-vm')"
        result = subprocess.run([*vmtest.VM, "run", "--devices", "0", "--", "python3", "-c", code],
                                capture_output=True, timeout=400)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, bytes(range(256)) * 256 * 16)
        self.assertEqual(result.stderr, b"\1\r\0\1weft-vm")

    @vmtest.full
    def test_surroundings(self):
        """Variables, working folder, what can be written to, and a process that stays behind."""
        (self.folder / "out").mkdir()
        (self.folder / "seen").write_text("below the host's /tmp\n")
        self.shell(
            "exec >out/report; cat seen; pwd; id -u; ulimit -l;"
            "echo $WEFT_TEST_ONE; echo $GTEST_TWO; echo ${OTHER-none};"
            "for path in /tmp/x /run/x /dev/shm/x ./x /etc/x; do if touch $path; then echo $path; fi; done 2>/dev/null;"
            "hostname | grep -q vm && getent hosts $(hostname) | cut -d' ' -f1; sleep 1000 &",
            "--out", "out", cwd=self.folder, env={"WEFT_TEST_ONE": "a\nb'c", "GTEST_TWO": "2", "OTHER": "3"})
        wanted = ["below the host's /tmp", str(self.folder), "0", "unlimited", "a b'c", "2", "none", "/tmp/x", "/run/x",
                  "/dev/shm/x"]
        # The working folder is below /tmp, or it is read-only.
        wanted += ["./x"] if str(self.folder).startswith("/tmp/") else []
        self.assertEqual((self.folder / "out" / "report").read_text().splitlines(), [*wanted, "127.0.0.1"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["out", "seen"])

    def test_missing_command(self):
        result = self.guest("--devices", 0, "--", "./no-such-command", status=127)
        self.assertIn("not found", result.stderr)

    @vmtest.full
    def test_old_report_is_not_taken_for_a_new_one(self):
        report = self.folder / "report.xml"
        report.write_text("<old/>")
        self.guest("--", "true", f"--gtest_output=xml:{report}", status=77, env={"WEFT_TEST_NO_VM": "not now"})
        self.assertFalse(report.exists())


class Ends(vmtest.Base):
    def test_timeout(self):
        begin = time.monotonic()
        result = self.shell("echo begun; sleep 1000", "--timeout", 2, "--devices", 0, status=124)
        self.assertEqual(result.stdout, "begun\n")
        self.assertIn("timed out: the command in the guest had not ended after 2 s", result.stderr)
        self.assertLess(time.monotonic() - begin, 200)

    @vmtest.full
    def test_panic(self):
        result = self.shell("echo begun; " + SYSRQ.format("c"), "--devices", 0, status=123)
        self.assertEqual(result.stdout, "begun\n")
        self.assertIn("the kernel of the guest panicked before its command had ended", result.stderr)
        self.assertIn("Kernel panic - not syncing: sysrq triggered crash", result.stderr)

    @vmtest.full
    def test_switched_off(self):
        result = self.shell(SYSRQ.format("o"), "--devices", 0, status=123)
        self.assertIn("the guest went down before its command had ended", result.stderr)

    @vmtest.full
    def test_never_came_up(self):
        result = self.guest("--boot-timeout", 0.5, "--", "true", status=125)
        self.assertIn("the guest did not come up within 0.5 s", result.stderr)

    def test_killed_parent_leaves_nothing(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            command = [*vmtest.VM, "run", "--devices", "0", "--", "sh", "-c", "echo up; sleep 1000"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
                self.assertEqual(parent.stdout.readline(), "up\n")
                child = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
                self.assertEqual(len(child), 1)
                parent.send_signal(number)
                parent.wait(60)
            deadline = time.monotonic() + 60
            while os.path.exists(f"/proc/{child[0]}") and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertFalse(os.path.exists(f"/proc/{child[0]}"))


class Rails(vmtest.Base):
    def test_devices(self):
        shown = self.shell("rdma link; ip -o address; cat /sys/class/net/a1/mtu; ibv_devinfo -v", "--devices", 2).stdout
        for rail in (0, 1):
            self.assertIn(f"link rxe{rail}/1 state ACTIVE physical_state LINK_UP netdev a{rail}", shown)
            self.assertIn(f"inet 192.168.{70 + rail}.1/24", shown)
            self.assertRegex(shown, rf"GID\[ *1\]:\s+::ffff:192.168.{70 + rail}.1")
        self.assertIn("\n9000\n", shown)
        self.assertEqual(shown.count("active_mtu:\t\t4096 (5)"), 2)

    @vmtest.full
    def test_no_device(self):
        result = self.shell("rdma link; ls /dev/infiniband/uverbs*; ip -br link", "--devices", 0)
        self.assertNotIn("rxe", result.stdout)
        self.assertNotIn("uverbs0", result.stdout)
        self.assertRegex(result.stdout, r"^lo\s+UNKNOWN.*\s*$")

    @vmtest.full
    def test_two_guests(self):
        """Both run the command at once, know each other, and stay up for each other; the larger status counts."""
        result = self.shell("rdma link | grep -c ACTIVE; hostname; echo I am $WEFT_TEST_VM_SELF;"
                            "busybox ping -c 1 -w 20 $WEFT_TEST_VM_OTHER >/dev/null && echo I see $WEFT_TEST_VM_OTHER;"
                            "exit $((3 + WEFT_TEST_VM_PEER))", "--peers", 2, status=4)
        wanted = {f"[{peer}] {line}" for peer in (0, 1) for line in
                  ("2", f"weft-vm{peer}", f"I am 192.168.80.{peer + 1}", f"I see 192.168.80.{2 - peer}")}
        self.assertEqual(set(result.stdout.splitlines()), wanted)


class Images(unittest.TestCase):
    @vmtest.full
    def test_two_builds_at_once(self):
        cache = pathlib.Path(vmtest.run("build").stdout.strip()).parent
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            shutil.copytree(cache, pathlib.Path(folder, "weft-vm"), copy_function=os.link,
                            ignore=lambda _, names: [name for name in names if not name.endswith(".deb")])
            builds = [subprocess.Popen([*vmtest.VM, "build"], stdout=subprocess.PIPE, text=True,
                                       env={**os.environ, "XDG_CACHE_HOME": folder}) for _ in range(2)]
            printed = [build.communicate(timeout=300)[0].strip() for build in builds]
            self.assertEqual([build.returncode for build in builds], [0, 0])
            self.assertEqual(printed[0], printed[1])
            self.assertEqual(sorted(os.listdir(printed[0])), ["initrd", "kernel"])
            left = [name for name in os.listdir(pathlib.Path(folder, "weft-vm")) if not name.endswith(".deb")]
            self.assertEqual(sorted(left), sorted(["lock", os.path.basename(printed[0])]))

    def test_reasons_to_skip(self):
        no_qemu = "qemu-system-x86_64 is not installed (Debian package qemu-system-x86)"
        for env, words in (({"PATH": "/nowhere"}, no_qemu),
                           ({"WEFT_TEST_NO_VM": "not today"}, "not today"),
                           ({"XDG_CACHE_HOME": "/proc/nowhere"}, "/proc/nowhere")):
            result = vmtest.run("run", "--", "true", env=env)
            self.assertEqual(result.returncode, 77)
            self.assertRegex(result.stderr, r"^vm: .*")
            self.assertIn(words, result.stderr)

    def test_refuses(self):
        for arguments in (["run"], ["run", "--devices", "9", "--", "true"], ["run", "--timeout", "0", "--", "true"],
                          ["run", "--out", "/no/such/folder", "--", "true"], ["run", "--peers", "3", "--", "true"]):
            result = vmtest.run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)


if __name__ == "__main__":
    vmtest.main()
