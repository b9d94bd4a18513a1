"""How does a GGUF model spell? Its own tokeniser, chat template and special tokens.

Invariant: text of clients never becomes a special token, special tokens never become output text,
and ids equal those of tokenising the whole rendered prompt at once.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mantle.core.errors import InvalidRequest, MantleError
from mantle.text.chat_template import ChatTemplate, template_message
from mantle.text.detokenizer import Utf8Detokenizer
from mantle.text.llama_library import VocabularyFile
from mantle.text.port import ChatMessage, Detokenizer, SpecialTokens
from mantle.text.special_guard import SpecialGuard

PIECE_BYTES: Final = 256
_PROBE: Final = "0\x001"  # content that no template writes itself


class GgufText:
    """`ModelText` over a vocabulary-only load. Thread-safe: llama.cpp only reads the vocabulary."""

    def __init__(self, path: Path) -> None:
        self._file = VocabularyFile(path)
        self._library = self._file.library
        self._vocabulary = self._file.vocabulary
        self.vocab_size = int(self._library.llama_vocab_n_tokens(self._vocabulary))
        self._attributes = [
            int(self._library.llama_vocab_get_attr(self._vocabulary, i))
            for i in range(self.vocab_size)
        ]
        self.token_bytes_max = max(
            len(self._library.llama_vocab_get_text(self._vocabulary, i))
            for i in range(self.vocab_size)
        )
        self.special = self._read_special_tokens()
        self._adds_bos = bool(self._library.llama_vocab_get_add_bos(self._vocabulary))
        self._pieces: list[bytes | None] = [None] * self.vocab_size
        special_attributes = (
            self._library.LLAMA_TOKEN_ATTR_CONTROL | self._library.LLAMA_TOKEN_ATTR_UNKNOWN
        )
        self._silent_ids = self.special.end_ids | {
            i for i, attribute in enumerate(self._attributes) if attribute & special_attributes
        }
        self._special_ids = {
            self._piece(i, named=True).decode("utf-8", "replace"): i
            for i, attribute in enumerate(self._attributes)
            if attribute & special_attributes
        }
        self._guard = SpecialGuard(self._special_ids)
        self._template = self._read_template()
        self._template_stretches = self._find_template_stretches()

    def __repr__(self) -> str:
        return f"GgufText({self.vocab_size} tokens)"

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template",
                param="messages",
                hint="use /v1/completions, or a model that was tuned for chat",
            )
        shown: list[dict[str, Any]] = [template_message(message) for message in messages]
        _check_unicode([shown, tools, template_kwargs])
        if any(self._guard.concerns(part) for part in (shown, tools, template_kwargs)):
            shown, tools, template_kwargs = (
                self._guard.mask(part) for part in (shown, tools, template_kwargs)
            )
        prompt = self._template.render(
            shown,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_kwargs=template_kwargs,
        )
        return self._with_bos(self._encode_prompt(prompt))

    def encode(self, text: str) -> list[int]:
        return self._with_bos(self._tokenize(text))

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size or token_id in self._silent_ids:
            return b""
        piece = self._pieces[token_id]
        if piece is None:
            piece = self._pieces[token_id] = self._piece(token_id, named=False)
        return piece

    def token_text(self, token_id: int) -> str:
        if not 0 <= token_id < self.vocab_size:
            return ""
        if token_id in self._silent_ids:
            return self._piece(token_id, named=True).decode("utf-8", "replace")
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        return Utf8Detokenizer(self.token_bytes)

    def _encode_prompt(self, masked_prompt: str) -> list[int]:
        """Ids of the whole text, where only the template's own special tokens count.

        llama.cpp too cuts at special tokens first and tokenises each stretch between by itself;
        doing the cutting here lets the template's own stretches be tokenised once for all.
        """
        token_ids: list[int] = []
        strip_next = False
        pieces = list(self._guard.pieces(masked_prompt))
        for index, piece in enumerate(pieces):
            if piece.is_special:
                special_id = self._special_ids[piece.text]
                token_ids.append(special_id)
                strip_next = self._has_attribute(special_id, "RSTRIP")
                continue
            text = piece.text.lstrip() if strip_next else piece.text
            following = pieces[index + 1] if index + 1 < len(pieces) else None
            if following and self._has_attribute(self._special_ids[following.text], "LSTRIP"):
                text = text.rstrip()
            token_ids += self._template_stretches.get(text) or self._tokenize(text)
            strip_next = False
        return token_ids

    def _find_template_stretches(self) -> dict[str, list[int]]:
        """Plain text that the template writes between special tokens, whoever says what."""
        if self._template is None:
            return {}
        probe = [ChatMessage(role, _PROBE) for role in ("system", "user", "assistant", "user")]
        found: set[str] = set()
        for messages in (probe, probe[1:]):
            try:
                prompt = self._template.render([template_message(m) for m in messages])
            except MantleError:
                continue  # a template may refuse a probe; that only costs speed
            found.update(p.text for p in self._guard.pieces(prompt) if _PROBE not in p.text)
        return {text: self._tokenize(text) for text in found if text not in self._special_ids}

    def _has_attribute(self, token_id: int, name: str) -> bool:
        flag = getattr(self._library, f"LLAMA_TOKEN_ATTR_{name}")
        return bool(self._attributes[token_id] & flag)

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        bos_id = self.special.bos_id
        if not self._adds_bos or bos_id is None or token_ids[:1] == [bos_id]:
            return token_ids
        return [bos_id, *token_ids]

    def _tokenize(self, text: str) -> list[int]:
        """Ids of plain text: what looks like a special token is only text."""
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise _not_unicode() from None
        if not raw:
            return []
        capacity = len(raw) + 8
        while True:
            buffer = (self._library.llama_token * capacity)()
            count = self._library.llama_tokenize(
                self._vocabulary, raw, len(raw), buffer, capacity, False, False
            )
            if count >= 0:
                return list(buffer[:count])
            capacity = -count

    def _piece(self, token_id: int, *, named: bool) -> bytes:
        capacity = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            length = self._library.llama_token_to_piece(
                self._vocabulary, token_id, buffer, capacity, 0, named
            )
            if length >= 0:
                return buffer.raw[:length]
            capacity = -length

    def _read_special_tokens(self) -> SpecialTokens:
        bos_id = int(self._library.llama_vocab_bos(self._vocabulary))
        end_ids = frozenset(
            i
            for i in range(self.vocab_size)
            if self._library.llama_vocab_is_eog(self._vocabulary, i)
        )
        return SpecialTokens(bos_id=bos_id if bos_id >= 0 else None, end_ids=end_ids)

    def _read_template(self) -> ChatTemplate | None:
        source = self._file.chat_template()
        if source is None:
            return None
        bos_id = self.special.bos_id
        eos_id = int(self._library.llama_vocab_eos(self._vocabulary))
        return ChatTemplate(
            source,
            bos_text=self.token_text(bos_id) if bos_id is not None else "",
            eos_text=self.token_text(eos_id) if eos_id >= 0 else "",
        )


def _check_unicode(value: Any) -> None:
    """Lone surrogates are not text, and stand-ins of the guard must come from us alone."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _not_unicode() from None
    elif isinstance(value, dict):
        for key, part in value.items():
            _check_unicode(key)
            _check_unicode(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_unicode(part)


def _not_unicode() -> InvalidRequest:
    return InvalidRequest(
        "the text holds half of a surrogate pair, which is not Unicode", param="messages"
    )
