"""Positions in a stream: parsing, order, numbering, skipping."""

import pytest

from mantle.core.errors import InvalidRequest
from mantle.core.outcome import FinishReason
from mantle.gateway.cursor import Mark, Numbering, parse_cursor
from mantle.gateway.text_events import ChoiceEnded, TextDelta

FRAME = b"data: x\n\n"


def numbered(numbering: Numbering, *events: TextDelta | ChoiceEnded) -> bytes:
    return b"".join(numbering.event(event, FRAME) for event in events)


def delta(tokens: int, index: int = 0) -> TextDelta:
    return TextDelta(index, "x", tokens)


@pytest.mark.parametrize(
    "mark", [Mark(), Mark(3), Mark(3, True), Mark(3, True, 2), Mark(0, False, 1)]
)
def test_what_is_written_is_read_again(mark: Mark) -> None:
    assert parse_cursor(str(mark), "p", choices=1) == (mark,)


@pytest.mark.parametrize("text", ["", "1.2", "e", "1e+", "1+1e", "9999999999", "١", "1 "])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cursor(text, "p", choices=1)


def test_marks_are_in_the_order_of_the_stream() -> None:
    marks = [Mark(), Mark(0, False, 1), Mark(1), Mark(2), Mark(2, False, 1), Mark(2, True)]
    assert marks == sorted(marks)


def test_two_choices_have_their_own_positions() -> None:
    sent = numbered(Numbering(2), delta(1), delta(4, 1), delta(2))
    assert [line for line in sent.split(b"\n") if line.startswith(b"id")] == [
        b"id: 1.0",
        b"id: 1.4",
        b"id: 2.4",
    ]


def test_positions_do_not_depend_on_grouping() -> None:
    end = ChoiceEnded(0, FinishReason.END, 3)
    single = numbered(Numbering(1), delta(1), delta(2), delta(3), end)
    grouped = numbered(Numbering(1), delta(3), end)
    after = parse_cursor("3", "p", choices=1)
    assert numbered(Numbering(1, after), delta(1), delta(2), delta(3), end) in single
    assert numbered(Numbering(1, after), delta(1), delta(2), delta(3), end) in grouped


def test_frames_of_no_choice_are_skipped_too() -> None:
    numbering = Numbering(1, parse_cursor("0+1", "p", choices=1))
    assert numbering.other(FRAME) == b""
    assert numbering.other(FRAME) == b"id: 0+2\n" + FRAME
