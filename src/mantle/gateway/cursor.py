"""Where is a client in its stream? The `id:` of each server-sent event, and what to skip for it.

A position says, of each choice, how many output tokens its text covers, whether it has ended, and
how many more frames were sent at that point: `12`, `12e`, `12e+1`; for two choices `12.7e`. What
belongs to no choice (a stream's first and last frames) counts as the first one's. Invariant: a
choice's positions do not depend on how tokens were grouped into events, nor on the other choices,
so a stream that is written again after a crash goes on exactly where the client was.
"""

import re
from dataclasses import dataclass
from typing import Final

from mantle.gateway.field_checks import invalid
from mantle.gateway.text_events import ChoiceEnded, PromptEcho, TextEvent

END_FRAME: Final = b"\n\n"
_PART: Final = re.compile(r"(\d{1,9})(e?)(?:\+(\d{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """How far one choice is; later is greater."""

    tokens: int = 0
    has_ended: bool = False
    frames: int = 0

    def __str__(self) -> str:
        frames = f"+{self.frames}" if self.frames else ""
        return f"{self.tokens}{'e' if self.has_ended else ''}{frames}"

    def next_frame(self) -> "Mark":
        return Mark(self.tokens, self.has_ended, self.frames + 1)


Cursor = tuple[Mark, ...]
"""A client's last position, one mark a choice."""


def parse_cursor(text: str, param: str, *, choices: int) -> Cursor:
    """Raises `InvalidRequest` for what no stream of so many choices has sent."""
    parts = text.split(".")
    if len(parts) != choices:
        raise invalid(param, f"must be an event id of this stream, with {choices} positions")
    marks = []
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None:
            raise invalid(param, "must be an event id of this stream")
        marks.append(Mark(int(match[1]), bool(match[2]), int(match[3] or 0)))
    return tuple(marks)


class Numbering:
    """Gives each frame of one stream its id, and drops what the client has seen already."""

    def __init__(self, choices: int, after: Cursor | None = None) -> None:
        self._marks = [Mark()] * choices
        self._after = after

    def event(self, event: TextEvent, frames: bytes) -> bytes:
        """The frames of one event: the last one stands for all tokens of the event."""
        index = event.choice_index
        parts = frames.split(END_FRAME)[:-1]
        numbered = [self._frame(index, self._marks[index].next_frame(), p) for p in parts[:-1]]
        reached = _mark_of(event)
        if reached <= self._marks[index]:
            reached = self._marks[index].next_frame()
        numbered += [self._frame(index, reached, part) for part in parts[-1:]]
        return b"".join(numbered)

    def other(self, frames: bytes) -> bytes:
        """Frames that belong to no choice."""
        parts = frames.split(END_FRAME)[:-1]
        return b"".join([self._frame(0, self._marks[0].next_frame(), part) for part in parts])

    def _frame(self, index: int, mark: Mark, frame: bytes) -> bytes:
        self._marks[index] = mark
        if self._after is not None and mark <= self._after[index]:
            return b""
        name = ".".join(map(str, self._marks)).encode()
        return b"id: %b\n%b\n\n" % (name, frame)


def _mark_of(event: TextEvent) -> Mark:
    if isinstance(event, PromptEcho):
        return Mark()
    return Mark(event.output_tokens, isinstance(event, ChoiceEnded))
