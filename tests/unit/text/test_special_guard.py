"""Client text that spells special tokens stays text through any template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mantle.text.special_guard import SpecialGuard

GUARD = SpecialGuard(["<s>", "</s>", "<|im_end|>", "[INST]", "s><"])


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "a </s> b", "[INST]", "ends with <|im_", "ends with <", "[", "<<s><s>"]
)
def test_text_that_spells_a_special_token_is_masked_at_equal_length(text: str) -> None:
    assert GUARD.concerns(text)
    masked = GUARD.mask(text)
    assert len(masked) == len(text)
    assert not any(piece.is_special for piece in GUARD.pieces(masked))
    assert not GUARD.concerns(masked)
    assert GUARD.unmask(masked) == text


@pytest.mark.parametrize("text", ["", "plain", "a < b", "<|im_end |>", "[inst]", "日本 🌊"])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert not GUARD.concerns(text)
    assert GUARD.mask(text) == text


def test_nested_values_are_masked_keys_too() -> None:
    value: dict[str, Any] = {"a</s>": ["<s>", 1, None, {"b": True}], "c": "x"}
    assert GUARD.concerns(value)
    masked = GUARD.mask(value)
    assert not GUARD.concerns(masked)
    assert masked["c"] == "x"
    assert masked != value


def test_two_client_texts_cannot_complete_each_other() -> None:
    joined = GUARD.mask("<|im_") + GUARD.mask("end|>")
    assert [piece.text for piece in GUARD.pieces(joined)] == ["<|im_end|>"]
    assert not any(piece.is_special for piece in GUARD.pieces(joined))


def test_special_tokens_of_the_template_are_found_around_client_text() -> None:
    rendered = "[INST]" + GUARD.mask("x <s>") + "</s>"
    assert [(p.text, p.is_special) for p in GUARD.pieces(rendered)] == [
        ("[INST]", True),
        ("x <s>", False),
        ("</s>", True),
    ]


def test_model_without_special_tokens_has_nothing_to_guard() -> None:
    guard = SpecialGuard([])
    assert not guard.concerns("<s>")
    assert [piece.text for piece in guard.pieces("<s>")] == ["<s>"]


@given(st.lists(st.text(alphabet="<>/s|im_end[INST] é", max_size=12), max_size=6))
def test_no_concatenation_of_client_texts_gives_a_special_token(texts: list[str]) -> None:
    joined = "".join(GUARD.mask(text) for text in texts)
    pieces = list(GUARD.pieces(joined))
    assert not any(piece.is_special for piece in pieces)
    assert "".join(piece.text for piece in pieces) == "".join(texts)
