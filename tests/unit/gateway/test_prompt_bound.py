"""Is a hopeless prompt refused before it is tokenised, and nothing else?"""

import pytest

from mantle.core.errors import PromptTooLong
from mantle.core.script import Script
from mantle.gateway.prompt_bound import BoundedText
from mantle.text.port import ChatMessage
from mantle.text.scripted_text import ScriptedText


class CountingText(ScriptedText):
    calls = 0

    def encode_chat(self, *args, **kwargs):
        self.calls += 1
        return super().encode_chat(*args, **kwargs)

    def encode(self, text):
        self.calls += 1
        return super().encode(text)


@pytest.fixture
def text():
    return CountingText(Script())


def test_hopeless_prompts_are_never_tokenised(text):
    bounded = BoundedText(text, 100)
    with pytest.raises(PromptTooLong, match="100 tokens > 99 maximum") as refusal:
        bounded.encode("x" * 100)
    assert refusal.value.param == "prompt"
    halves = [ChatMessage("user", "x" * 50), ChatMessage("assistant", "y" * 50)]
    with pytest.raises(PromptTooLong) as refusal:
        bounded.encode_chat(halves)
    assert refusal.value.param == "messages"
    assert text.calls == 0


def test_what_may_fit_is_tokenised(text):
    bounded = BoundedText(text, 100)
    assert len(bounded.encode("x" * 99)) == 99
    assert bounded.encode_chat([ChatMessage("user", "hi")])
    text.token_bytes_max = 4  # a token may stand for four characters
    assert bounded.encode("x" * 399)
    assert text.calls == 3
