"""How does the fake engine's model spell? Byte-level tokens and a fixed chat format.

Invariant: ids are those of the script's `Vocabulary`, so text survives the round trip byte for
byte. A chat is, for each message, `turn` role newline content `end`, with special tokens as the
borders: text that looks like a border is only text.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mantle.core.errors import InvalidRequest
from mantle.core.script import Script, Vocabulary, read_script
from mantle.text.detokenizer import Utf8Detokenizer
from mantle.text.port import ChatMessage, Detokenizer, SpecialTokens

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class ScriptedText:
    """`ModelText` of a script. Stateless after construction, hence thread-safe."""

    def __init__(self, script: Script) -> None:
        self._vocabulary = Vocabulary(script)
        self._starts_with_bos = script.bos
        self.vocab_size = self._vocabulary.size
        self.token_bytes_max = 1  # clients' text is encoded byte by byte
        self.special = SpecialTokens(
            bos_id=self._vocabulary.bos_id if script.bos else None,
            end_ids=frozenset({self._vocabulary.end_id}),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `OSError` or `ValueError`."""
        return cls(read_script(path))

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        token_ids = self._start()
        if tools:
            token_ids += self._turn("tools", json.dumps(list(tools)))
        for index, message in enumerate(messages):
            if message.role not in _ROLES:
                raise InvalidRequest("unknown role", param=f"messages[{index}].role")
            calls = message.extra.get("tool_calls")
            content = (message.content or "") + (json.dumps(calls) if calls else "")
            token_ids += self._turn(message.role, content)
        if add_generation_prompt:
            token_ids += [self._vocabulary.turn_id, *self._vocabulary.encode("assistant\n")]
        return token_ids

    def encode(self, text: str) -> list[int]:
        return self._start() + self._vocabulary.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        name = self._vocabulary.special_name(token_id)
        return f"<|{name}|>" if name else self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        return Utf8Detokenizer(self._vocabulary.token_bytes)

    def _start(self) -> list[int]:
        return [self._vocabulary.bos_id] if self._starts_with_bos else []

    def _turn(self, role: str, content: str) -> list[int]:
        vocabulary = self._vocabulary
        body = vocabulary.encode(f"{role}\n{content}")
        return [vocabulary.turn_id, *body, vocabulary.end_id]
