"""Which files are ours? Tracked files and new ones that git does not ignore."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_SKIPPED_DIRS: Final = frozenset({".git", ".venv", ".build", "__pycache__", "mantle-data", "dist"})


@cache
def our_files() -> tuple[str, ...]:
    """Paths relative to the root, sorted. Outside a git checkout: all but known build folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        names = listing.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = _walk()
    return tuple(sorted(name for name in set(names) if (ROOT / name).is_file()))


def python_files(*folders: str) -> list[str]:
    """Our Python files, in `folders` or anywhere."""
    prefixes = tuple(f"{folder}/" for folder in folders) or ("",)
    return [name for name in our_files() if name.endswith(".py") and name.startswith(prefixes)]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _walk() -> list[str]:
    found: list[str] = []
    for folder, subfolders, files in os.walk(ROOT):
        subfolders[:] = [
            name for name in subfolders if name not in _SKIPPED_DIRS and not name.endswith("_cache")
        ]
        found += [(Path(folder) / file).relative_to(ROOT).as_posix() for file in files]
    return found
