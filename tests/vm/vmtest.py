"""What the tests of the virtual machine share."""
import os
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
VM = [sys.executable, str(pathlib.Path(__file__).resolve().parent / "vm")]


def run(*arguments, env=None, timeout=400, **options):
    return subprocess.run([*VM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})}, **options)


FULL = "WEFT_TEST_FULL" in os.environ
full = unittest.skipUnless(FULL, "only with WEFT_TEST_FULL (tools/check --full)")


class Base(unittest.TestCase):
    def guest(self, *arguments, status=0, **options):
        """vm run: its result, which has this status."""
        result = run("run", *arguments, **options)
        self.assertEqual(result.returncode, status, f"{arguments}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result

    def shell(self, script, *options, status=0, **more):
        return self.guest(*options, "--", "sh", "-c", script, status=status, **more)


def main():
    """Runs the tests of the calling program; exits with 77 where there can be no guest."""
    built = run("build")
    if built.returncode:
        print(built.stderr, end="")
        sys.exit(built.returncode)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
