"""What must llama.cpp be given so that a token never depends on what else runs? (`numerics: exact`)

Invariant: KV is a function of the sequence alone. A prompt is computed in chunks that begin at
multiples of `PREFILL_CHUNK_TOKENS`, each in a decode of its own; output tokens, new or replayed
after a resume, are computed one a decode, beside other single tokens only. For a chunk of two or
more llama.cpp takes other kernels than for one token, which round differently, and it cuts a batch
of unequal chunks into pieces that depend on all of them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mantle.engine.drivers.llama_batch import Chunk, chunk_of, slot_index
from mantle.engine.drivers.llama_native import DECODE_OK, LlamaContext
from mantle.engine.drivers.llama_sequence import Resident
from mantle.engine.port import EngineSettings

PREFILL_CHUNK_TOKENS: Final = 64
"""Smaller: weights are read more often a prompt. Larger: steps overrun their budget by more."""

_PROBED_SLOTS_MAX: Final = 16
_PROBE_TOKENS: Final = 4


def exact_settings(settings: EngineSettings) -> EngineSettings:
    """`settings` with what exactness needs: no flash attention, and a KV stream a slot."""
    return msgspec.structs.replace(
        settings,
        kv_layout="streams",
        flash_attention=False,
        batch_tokens=max(settings.batch_tokens, PREFILL_CHUNK_TOKENS),
    )


def compose_exact(
    residents: Sequence[Resident], *, prefill_tokens_max: int, urgent_only: bool
) -> list[list[Chunk]]:
    """The decodes of one step: all single output tokens together, then prefill chunk by chunk.

    `residents` come in order of service. The first chunk goes even beyond the budget, since a
    smaller one would not be exact: a step overruns by less than `PREFILL_CHUNK_TOKENS`.
    """
    placed = [one for one in residents if one.slot is not None]
    singles = [chunk_of(one, 1) for one in placed if not one.is_in_prompt]
    batches = [sorted(singles, key=slot_index)] if singles and not urgent_only else []
    room = prefill_tokens_max
    for one in placed:
        if urgent_only and not one.spec.urgent:
            continue
        start = one.computed
        while start < one.prompt_count:
            count = min(PREFILL_CHUNK_TOKENS, one.prompt_count - start)
            if room <= 0 or (count > room and room < prefill_tokens_max):
                return batches
            batches.append([chunk_of(one, count, start=start)])
            start += count
            room -= count
    return batches


def is_exact(context: LlamaContext) -> bool:
    """Measured: does each row of a batch come out bit for bit as it does alone? Slots end empty.

    Whether it does hangs on the kernels that llama.cpp has for these weights on this machine.
    """
    slots = list(range(min(context.plan.slots, _PROBED_SLOTS_MAX)))
    vocab_size = context.facts.vocab_size
    token_ids = np.random.default_rng(0).integers(vocab_size, size=(len(slots), _PROBE_TOKENS + 1))
    for slot in slots:
        _compute(context, [slot], token_ids[slot : slot + 1, :-1])
    last = token_ids[:, -1:]
    alone = [_compute(context, [slot], last[slot : slot + 1], rewind=True)[0] for slot in slots]
    same = True
    for count in sorted({2, 3, 4, 5, 8, len(slots)}):
        if count > len(slots):
            continue
        rows = _compute(context, slots[:count], last[:count], rewind=True)
        same &= all(np.array_equal(row, one) for row, one in zip(rows, alone, strict=False))
    for slot in slots:
        context.drop_tail(slot, 0)
    return same


def _compute(
    context: LlamaContext, slots: Sequence[int], token_ids: NDArray[np.int64], rewind: bool = False
) -> NDArray[np.float32]:
    """Logits after the tokens, one row a slot. `rewind` takes the tokens out of the KV again."""
    count = token_ids.shape[1]
    held = [context.held_tokens(slot) for slot in slots]
    entries = len(slots) * count
    context.tokens[:entries] = token_ids.reshape(-1)
    context.slots[:entries] = np.repeat(slots, count)
    context.positions[:entries] = np.concatenate([np.arange(at, at + count) for at in held])
    context.wants_logits[:entries] = 0
    context.wants_logits[count - 1 : entries : count] = 1
    code = context.decode(entries)
    logits = context.logits(len(slots)).copy()
    if rewind:
        for slot, at in zip(slots, held, strict=True):
            context.drop_tail(slot, at)
    return logits if code == DECODE_OK else np.full_like(logits, np.nan)
