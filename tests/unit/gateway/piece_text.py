"""A model's text with byte tokens, and pieces that scripts register as tokens of their own."""

import json
from collections.abc import Sequence
from typing import Any

from mantle.text.detokenizer import Utf8Detokenizer
from mantle.text.port import ChatMessage, SpecialTokens

TURN_ID, END_ID, BOS_ID = 256, 257, 258
FIRST_PIECE_ID = 300


class PieceText:
    """Byte tokens 0–255, three special tokens, and pieces registered by scripts."""

    vocab_size = 100_000
    token_bytes_max = 1
    special = SpecialTokens(bos_id=BOS_ID, end_ids=frozenset({END_ID}))

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.chats: list[tuple[list[ChatMessage], Any, Any]] = []

    def piece(self, piece: str | bytes) -> int:
        raw = piece.encode() if isinstance(piece, str) else piece
        if len(raw) == 1:
            return raw[0]
        if raw not in self._pieces:
            self._pieces.append(raw)
        return FIRST_PIECE_ID + self._pieces.index(raw)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        self.chats.append((list(messages), tools, template_kwargs))
        token_ids = [BOS_ID, *(json.dumps(tools).encode() if tools else b"")]
        for message in messages:
            token_ids += [TURN_ID, *f"{message.role}\n{message.content}".encode(), END_ID]
        return [*token_ids, TURN_ID]

    def encode(self, text: str) -> list[int]:
        return [BOS_ID, *text.encode()]

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= FIRST_PIECE_ID:
            index = token_id - FIRST_PIECE_ID
            return self._pieces[index] if index < len(self._pieces) else b"?"
        return b"" if token_id >= TURN_ID else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        if TURN_ID <= token_id < FIRST_PIECE_ID:
            return f"<|{token_id}|>"
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self) -> Utf8Detokenizer:
        return Utf8Detokenizer(self.token_bytes)
