"""Small pieces on their own: mailbox, keys, frames."""

import asyncio

import pytest
from gateway_fakes import KEY, FakeAdmission
from hypothesis import given
from hypothesis import strategies as st
from piece_text import PieceText

from mantle.core import limits
from mantle.core.errors import Unauthenticated
from mantle.gateway import sse
from mantle.gateway.auth import authenticate, keys_of
from mantle.gateway.mailbox import Mailbox


async def test_mailbox_hands_over_all_that_gathered() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.put(2)
    assert await mailbox.take(5) == [1, 2]
    reader = asyncio.ensure_future(mailbox.take(5))
    await asyncio.sleep(0)
    mailbox.put(3)
    mailbox.put(4)
    assert await reader == [3, 4]


async def test_mailbox_gives_nothing_after_its_timeout() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert await mailbox.take(0.001) == []


async def test_cancelled_reader_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    reader = asyncio.ensure_future(mailbox.take(5))
    await asyncio.sleep(0)
    mailbox.put(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.take(5) == [1]


def test_keys_are_read_from_both_headers() -> None:
    assert keys_of({}) == []
    assert keys_of({"authorization": "Basic abc"}) == []
    assert keys_of({"authorization": "Bearer  a ", "x-api-key": "b"}) == ["a", "b"]


def test_second_key_counts_when_the_first_is_unknown() -> None:
    admission = FakeAdmission(PieceText())
    headers = {"authorization": "Bearer nope", "x-api-key": KEY}
    assert authenticate(admission, headers).tenant.id == "tenant-a"
    with pytest.raises(Unauthenticated):
        authenticate(admission, {"authorization": "Bearer nope"})


@given(st.text(min_size=1, max_size=5), st.integers(1, 3000))
def test_pieces_fit_a_line_and_join_to_the_text(text: str, times: int) -> None:
    pieces = list(sse.pieces(text * times))
    assert "".join(pieces) == text * times
    room = limits.SSE_LINE_BYTES_MAX - sse.LINE_ROOM_BYTES
    assert all(len(sse.encode(piece)) <= room + 2 for piece in pieces)
