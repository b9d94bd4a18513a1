"""Is every file of ours tidy? The rules of style.md, with a ratchet that only tightens."""

from collections.abc import Callable
from typing import Final

import pytest

from tests.tidy import rules
from tests.tidy.tree import our_files, python_files, text_of

# (rule, file): why it may break the rule for now. An entry that is no longer needed fails.
RATCHET: Final[dict[tuple[str, str], str]] = {}

# Files that may wait in real time, because they wait for real processes.
MAY_SLEEP: Final = ("tests/crash/", "tests/running_server.py")

PYTHON_RULES: Final[tuple[Callable[[str], list[str]], ...]] = (
    rules.too_long,
    rules.wide_lines,
    rules.long_functions,
    rules.swallowed_exceptions,
)


def check(rule: Callable[[str], list[str]], names: list[str], *, of_path: bool = False) -> None:
    """Fail with every violation outside the ratchet, and with every stale entry of it."""
    broken = {name: rule(name if of_path else text_of(name)) for name in names}
    broken = {name: found for name, found in broken.items() if found}
    allowed = {path for rule_name, path in RATCHET if rule_name == rule.__name__}
    lines = [f"{n}: {v}" for n, found in broken.items() if n not in allowed for v in found]
    lines += [f"{name}: tidy now, take it off the ratchet" for name in allowed - broken.keys()]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_python_files_obey(rule):
    check(rule, python_files())


def test_every_module_says_its_question():
    check(rules.missing_docstring, python_files("src", "benchmarks", "examples", "scripts"))


def test_names_say_something():
    check(rules.banned_name, python_files(), of_path=True)


def test_no_test_sleeps():
    tests = [name for name in python_files("tests") if not name.startswith(MAY_SLEEP)]
    check(rules.sleeps, tests)


def test_no_file_names_a_registry_or_one_machine():
    texts = [name for name in our_files() if not name.endswith((".png", ".gguf", ".gz"))]
    check(rules.foreign_places, texts)


def test_every_limit_says_what_breaks():
    check(rules.undocumented_limits, ["src/mantle/core/limits.py"])
