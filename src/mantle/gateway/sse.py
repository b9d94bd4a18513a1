"""How does an event look on a server-sent-events stream? Framing, comments, the line limit.

Invariant: no line is longer than `limits.SSE_LINE_BYTES_MAX`, whatever the text.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mantle.core import limits

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE: Final = b"data: [DONE]\n\n"

LINE_ROOM_BYTES: Final = 2 * 1024
"""Kept free in each line for what stands around the text."""

_ESCAPED_CHAR_BYTES_MAX: Final = 6  # \u0000
PIECE_CHARS_MAX: Final = (limits.SSE_LINE_BYTES_MAX - LINE_ROOM_BYTES) // _ESCAPED_CHAR_BYTES_MAX

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def data(body: Any) -> bytes:
    """One unnamed event."""
    return b"data: " + encode(body) + b"\n\n"


def named(event: str, body: Any) -> bytes:
    """One named event; Anthropic's clients skip events without a name."""
    return b"event: " + event.encode() + b"\ndata: " + encode(body) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients ignore; keeps a silent stream alive."""
    return b": " + text.encode() + b"\n\n"


def remark(text: str) -> bytes:
    """The same in front of an event, as part of its frame."""
    return b": " + text.encode() + b"\n"


def pieces(text: str) -> Iterator[str]:
    """`text` cut so that each piece, JSON-escaped at worst, fits a line."""
    if len(text) <= PIECE_CHARS_MAX:
        yield text
        return
    for start in range(0, len(text), PIECE_CHARS_MAX):
        yield text[start : start + PIECE_CHARS_MAX]
