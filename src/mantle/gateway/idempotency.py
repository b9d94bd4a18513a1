"""What does a repeated request with the same `Idempotency-Key` get? The reply of the first one.

Invariant: under one key of one tenant nothing runs twice, unless the first try failed: repeats
join what runs and replay what is finished, also across servers and restarts. Another body under
the same key is a mistake of the client.
"""

import hashlib
from typing import Final

from mantle.core.errors import Conflict
from mantle.core.outcome import Outcome
from mantle.gateway import field_checks as check
from mantle.gateway.again import answer_again, rebuilt
from mantle.gateway.reply import Job
from mantle.gateway.serve import Paper, Turn, serve
from mantle.journal.port import AskHistory

KEY_HEADER: Final = "idempotency-key"
_KEY_CHARS_MAX: Final = 255


async def serve_once(turn: Turn, job: Job, label: str, raw: bytes) -> None:
    """Answer `job`, or again what was answered under its key. Raises any `MantleError`."""
    key = turn.exchange.headers.get(KEY_HEADER)
    if key is None:
        await serve(turn, job, Paper(label, raw))
        return
    if not (0 < len(key) <= _KEY_CHARS_MAX and key.isascii() and key.isprintable()):
        raise check.invalid(KEY_HEADER, f"must be 1…{_KEY_CHARS_MAX} printable ASCII characters")
    paper = Paper(
        label,
        raw,
        key_digest=_digest(turn.principal.tenant.id.encode(), key.encode()),
        body_digest=_digest(label.encode(), raw),
    )
    running = await turn.parts.asks.claim(paper.key_digest)
    if running is not None:
        _check_body(running.asked.body_digest, paper)
        turn.exchange.watch()
        await answer_again(turn, running)
        return
    try:
        finished = await _finished(turn, paper)
        if finished is None:
            await serve(turn, job, paper)
    finally:
        turn.parts.asks.release(paper.key_digest)
    if finished is not None:
        turn.exchange.watch()
        await answer_again(turn, await rebuilt(turn.parts, finished))


async def _finished(turn: Turn, paper: Paper) -> AskHistory | None:
    """The finished ask under this key; None: there is none, or it has failed."""
    journal = turn.parts.journal
    ask_id = await journal.find_key(turn.principal.tenant.id, paper.key_digest)
    history = None if ask_id is None else await journal.history(ask_id)
    if history is None:
        return None
    ends = [request.finished for request in history.requests]
    if not all(end is not None and end.outcome is Outcome.COMPLETED for end in ends):
        return None
    _check_body(history.asked.body_digest, paper)
    if not history.asked.body:
        raise Conflict("the reply under this idempotency key was given and nothing of it is kept")
    return history


def _check_body(body_digest: str, paper: Paper) -> None:
    if body_digest != paper.body_digest:
        raise Conflict(
            "this idempotency key was used for another request",
            hint="send the same body again, or use a new key",
        )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
