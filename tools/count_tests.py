#!/usr/bin/env python3
"""Counts single test cases in Meson's JUnit files and says what failed and why anything was skipped.

Prints the failures and skips, then "passed failed skipped" as the last line."""

import sys
import xml.etree.ElementTree as ElementTree


def reason(case, found):
    """Meson gives none: there it is the last line that the test printed."""
    text = found.get("message") or found.text
    if not text:
        printed = "\n".join(case.findtext(stream) or "" for stream in ("system-out", "system-err")).split("\n")
        text = next((line for line in reversed(printed) if line.strip()), "no reason given")
    return " ".join(text.split())


def cases(path):
    """Yields (name, outcome, reason); outcome is passed, failed or skipped."""
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for case in suite.findall("testcase"):
            name = ".".join(filter(None, (case.get("classname") or suite.get("name"), case.get("name"))))
            for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
                found = case.find(kind)
                if found is not None:
                    yield name, outcome, reason(case, found)
                    break
            else:
                skipped = case.get("status") == "notrun" or case.get("result") in ("skipped", "suppressed")
                yield name, "skipped" if skipped else "passed", "disabled" if skipped else ""


def main():
    label, counts = sys.argv[1], {"passed": 0, "failed": 0, "skipped": 0}
    for path in sys.argv[2:]:
        for name, outcome, reason in cases(path):
            counts[outcome] += 1
            if outcome != "passed":
                print(f"  {outcome} {label} {name}: {reason[:300]}")
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main()
