"""Is this text too long whatever its tokens are? Asked before a core is spent on tokenising it.

No token stands for more than `ModelText.token_bytes_max` bytes, so characters divided by that are a
lower bound of the tokens. Invariant: nothing that would fit is refused.
"""

from collections.abc import Sequence
from typing import Any

from mantle.core.errors import PromptTooLong
from mantle.text.port import ChatMessage, Detokenizer, ModelText, SpecialTokens


class BoundedText:
    """A `ModelText` that refuses what can not fit `window_tokens`. Raises `PromptTooLong`."""

    def __init__(self, text: ModelText, window_tokens: int) -> None:
        self._text = text
        self._window_tokens = window_tokens

    @property
    def vocab_size(self) -> int:
        return self._text.vocab_size

    @property
    def special(self) -> SpecialTokens:
        return self._text.special

    @property
    def token_bytes_max(self) -> int:
        return self._text.token_bytes_max

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        self._check(sum(len(message.content or "") for message in messages), "messages")
        return self._text.encode_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_kwargs=template_kwargs,
        )

    def encode(self, text: str) -> list[int]:
        self._check(len(text), "prompt")
        return self._text.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._text.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        return self._text.token_text(token_id)

    def detokenizer(self) -> Detokenizer:
        return self._text.detokenizer()

    def _check(self, characters: int, param: str) -> None:
        tokens_min = characters // max(1, self._text.token_bytes_max)
        if tokens_min >= self._window_tokens:
            raise PromptTooLong(
                prompt_tokens=tokens_min, window_tokens=self._window_tokens - 1, param=param
            )
