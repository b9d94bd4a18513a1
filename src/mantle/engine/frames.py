"""How do messages cross the worker's socket? Frames: 4 bytes of length (big-endian), then msgpack.

Invariant: a frame is whole or the link is broken; a length beyond `limits.FRAME_BYTES_MAX` or a
body of another shape raises `BadFrame`, and nothing after it is read.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from mantle.core.limits import FRAME_BYTES_MAX
from mantle.engine.port import Command, WorkerEvent

HEADER_BYTES: Final = 4

Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


class BadFrame(Exception):
    """What came is not a frame of this link. Says sizes and shapes, never content."""


def encode_commands(commands: Sequence[Command]) -> bytearray:
    return _frame(commands)


def encode_events(events: Sequence[WorkerEvent]) -> bytearray:
    return _frame(events)


def _frame(messages: Sequence[object]) -> bytearray:
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(messages, frame, HEADER_BYTES)
    body_bytes = len(frame) - HEADER_BYTES
    assert body_bytes <= FRAME_BYTES_MAX, "the sender keeps frames within the limit"
    frame[:HEADER_BYTES] = body_bytes.to_bytes(HEADER_BYTES, "big")
    return frame


class FrameReader(Generic[Message]):
    """Turns a stream of bytes, however cut, back into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[Message]]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, chunk: bytes | bytearray) -> list[Message]:
        """All messages that are whole by now. Raises `BadFrame`."""
        self._buffer += chunk
        messages: list[Message] = []
        for body in self._bodies():
            try:
                messages += self._decoder.decode(body)
            except msgspec.MsgspecError as fault:
                raise BadFrame(f"a body of {len(body)} bytes has another shape") from fault
        return messages

    def _bodies(self) -> Iterator[memoryview]:
        buffer = self._buffer
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            body_start = start + HEADER_BYTES
            body_bytes = int.from_bytes(buffer[start:body_start], "big")
            if body_bytes > FRAME_BYTES_MAX:
                raise BadFrame(f"a frame of {body_bytes} bytes is over the limit")
            if len(buffer) - body_start < body_bytes:
                break
            start = body_start + body_bytes
            with memoryview(buffer)[body_start:start] as body:  # no copy: a KV is large
                yield body
        del buffer[:start]


def command_reader() -> FrameReader[Command]:
    """The worker's end."""
    return FrameReader(msgspec.msgpack.Decoder(list[Command]))


def event_reader() -> FrameReader[WorkerEvent]:
    """The dispatcher's end."""
    return FrameReader(msgspec.msgpack.Decoder(list[WorkerEvent]))
