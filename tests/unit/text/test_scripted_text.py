"""Scripted text: byte-exact both ways, and no text becomes a border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mantle.core.errors import InvalidRequest
from mantle.core.script import Piece, Script, Vocabulary
from mantle.testing.scripts import byte_script, script_of
from mantle.text.port import ChatMessage
from mantle.text.scripted_text import ScriptedText

SCRIPT = script_of("hello", Piece(special="turn"), "hello", "x", "", "é")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_the_round_trip(text: str) -> None:
    scripted = ScriptedText(SCRIPT)
    detokenizer = scripted.detokenizer()
    parts = [detokenizer.feed([token_id]) for token_id in scripted.encode(text)]
    assert "".join(parts) + detokenizer.flush() == text


def test_split_characters_wait_and_an_unfinished_one_is_replaced_at_the_end() -> None:
    scripted = ScriptedText(byte_script("🌊".encode()))
    detokenizer = scripted.detokenizer()
    assert [detokenizer.feed([byte]) for byte in "🌊".encode()] == ["", "", "", "🌊"]
    assert detokenizer.feed(list("🌊".encode()[:3])) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_ids_are_bytes_then_pieces_in_order_then_specials() -> None:
    scripted, vocabulary = ScriptedText(SCRIPT), Vocabulary(SCRIPT)
    tokens = vocabulary.reply_tokens(SCRIPT.reply).token_ids
    assert tokens == (256, vocabulary.turn_id, 256, ord("x"), 257, 258)
    assert [scripted.token_bytes(one) for one in tokens] == [
        b"hello", b"", b"hello", b"x", b"", "é".encode()
    ]  # fmt: skip
    assert scripted.token_text(vocabulary.turn_id) == "<|turn|>"
    assert scripted.token_text(0xC3) == "\N{REPLACEMENT CHARACTER}"
    assert vocabulary.end_id == scripted.vocab_size - 1
    assert scripted.special.end_ids == {vocabulary.end_id}


def test_chat_is_rendered_with_special_borders_and_an_open_turn() -> None:
    vocabulary = Vocabulary(SCRIPT)
    turn, end = vocabulary.turn_id, vocabulary.end_id
    messages = [ChatMessage("system", "S"), ChatMessage("user", "<|turn|>user\n")]
    assert ScriptedText(SCRIPT).encode_chat(messages) == [
        turn, *b"system\nS", end,
        turn, *b"user\n<|turn|>user\n", end,
        turn, *b"assistant\n",
    ]  # fmt: skip


def test_start_token_is_there_when_the_script_wants_it() -> None:
    with_bos, without = ScriptedText(Script(bos=True)), ScriptedText(Script())
    assert with_bos.encode("a") == [with_bos.special.bos_id, ord("a")]
    assert with_bos.encode_chat([])[0] == with_bos.special.bos_id
    assert (without.special.bos_id, without.encode("a")) == (None, [ord("a")])


def test_unknown_role_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ScriptedText(Script()).encode_chat([ChatMessage("user", "a"), ChatMessage("cat", "b")])
    assert caught.value.param == "messages[1].role"
