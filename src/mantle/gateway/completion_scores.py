"""How did OpenAI's older format write log-probabilities? Four parallel lists, one entry a token.

Invariant: tokens that are different parts of characters never share a key of `top_logprobs`; the
sampled token is among the keys; numbers are finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mantle.core import limits
from mantle.core.tokens import TokenLogprob
from mantle.gateway import sse
from mantle.gateway.reply import encode_scores
from mantle.text.port import ModelText


@dataclass(frozen=True, slots=True)
class ScoredPiece:
    """One token's scores and where it starts in the choice's text."""

    logprob: TokenLogprob
    text_offset: int


def scores_body(
    pieces: Sequence[ScoredPiece], text: ModelText, *, even_if_empty: bool = False
) -> bytes:
    """The `logprobs` object as JSON; `null` without tokens unless asked otherwise."""
    if not pieces and not even_if_empty:
        return b"null"
    return sse.encode(
        {
            "tokens": [token_key(text, piece.logprob.token_id) for piece in pieces],
            "token_logprobs": [_finite(piece.logprob.logprob) for piece in pieces],
            "top_logprobs": [_top(text, piece.logprob) for piece in pieces],
            "text_offset": [piece.text_offset for piece in pieces],
        }
    )


def token_key(text: ModelText, token_id: int) -> str:
    """The token's text, or `bytes:\\xNN…` where it is only part of a character."""
    raw = text.token_bytes(token_id)
    try:
        return raw.decode() if raw else text.token_text(token_id)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _top(text: ModelText, scored: TokenLogprob) -> dict[str, float | None] | None:
    if scored.logprob is None:
        return None
    top: dict[str, float | None] = {}
    for token_id, logprob in scored.top:
        top.setdefault(token_key(text, token_id), _finite(logprob))
    top.setdefault(token_key(text, scored.token_id), _finite(scored.logprob))
    return top


def _finite(logprob: float | None) -> float | None:
    return encode_scores(logprob, limits.LOGPROB_FLOOR)
