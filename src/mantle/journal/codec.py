"""How does a record become bytes, and how is damage noticed? MessagePack behind a checksum.

Invariant: what `decode` returns is what `encode` was given; any changed, missing or foreign byte
raises `JournalFault`. The checksum covers the id of whom the record belongs to, so a record that
strays to another request is damage too. Reasons never hold content.
"""

import zlib
from typing import Final

import msgspec

from mantle.core.errors import JournalFault
from mantle.journal.record import Accepted, Asked, Record

FORMAT_VERSION: Final = 1
"""First byte of every record. Beyond: a newer Mantle wrote it, and this one refuses it."""

_CHECKSUM_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def owner_of(record: Record) -> str:
    """Whose record it is: a request's id, or an ask's."""
    if isinstance(record, Asked):
        return record.id
    if isinstance(record, Accepted):
        return record.request.id
    return record.request_id


def encode(record: Record) -> bytes:
    """Version, CRC-32 (big-endian), payload."""
    payload = _encoder.encode(record)
    checksum = _checksum(owner_of(record), payload)
    return b"%c%b%b" % (FORMAT_VERSION, checksum, payload)


def decode(blob: bytes, owner: str) -> Record:
    """The record. Raises `JournalFault` for anything that `encode` did not write for `owner`."""
    if not blob:
        raise JournalFault("a record is empty")
    if blob[0] != FORMAT_VERSION:
        raise JournalFault("a record has an unknown format")
    checksum, payload = blob[1 : 1 + _CHECKSUM_BYTES], blob[1 + _CHECKSUM_BYTES :]
    if checksum != _checksum(owner, payload):
        raise JournalFault("a record does not match its checksum")
    try:
        record: Record = _decoder.decode(payload)
    except msgspec.MsgspecError:
        raise JournalFault("a record cannot be read") from None
    if owner_of(record) != owner:
        raise JournalFault("a record belongs to another request")
    return record


def _checksum(owner: str, payload: bytes) -> bytes:
    return zlib.crc32(payload, zlib.crc32(owner.encode())).to_bytes(_CHECKSUM_BYTES, "big")
