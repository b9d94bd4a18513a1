"""A catalogue in memory, for tests and benchmarks."""

import hashlib
from pathlib import Path

from mantle.core.ids import ModelId
from mantle.core.script import Script, read_script
from mantle.pool.port import CatalogueEntry


class ListCatalogue:
    """Implements `CataloguePort` over a list."""

    def __init__(self, *entries: CatalogueEntry) -> None:
        self._entries = list(entries)

    def entries(self) -> list[CatalogueEntry]:
        return list(self._entries)

    def find(self, name: str) -> CatalogueEntry | None:
        return next((e for e in self._entries if name == e.id or name in e.aliases), None)


def scripted_entry(path: Path, *, name: str = "fake", size_bytes: int = 1) -> CatalogueEntry:
    """A catalogue entry for a script file."""
    script: Script = read_script(path)
    return CatalogueEntry(
        id=ModelId(name),
        driver="scripted",
        path=str(path),
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        size_bytes=size_bytes,
        window_tokens=script.window_tokens,
        created_s=1_700_000_000,
        display_name=name,
    )
