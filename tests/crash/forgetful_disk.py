"""What is on a disk once the power was lost? Only what was synced before, perhaps a little more.

Invariant: the list of operations is the disk: replaying a prefix of it gives the disk at that
moment, so one run of a writer holds every moment at which the power could have gone.

Of a file's name: an fsync of the file makes its name durable (as ext4, xfs and btrfs do), of
other names only an fsync of the folder; a removed name is back until then. After a failed fsync the
pages count as clean, though they never reached the disk (as in Linux since 4.13): the next fsync
succeeds and does not bring them back.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Op(msgspec.Struct, frozen=True, tag=True):
    """Something that was done to the disk."""


class Create(Op, frozen=True):
    name: str


class Write(Op, frozen=True):
    file: int
    offset: int
    data: bytes


class Truncate(Op, frozen=True):
    file: int
    size: int


class Rename(Op, frozen=True):
    old: str
    new: str


class Unlink(Op, frozen=True):
    name: str


class Sync(Op, frozen=True):
    file: int
    has_failed: bool = False


class SyncFolder(Op, frozen=True):
    pass


class PowerLost(Op, frozen=True):
    """`seed`: of what was not synced, this random half of the sectors is there; None: nothing."""

    seed: int | None = None


AnyOp = Create | Write | Truncate | Rename | Unlink | Sync | SyncFolder | PowerLost


@dataclass(slots=True)
class File:
    """`live` is what processes see (the page cache), `durable` what the disk has."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty_pages: set[int] = field(default_factory=set)

    def write(self, offset: int, content: bytes) -> None:
        end = offset + len(content)
        if end > len(self.live):
            self.resize(end)
        self.live[offset:end] = content
        self._touch(offset, end)

    def resize(self, size: int) -> None:
        self._touch(min(size, len(self.live)), max(size, len(self.live)))
        del self.live[size:]
        self.live.extend(bytes(size - len(self.live)))

    def _touch(self, start: int, end: int) -> None:
        self.dirty_pages.update(range(start // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def sync(self, *, has_failed: bool = False) -> None:
        if not has_failed:
            _resize(self.durable, len(self.live))
            for page in self.dirty_pages:
                self._store(page * PAGE_BYTES, PAGE_BYTES)
        self.dirty_pages.clear()

    def lose_power(self, chance: random.Random | None) -> None:
        """Without `chance` nothing that was not synced is there."""
        if chance is not None:
            if chance.random() < 0.5:
                _resize(self.durable, len(self.live))
            for page in sorted(self.dirty_pages):
                for start in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SECTOR_BYTES):
                    if chance.random() < 0.5:
                        self._store(start, SECTOR_BYTES)
        self.live = bytearray(self.durable)
        self.dirty_pages.clear()

    def _store(self, start: int, size: int) -> None:
        end = min(start + size, len(self.live), len(self.durable))
        if end > start:
            self.durable[start:end] = self.live[start:end]


class Disk:
    """One flat folder. `apply` is the only way to change it."""

    def __init__(self, ops: Iterable[AnyOp] = ()) -> None:
        self.files: list[File] = []
        self.names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        for op in ops:
            self.apply(op)

    def apply(self, op: AnyOp) -> None:
        match op:
            case Create(name):
                self.names[name] = len(self.files)
                self.files.append(File())
            case Write(file, offset, content):
                self.files[file].write(offset, content)
            case Truncate(file, size):
                self.files[file].resize(size)
            case Rename(old, new):
                self.names[new] = self.names.pop(old)
            case Unlink(name):
                del self.names[name]
            case _:
                self._keep(op)

    def _keep(self, op: AnyOp) -> None:
        match op:
            case Sync(file, has_failed):
                self.files[file].sync(has_failed=has_failed)
                if not has_failed:
                    self._keep_names_of(file)
            case SyncFolder():
                self._durable_names = dict(self.names)
            case PowerLost(seed):
                self._lose_power(None if seed is None else random.Random(seed))

    def _keep_names_of(self, file: int) -> None:
        others = {name: of for name, of in self._durable_names.items() if of != file}
        own = {name: of for name, of in self.names.items() if of == file}
        self._durable_names = others | own

    def _lose_power(self, chance: random.Random | None) -> None:
        if chance is not None and chance.random() < 0.5:
            self._durable_names = dict(self.names)  # names are one transaction of the file system
        self.names = dict(self._durable_names)
        for file in self.files:
            file.lose_power(chance)

    def content(self) -> dict[str, bytes]:
        """What processes see, by name."""
        return {name: bytes(self.files[file].live) for name, file in self.names.items()}

    def size_bytes(self) -> int:
        return sum(len(self.files[file].live) for file in set(self.names.values()))


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))
