"""Which slot takes a new sequence, and whose KV may it reuse? Pure decisions over token ids.

Invariant: a slot's `tokens` are exactly what its KV holds, position by position. Slots are chosen
so that busy ones stay neighbours (llama.cpp computes only neighbouring streams together), then the
least recently used, so that what idle slots remember lives long.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

REUSE_TOKENS_MIN: Final = 16
"""Shorter common prefixes are computed again: copying costs as much."""

_COPY_RATIO: Final = 12
"""Copying one token's KV costs about 1/12 of computing it, and a source is copied whole."""

MOVED_TOKENS_PER_STEP_MAX: Final = 32
"""KV tokens worth moving for each step that a sequence still has to go. Beyond: it does not pay."""


@dataclass(slots=True, repr=False)
class Slot:
    """One llama.cpp sequence id: what its KV holds, and whether a sequence lives in it.

    `reusable_max`: how many of its leading tokens another sequence may reuse (None: all).
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    is_busy: bool = False
    idle_since: int = 0
    reusable_max: int | None = None

    def __repr__(self) -> str:
        return f"Slot({self.index}, {len(self.tokens)} tokens, busy={self.is_busy})"


@dataclass(frozen=True, slots=True)
class Placement:
    """Put the sequence into `slot`, after copying `copy_from` there if given; keep `reused`."""

    slot: Slot
    copy_from: Slot | None = None
    reused: int = 0


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def place(
    slots: Sequence[Slot],
    tokens: Sequence[int],
    *,
    copy_is_free: bool,
    multiple_of: int = 1,
) -> Placement:
    """Where a sequence that knows `tokens` goes. There must be an idle slot.

    At least the last known token is left to compute, and only a multiple of `multiple_of` tokens
    is reused. 1. An idle slot whose memory is mostly this
    prefix is taken as it is. 2. Else the slot with the longest prefix is copied, if that pays.
    3. Else the prefix in the chosen idle slot, if any, is used.
    """
    usable = tokens[:-1]
    shared = {slot.index: _shared(slot, usable, multiple_of) for slot in slots}
    idle = [slot for slot in slots if not slot.is_busy]
    assert idle, "admitted more sequences than there are slots"
    own = max(idle, key=lambda slot: (shared[slot.index], -_added_runs(slots, slot)))
    source = max(slots, key=lambda slot: shared[slot.index])
    reused, longest = shared[own.index], shared[source.index]
    if reused >= REUSE_TOKENS_MIN and 2 * reused >= len(own.tokens) and 2 * reused >= longest:
        return Placement(own, reused=reused)
    spare = min(idle, key=lambda slot: (_added_runs(slots, slot), *_value(slot), slot.index))
    gained = longest - shared[spare.index]
    pays = copy_is_free or gained * _COPY_RATIO >= len(source.tokens)
    if gained >= REUSE_TOKENS_MIN and pays:
        return Placement(spare, copy_from=source, reused=longest)
    return Placement(spare, reused=shared[spare.index])


def is_worth_waiting(tokens: Sequence[int], others: Iterable[tuple[Sequence[int], int]]) -> bool:
    """True when a sequence still in prefill will soon hold most of `tokens`.

    `others` are (prompt, tokens already computed) of sequences in prefill that came before.
    """
    usable = tokens[:-1]
    for prompt, computed in others:
        if computed >= len(usable):
            continue
        shared = common_prefix(prompt, usable)
        if shared > computed and shared >= 2 * REUSE_TOKENS_MIN and 2 * shared >= len(usable):
            return True
    return False


def closing_move(slots: Sequence[Slot]) -> tuple[Slot, Slot] | None:
    """(busy slot, idle slot) to swap so that busy slots become neighbours again, if they are not.

    One out of the smallest run goes next to the largest. Measured: four sequences in scattered
    slots cost 1.8 times, eight 2 times as much a step as in neighbouring ones.
    """
    runs: list[list[Slot]] = []
    for slot in slots:
        if not slot.is_busy:
            continue
        if runs and runs[-1][-1].index + 1 == slot.index:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    if len(runs) < 2:
        return None
    largest = max(runs, key=len)
    smallest = min((run for run in runs if run is not largest), key=len)
    beside = (largest[0].index - 1, largest[-1].index + 1)
    idle = [slots[at] for at in beside if 0 <= at < len(slots)]
    return smallest[-1], min(idle, key=lambda slot: len(slot.tokens))


def _shared(slot: Slot, usable: Sequence[int], multiple_of: int) -> int:
    """How many tokens of `slot` can be used as they are."""
    shared = common_prefix(slot.tokens, usable)
    if slot.reusable_max is not None:
        shared = min(shared, slot.reusable_max)
    return shared - shared % multiple_of


def _value(slot: Slot) -> tuple[bool, int]:
    """What is lost by emptying an idle slot: nothing, else more the later it was used."""
    return bool(slot.tokens), slot.idle_since


def _added_runs(slots: Sequence[Slot], slot: Slot) -> int:
    """How many more runs of neighbouring busy slots there would be: −1 joins two, 0 extends."""
    left = slot.index > 0 and slots[slot.index - 1].is_busy
    right = slot.index + 1 < len(slots) and slots[slot.index + 1].is_busy
    return 1 - int(left) - int(right)
