"""Which models can be served? A list kept in one JSON file of the data folder, one entry a line.

Invariant: the file is replaced as a whole under a lock, so two processes never mix their changes;
reading the list is free of I/O, and a file that cannot be read leaves the list in force as it was.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mantle.core.errors import MantleError
from mantle.core.ids import ModelId
from mantle.pool.port import CatalogueEntry

FILE_NAME: Final = "catalogue.json"
FILE_VERSION: Final = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")

Entries = tuple[CatalogueEntry, ...]


class CatalogueError(MantleError):
    """A command on the catalogue cannot be done. For operators: it may name files."""


class _Contents(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    models: list[CatalogueEntry]


class Catalogue:
    """The catalogue of one data folder. Implements `CataloguePort`."""

    def __init__(self, data_dir: Path) -> None:
        """Raises `CatalogueError` when the file is there but cannot be read."""
        self.path = data_dir / FILE_NAME
        self._entries: Entries = ()
        self._by_name: dict[str, CatalogueEntry] = {}
        self.reload()

    def entries(self) -> Sequence[CatalogueEntry]:
        return self._entries

    def find(self, name: str) -> CatalogueEntry | None:
        return self._by_name.get(name)

    def reload(self) -> None:
        """Read the file again. Raises `CatalogueError`: then the list stays as it was."""
        self._adopt(self._read())

    def check_names(self, names: Sequence[str]) -> None:
        """Raises `CatalogueError` when an id or alias is taken or not well formed."""
        _check_names(self._entries, names)

    def add(self, entry: CatalogueEntry) -> None:
        """Raises `CatalogueError` when its id or an alias is taken."""

        def appended(entries: Entries) -> Entries:
            _check_names(entries, (entry.id, *entry.aliases))
            return (*entries, entry)

        self._change(appended)

    def remove(self, name: str) -> CatalogueEntry:
        """Forget the model with this id or alias; returns it. Raises `CatalogueError`."""
        removed: list[CatalogueEntry] = []

        def without(entries: Entries) -> Entries:
            removed.extend(e for e in entries if name == e.id or name in e.aliases)
            if not removed:
                raise CatalogueError(
                    f"no model is called '{name}'", hint="`mantle models list` shows all"
                )
            return tuple(e for e in entries if e.id != removed[0].id)

        self._change(without)
        return removed[0]

    def _change(self, change: Callable[[Entries], Entries]) -> None:
        """Apply `change` to what the file holds now, not to what we read earlier."""
        with self._locked():
            entries = change(self._read())
            self._write(entries)
        self._adopt(entries)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            yield

    def _read(self) -> Entries:
        try:
            contents = msgspec.json.decode(self.path.read_bytes(), type=_Contents)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CatalogueError(
                f"{self.path}: cannot be read: {error}",
                hint="mend it, or move it away and add the models again",
            ) from error
        if contents.version != FILE_VERSION:
            raise CatalogueError(
                f"{self.path}: has version {contents.version}, this Mantle reads {FILE_VERSION}",
                hint="use the Mantle that wrote it",
            )
        return tuple(contents.models)

    def _write(self, entries: Entries) -> None:
        lines = ",\n".join(msgspec.json.encode(entry).decode() for entry in entries)
        draft = self.path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            file.write(f'{{"version":{FILE_VERSION},"models":[\n{lines}\n]}}\n')
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def _adopt(self, entries: Entries) -> None:
        self._entries = entries
        self._by_name = {name: entry for entry in entries for name in (*entry.aliases, entry.id)}


def model_id(name: str) -> ModelId:
    """`name` as a model id. Raises `CatalogueError` when it is not well formed."""
    if not _NAME.fullmatch(name):
        raise CatalogueError(
            f"'{name}' cannot be a model's name",
            hint="use letters, digits and . _ : / - and begin with a letter or digit",
        )
    return ModelId(name)


def _check_names(entries: Entries, names: Sequence[str]) -> None:
    taken = {name: entry.id for entry in entries for name in (entry.id, *entry.aliases)}
    for name in names:
        model_id(name)
        if name in taken:
            raise CatalogueError(
                f"the name '{name}' is taken by the model '{taken[name]}'",
                hint=f"choose another with --name, or `mantle models remove {taken[name]}`",
            )
    if len(set(names)) < len(names):
        raise CatalogueError("a name is given twice", hint="give each alias once")
