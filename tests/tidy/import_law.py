"""Who may import whom (design law 3)? A stage looks right, and there only at ports.

import-linter checks the direction of packages; this adds what it cannot say: of the stages to
its right, a stage uses nothing but the module `port`. `cluster`, `cli` and `testing` wire and
drive the parts, so they may see inside.
"""

import ast
from collections.abc import Iterator
from typing import Final

ROWS: Final[tuple[frozenset[str], ...]] = (
    frozenset({"cli"}),
    frozenset({"testing"}),
    frozenset({"cluster"}),
    frozenset({"gateway"}),
    frozenset({"admission"}),
    frozenset({"scheduler"}),
    frozenset({"pool"}),
    frozenset({"engine", "training"}),
    frozenset({"journal"}),
    frozenset({"text", "confidential", "observe"}),
    frozenset({"core"}),
)
OPEN_TO_ALL: Final = frozenset({"text", "confidential", "observe", "core"})
SEES_INSIDE: Final = frozenset({"cli", "testing", "cluster"})
PACKAGE_FACTS: Final = frozenset({"__version__"})


def breaches(module: str, text: str, *, is_package: bool = False) -> list[str]:
    """What of `text`, the source of `module` (`mantle.gateway.server`), breaks the law."""
    stage = _stage(module)
    found = []
    for imported, line in _imports(module, text, is_package=is_package):
        other = _stage(imported)
        if other in {"", stage} or imported == module:
            continue
        reason = _why_not(stage, other, imported)
        if reason:
            found.append(f"line {line}: {module} imports {imported}: {reason}")
    return found


def _why_not(stage: str, other: str, imported: str) -> str:
    if stage not in _ORDER or other not in _ORDER:
        return "unknown stage: give it a row in the import law first"
    if _ORDER[other] <= _ORDER[stage]:
        return "imports go to the right only"
    if stage in SEES_INSIDE or other in OPEN_TO_ALL:
        return ""
    inner = imported.split(".")[2:]
    return "" if inner[:1] == ["port"] else "of a stage to the right, only `port`"


_ORDER: Final = {stage: index for index, row in enumerate(ROWS) for stage in row}


def _stage(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "mantle" else ""


def _imports(module: str, text: str, *, is_package: bool) -> Iterator[tuple[str, int]]:
    """Every name of ours that is imported, as a dotted path that includes the name itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node, is_package=is_package)
            for alias in node.names:
                if alias.name not in PACKAGE_FACTS:
                    yield f"{source}.{alias.name}", node.lineno


def _absolute(module: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])
