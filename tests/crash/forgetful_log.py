"""How do a test and its forgetful file system talk? By a log of operations, and orders of faults.

Invariant: the log only grows; an operation that was torn off at its end never happened.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.crash.forgetful_disk import AnyOp

FAULTS_NAME = ".faults"
_LENGTH = struct.Struct("<I")


class Faults(msgspec.Struct):
    """`syncs_before_fault`: the fsync after so many (of the file `only`) fails, once.
    `room_bytes`: then the disk is full.
    """

    syncs_before_fault: int | None = None
    only: str = ""
    room_bytes: int | None = None


def encoded(op: AnyOp) -> bytes:
    payload = msgspec.msgpack.encode(op)
    return _LENGTH.pack(len(payload)) + payload


def append_log(path: Path, ops: Iterable[AnyOp]) -> None:
    with path.open("ab") as log:
        log.write(b"".join(map(encoded, ops)))


def read_log(path: Path) -> Iterator[AnyOp]:
    decoder = msgspec.msgpack.Decoder(AnyOp)
    log = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _LENGTH.size <= len(log):
        (length,) = _LENGTH.unpack_from(log, at)
        at += _LENGTH.size
        if at + length > len(log):
            return
        yield decoder.decode(log[at : at + length])
        at += length
