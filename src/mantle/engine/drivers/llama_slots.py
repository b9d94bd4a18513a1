"""Which slot does a sequence get, and what KV does it find there?

Invariant: a slot's KV holds exactly the tokens its `Slot` says. What an ended sequence leaves
behind stays until its slot is needed, for prompts that begin alike.
"""

from collections.abc import Sequence

from mantle.engine.drivers.llama_native import LlamaContext
from mantle.engine.drivers.llama_sequence import Resident
from mantle.engine.drivers.prefix_cache import (
    MOVED_TOKENS_PER_STEP_MAX,
    Placement,
    Slot,
    closing_move,
    is_worth_waiting,
    place,
)


class SlotKeeper:
    """The slots of one context. Decisions are `prefix_cache`'s; this carries them out."""

    def __init__(
        self, context: LlamaContext, *, reuses_prefix: bool, chunk_tokens: int | None = None
    ) -> None:
        """With `chunk_tokens`, only whole chunks of prompts that were so prefilled are reused."""
        self._context = context
        self._plan = context.plan
        self._slots = [Slot(index) for index in range(context.plan.slots)]
        self._reuses_prefix = reuses_prefix
        self._chunk_tokens = chunk_tokens
        self._clock = 0  # counts steps: the order of use of slots

    def tick(self) -> None:
        """A step begins."""
        self._clock += 1

    def place_waiting(self, in_order: Sequence[Resident]) -> None:
        """Give slots to sequences that may begin; those that soon can copy a prefix wait."""
        for resident in in_order:
            if resident.slot is not None:
                continue
            may_reuse = self._reuses_prefix and not resident.wants_prompt_logprobs
            if may_reuse and resident.parked_kv is None:
                computing = [
                    (one.spec.prompt_tokens, one.computed)
                    for one in in_order
                    if one.slot is not None and one.is_in_prompt
                ]
                if is_worth_waiting(resident.known, computing):
                    continue
            self._place(resident, may_reuse=may_reuse)

    def _place(self, resident: Resident, *, may_reuse: bool) -> None:
        wanted: Sequence[int] = ()
        if may_reuse and resident.parked_kv is None:
            wanted = resident.known if self._chunk_tokens is None else resident.spec.prompt_tokens
        placement = place(
            self._slots,
            wanted,
            copy_is_free=not self._plan.streams,
            multiple_of=self._chunk_tokens or 1,
        )
        slot = placement.slot
        if self._chunk_tokens is not None:
            slot.reusable_max = resident.prompt_count - resident.prompt_count % self._chunk_tokens
        slot.is_busy, resident.slot = True, slot
        if resident.parked_kv is not None and self._restore(resident, slot):
            return
        kept = self._fill_slot(placement)
        resident.cached_tokens = min(kept, resident.prompt_count)

    def _restore(self, resident: Resident, slot: Slot) -> bool:
        """Put parked KV back; False: it does not fit, so all is computed again."""
        kv, resident.parked_kv = resident.parked_kv, None
        self.empty(slot)
        if kv is None or not self._context.restore(slot.index, kv):
            return False
        held = min(self._context.held_tokens(slot.index), len(resident.known) - 1)
        if not self._context.drop_tail(slot.index, held):
            self.empty(slot)
            return False
        slot.tokens = resident.known[:held]
        resident.cached_tokens = min(held, resident.prompt_count)
        return True

    def _fill_slot(self, placement: Placement) -> int:
        """Make the slot hold the placement's prefix and nothing else; how much it holds."""
        slot, source, kept = placement.slot, placement.copy_from, placement.reused
        if source is not None:
            self.empty(slot)
            if self._plan.streams:
                if not self._context.copy(source.index, slot.index):
                    return 0
            else:
                self._context.share(source.index, slot.index, kept)
            slot.tokens = source.tokens[:kept]
        if kept == 0 or not self._context.drop_tail(slot.index, kept):
            self.empty(slot)
            return 0
        del slot.tokens[kept:]
        return kept

    def close_gap(self, residents: Sequence[Resident]) -> None:
        """Swap one sequence next to the others when that pays, for what it still has to go."""
        move = closing_move(self._slots)
        if move is None:
            return
        source, target = move
        resident = next(one for one in residents if one.slot is source)
        steps_left = resident.spec.max_output_tokens - resident.output_count
        moved_tokens = len(source.tokens) + len(target.tokens)
        if not resident.is_decoding or moved_tokens > MOVED_TOKENS_PER_STEP_MAX * steps_left:
            return
        if self._context.swap(source.index, target.index):
            source.tokens, target.tokens = target.tokens, source.tokens
            source.idle_since, target.idle_since = target.idle_since, source.idle_since
            reusable = (target.reusable_max, source.reusable_max)
            source.reusable_max, target.reusable_max = reusable
            source.is_busy, target.is_busy, resident.slot = False, True, target

    def empty(self, slot: Slot) -> None:
        self._context.drop_tail(slot.index, 0)
        slot.tokens = []

    def release(self, resident: Resident) -> None:
        """The sequence has left; its slot is idle and may remember its KV."""
        slot, resident.slot = resident.slot, None
        if slot is None:
            return
        slot.is_busy, slot.idle_since = False, self._clock
        if not self._reuses_prefix:
            self.empty(slot)

    def forget_idle_slot(self) -> bool:
        """Drop what the least recently used idle slot remembers; False: there is none."""
        idle = [slot for slot in self._slots if not slot.is_busy and slot.tokens]
        if not idle:
            return False
        self.empty(min(idle, key=lambda slot: slot.idle_since))
        return True
