"""Detokenising: characters are never split, and later text is never stuck behind a bad byte."""

from hypothesis import given
from hypothesis import strategies as st

from mantle.text.detokenizer import Utf8Detokenizer


def byte_tokens() -> Utf8Detokenizer:
    return Utf8Detokenizer(lambda token_id: bytes([token_id]))


def test_emoji_cut_into_bytes_comes_out_whole() -> None:
    text = "🌊🏖️🦀 é 漢"
    detokenizer = byte_tokens()
    deltas = [detokenizer.feed([byte]) for byte in text.encode()]
    assert "".join(deltas) + detokenizer.flush() == text
    assert all("\ufffd" not in delta for delta in deltas)
    assert deltas[0] == ""


def test_text_after_a_broken_character_still_arrives() -> None:
    detokenizer = byte_tokens()
    text = detokenizer.feed(b"\xf0\x9f") + "".join(detokenizer.feed([b]) for b in b"a" * 50)
    assert text == "\ufffd" + "a" * 50


def test_an_unfinished_character_at_the_end_becomes_a_replacement() -> None:
    detokenizer = byte_tokens()
    assert detokenizer.feed(b"ok \xe6\xbc") == "ok "
    assert detokenizer.flush() == "\ufffd"


def test_silent_tokens_add_no_text_and_do_not_break_a_character() -> None:
    detokenizer = Utf8Detokenizer(lambda i: b"" if i == 0 else bytes([i]))
    wave = "🌊".encode()
    assert detokenizer.feed([*wave[:2], 0, *wave[2:], 0]) == "🌊"


@given(st.binary(max_size=40), st.lists(st.integers(1, 5), max_size=40))
def test_any_grouping_of_tokens_gives_the_same_text(raw: bytes, sizes: list[int]) -> None:
    detokenizer = byte_tokens()
    text, cursor = "", 0
    for size in sizes:
        text += detokenizer.feed(list(raw[cursor : cursor + size]))
        cursor += size
    text += detokenizer.feed(list(raw[cursor:]))
    assert text + detokenizer.flush() == raw.decode("utf-8", "replace")
