"""What is tidy? Each rule is a pure function of one file's text that returns its violations.

A violation is `what is wrong` without the file's name; an empty list means tidy.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70
LINE_COLUMNS_MAX: Final = 100
BANNED_NAMES: Final = frozenset({"utils", "helpers", "manager", "base", "misc", "data", "info"})

# Spelled in parts, so that this file does not break its own rule.
_HOSTS: Final = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "registry" + ".npmjs.org",
    "crates" + ".io",
    "proxy" + ".golang.org",
)
_MACHINE_PATHS: Final = ("/work" + "/", "/tmp/" + "w/", "/root" + "/", "/opt/" + "pypi")


def too_long(text: str) -> list[str]:
    count = len(text.splitlines())
    return [f"{count} lines, at most {FILE_LINES_MAX}"] if count > FILE_LINES_MAX else []


def wide_lines(text: str) -> list[str]:
    return [
        f"line {number} has {len(line)} columns, at most {LINE_COLUMNS_MAX}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LINE_COLUMNS_MAX
    ]


def long_functions(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return found


def missing_docstring(text: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(text)) else ["the module has no docstring"]


def banned_name(path: str) -> list[str]:
    """Also for folders: a name that says nothing invites everything."""
    parts = {part.removesuffix(".py") for part in PurePosixPath(path).parts}
    return [f"the name `{part}` says nothing" for part in sorted(parts & BANNED_NAMES)]


def swallowed_exceptions(text: str) -> list[str]:
    """A broad `except` that does nothing, or a broad `suppress`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and _is_idle(node.body):
            found.append(f"line {node.lineno} swallows every exception")
        if isinstance(node, ast.Call) and _suppresses_all(node):
            found.append(f"line {node.lineno} suppresses every exception")
    return found


def sleeps(text: str) -> list[str]:
    """`time.sleep(…)` of anything, `asyncio.sleep(…)` of more than nothing."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _dotted(node.func) in _SLEEPS and not _yields_only(node):
            found.append(f"line {node.lineno} sleeps")
        if isinstance(node, ast.ImportFrom) and _imports_sleep(node):
            found.append(f"line {node.lineno} imports sleep by name")
    return found


def foreign_places(text: str) -> list[str]:
    """Registry hosts, and absolute paths of one machine."""
    found = [f"names the registry host {host}" for host in _HOSTS if host in text]
    found += [
        f"names the machine's path {path}"
        for path in _MACHINE_PATHS
        if re.search(r"(?<![\w.~*>}-])" + re.escape(path), text)
    ]
    return found


def undocumented_limits(text: str) -> list[str]:
    """Every constant, or run of constants, is followed by a string that says what breaks."""
    body = ast.parse(text).body
    found = []
    for index, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and not _leads_to_string(body[index + 1 :]):
            found.append(f"{ast.unparse(node.target)} has no docstring after it")
    return found


def test_function_count(text: str) -> int:
    """How many tests pytest would collect from this text, parametrisation aside."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        for node in ast.walk(ast.parse(text))
    )


_SLEEPS: Final = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep"})


def _leads_to_string(rest: list[ast.stmt]) -> bool:
    for node in rest:
        if isinstance(node, ast.AnnAssign):
            continue
        return isinstance(node, ast.Expr) and isinstance(_constant(node.value), str)
    return False


def _yields_only(call: ast.Call) -> bool:
    """`asyncio.sleep(0)`: a turn of the loop, no time."""
    return not _dotted(call.func).startswith("time.") and [*map(_constant, call.args)] == [0]


def _suppresses_all(call: ast.Call) -> bool:
    is_suppress = _dotted(call.func) in {"suppress", "contextlib.suppress"}
    return is_suppress and any(map(_is_broad, call.args))


def _imports_sleep(node: ast.ImportFrom) -> bool:
    names = {alias.name for alias in node.names}
    return node.module in {"time", "asyncio", "anyio"} and "sleep" in names


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _is_broad(node: ast.expr | None) -> bool:
    if node is None:
        return True
    if isinstance(node, ast.Tuple):
        return any(_is_broad(element) for element in node.elts)
    return _dotted(node) in {"Exception", "BaseException"}


def _is_idle(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _dotted(node: ast.expr) -> str:
    return ".".join(reversed([*_parts(node)]))


def _parts(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
