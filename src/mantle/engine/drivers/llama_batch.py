"""What goes into the next decode? One token of each decoding sequence, then chunks of prefill.

Invariant: pure; prefill goes by lane, then admission; entries are ordered by slot, which
llama.cpp needs to compute neighbouring streams together; never more than the batch holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mantle.engine.drivers.llama_native import LlamaContext
from mantle.engine.drivers.llama_sequence import Resident

_LOGIT_ROWS_MAX: Final = 256
"""Prompt positions with logits in one step. Beyond: their logits fill memory (vocabulary × 4 B)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of one sequence, from its position `start` on.

    `wants_last`: it completes what is known, so its last row of logits chooses a token.
    `wants_all`: every row is wanted, for prompt log-probabilities.
    """

    resident: Resident
    start: int
    count: int
    wants_last: bool
    wants_all: bool
    is_prefill: bool

    @property
    def row_count(self) -> int:
        return self.count if self.wants_all else int(self.wants_last)


def compose(
    residents: Sequence[Resident],
    *,
    prefill_tokens_max: int,
    urgent_only: bool,
    batch_tokens: int,
) -> list[Chunk]:
    """Chunks of the next decode, ordered by slot. `residents` come in order of service.

    `urgent_only` leaves everything out but the prefill of urgent sequences.
    """
    if urgent_only:
        residents = [one for one in residents if one.spec.urgent and not one.is_decoding]
    chunks = [chunk_of(one, 1) for one in residents if one.is_decoding]
    room = min(batch_tokens - len(chunks), prefill_tokens_max)
    for one in residents:
        if one.slot is None or one.is_decoding:
            continue
        count = min(one.left, room)
        if one.wants_prompt_logprobs:
            count = min(count, _LOGIT_ROWS_MAX)
        if count <= 0:
            continue
        chunks.append(chunk_of(one, count))
        room -= count
    return sorted(chunks, key=slot_index)


def fill(context: LlamaContext, chunks: Sequence[Chunk]) -> int:
    """Write the chunks into the context's batch arrays; how many entries there are."""
    at = 0
    for chunk in chunks:
        end = at + chunk.count
        known = chunk.resident.known
        if chunk.count == 1:
            context.tokens[at] = known[chunk.start]
            context.positions[at] = chunk.start
        else:
            context.tokens[at:end] = known[chunk.start : chunk.start + chunk.count]
            context.positions[at:end] = np.arange(chunk.start, chunk.start + chunk.count)
        context.slots[at:end] = slot_index(chunk)
        context.wants_logits[at:end] = chunk.wants_all
        if chunk.wants_last:
            context.wants_logits[end - 1] = 1
        at = end
    return at


def chunk_of(resident: Resident, count: int, *, start: int | None = None) -> Chunk:
    """The next `count` tokens of a sequence, or those from `start` on."""
    if start is None:
        start = resident.computed
    wants_all = resident.wants_prompt_logprobs and start < resident.prompt_count
    completes = start + count == len(resident.known)
    return Chunk(resident, start, count, completes, wants_all, not resident.is_decoding)


def slot_index(chunk: Chunk) -> int:
    """Where the chunk's sequence lives; the order of a batch."""
    assert chunk.resident.slot is not None, "a sequence without a slot cannot be computed"
    return chunk.resident.slot.index
