"""Which benchmarks are there? Their commands and the first sentence of each header."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text())
        is_command = any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body
        )
        if not is_command:
            continue
        headline = (ast.get_docstring(tree) or "no header").splitlines()[0]
        print(f".venv/bin/python benchmarks/{path.name}\n    {headline}")


if __name__ == "__main__":
    main()
