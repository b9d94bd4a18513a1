"""Did every folder under tests/ really run? Reads pytest's junit file; a silent folder fails.

A folder counts as run when at least one of its tests neither was skipped nor is missing.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    ran = count_ran(ElementTree.parse(ROOT / ".build" / "junit.xml"))
    silent = [name for name in test_folders() if not ran[name]]
    for name in silent:
        print(f"tests/{name}: no test ran")
    counts = ", ".join(f"{name} {ran[name]}" for name in test_folders())
    print(f"tests that ran: {counts}")
    return 1 if silent or not ran else 0


def test_folders() -> list[str]:
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]
    return sorted(path.name for path in folders if list(path.rglob("test_*.py")))


def count_ran(report: "ElementTree.ElementTree[ElementTree.Element]") -> Counter[str]:
    """Tests that ran, by the first folder below tests/ (`classname` is `tests.unit.core…`)."""
    ran: Counter[str] = Counter()
    for case in report.iter("testcase"):
        parts = case.get("classname", "").split(".")
        if case.find("skipped") is None and parts[0] == "tests" and len(parts) > 1:
            ran[parts[1]] += 1
    return ran


if __name__ == "__main__":
    sys.exit(main())
