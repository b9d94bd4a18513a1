"""How does text become tokens and tokens text? One `ModelText` per model, shared by all requests.

Invariant: everything here is CPU work without I/O after loading; callers run `encode*` off the
event loop. Detokenising is incremental and never splits a character.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, repr=False)
class ChatMessage:
    """One message as chat templates see it. `content` is None for an assistant's pure tool call.

    `extra` holds further keys that templates read (`tool_calls`, `tool_call_id`, `name`,
    `reasoning_content`), as JSON-like values.
    """

    role: str
    content: str | None
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ChatMessage({self.role}, {len(self.content or '')} characters)"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids with a meaning: the start token (None: the model has none) and those that end a turn."""

    bos_id: int | None
    end_ids: frozenset[int]


class Detokenizer(Protocol):
    """Bytes of one request's output, as text, incrementally. Split invariant."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that is complete now; bytes of an unfinished character are held back."""
        ...

    def flush(self) -> str:
        """The rest at the end; an unfinished character becomes U+FFFD."""
        ...


class ModelText(Protocol):
    """Tokeniser and chat template of one model. Thread-safe.

    `encode_chat` raises `InvalidRequest` when the template refuses the messages (its
    `raise_exception`), and `EngineFailed` when the template is broken or too slow.
    Text of clients is always encoded as plain text: `<|im_end|>` typed by a user never becomes
    the special token in `encode`; in `encode_chat` only what the template itself writes may.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def special(self) -> SpecialTokens: ...

    @property
    def token_bytes_max(self) -> int:
        """No token stands for more bytes of text than this."""
        ...

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the start token where the model wants one."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that this token adds to the output; empty for special tokens."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token as text for logprobs: lossy (U+FFFD) for partial characters; special tokens
        by name."""
        ...

    def detokenizer(self) -> Detokenizer: ...
