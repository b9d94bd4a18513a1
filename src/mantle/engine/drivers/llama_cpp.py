"""How does llama.cpp serve many sequences at once? We compose every batch and choose every token.

Invariant: one `llama_decode` a step carries one token of each decoding sequence and chunks of
prefill; a slot's KV holds exactly the tokens its `Slot` says. Under `numerics: fast` logits may
differ in the last bits with the batch around a sequence; under `exact` a step is several decodes,
composed as `llama_exact` says, and they may not.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mantle.core.errors import EngineFailed
from mantle.engine.drivers.llama_batch import Chunk, compose, fill
from mantle.engine.drivers.llama_exact import (
    PREFILL_CHUNK_TOKENS,
    compose_exact,
    exact_settings,
    is_exact,
)
from mantle.engine.drivers.llama_memory import kv_budget_bytes
from mantle.engine.drivers.llama_native import (
    DECODE_INTERRUPTED,
    DECODE_NO_KV_ROOM,
    DECODE_OK,
    LlamaContext,
)
from mantle.engine.drivers.llama_sequence import Resident, unknown_tokens
from mantle.engine.drivers.llama_slots import SlotKeeper
from mantle.engine.grammar import GrammarEngine
from mantle.engine.port import (
    LoadReport,
    LoadSpec,
    LogprobEntry,
    ParkedSequence,
    SequenceOutput,
    SequenceSpec,
    StepBudget,
    StepReport,
)
from mantle.engine.sampling import Sampler

_NO_ROOM: Final = "the engine has no KV room for this sequence"
_STEP_FAILED: Final = "the engine step failed"
_NO_LOGITS: Final = "the model gave no usable logits"
_NO_TOKEN: Final = "the grammar leaves no token to choose"


class LlamaCppDriver:
    """`engine.port.Driver` over llama.cpp. Single-threaded.

    KV takes at most `kv_bytes_max`; by default half of the memory that is free at `load`.
    """

    def __init__(self, *, kv_bytes_max: int | None = None) -> None:
        self._kv_bytes_max = kv_bytes_max
        self._context: LlamaContext | None = None
        self._residents: dict[int, Resident] = {}
        self._admitted_count = 0

    def load(self, spec: LoadSpec) -> LoadReport:
        """Load the weights and warm them up."""
        assert self._context is None, "one driver holds one model: close it first"
        started = time.monotonic()
        kv_bytes_max = kv_budget_bytes() if self._kv_bytes_max is None else self._kv_bytes_max
        self._is_exact = spec.settings.numerics == "exact"
        settings = exact_settings(spec.settings) if self._is_exact else spec.settings
        context = LlamaContext(spec.path, settings, kv_bytes_max=kv_bytes_max)
        self._context = context
        self._plan, self._facts = context.plan, context.facts
        self._sampler = Sampler(self._facts.vocab_size)
        self._end_ids = frozenset(self._facts.end_ids.tolist())
        self._keeper = SlotKeeper(
            context,
            reuses_prefix=settings.prefix_reuse and self._facts.can_drop_tail,
            chunk_tokens=PREFILL_CHUNK_TOKENS if self._is_exact else None,
        )
        self._grammars = GrammarEngine(context.grammar_tokenizer)
        context.warm_up()
        continues_exactly = self._is_exact and self._facts.can_drop_tail and is_exact(context)
        return LoadReport(
            size_bytes=self._facts.size_bytes,
            load_ms=(time.monotonic() - started) * 1e3,
            slots=self._plan.slots,
            window_tokens=self._plan.window_tokens,
            kv_tokens=self._plan.cells,
            kv_bytes_per_token=self._facts.kv_bytes_per_token,
            exact=continues_exactly,
        )

    def admit(self, sequence: SequenceSpec) -> None:
        self._make_resident(sequence, list(sequence.resume_tokens), None, has_reported=False)

    def resume(self, sequence: SequenceSpec, parked: ParkedSequence) -> None:
        output = list(parked.output_tokens)
        if sequence.resume_tokens and sequence.resume_tokens != output:
            raise EngineFailed("the parked sequence is another one")
        self._make_resident(sequence, output, parked.kv, has_reported=bool(output))

    def _make_resident(
        self, spec: SequenceSpec, output: list[int], kv: bytes | None, *, has_reported: bool
    ) -> None:
        assert self._context is not None, "load first"
        assert spec.sequence_id not in self._residents, "sequence ids are unique"
        if len(self._residents) >= self._plan.slots:
            raise EngineFailed("every slot is taken")
        if not spec.prompt_tokens:
            raise EngineFailed("the prompt is empty")
        if len(spec.prompt_tokens) + len(output) > self._plan.window_tokens:
            raise EngineFailed("the sequence does not fit the window")
        if unknown_tokens([*spec.prompt_tokens, *output], self._facts.vocab_size):
            raise EngineFailed("a token id is outside the vocabulary")
        grammar = self._grammars.start(spec.grammar, output) if spec.grammar else None
        self._admitted_count += 1
        self._residents[spec.sequence_id] = Resident.of(
            spec,
            output=output,
            order=self._admitted_count,
            end_ids=self._facts.end_ids,
            grammar=grammar,
            parked_kv=kv,
            has_reported=has_reported,
        )

    def interrupt(self) -> None:
        context = self._context
        if context is not None:
            context.interrupt()

    def has_work(self) -> bool:
        return bool(self._residents)

    def cancel(self, sequence_id: int) -> bool:
        resident = self._residents.get(sequence_id)
        if resident is None:
            return False
        self._leave(resident)
        return True

    def park(self, sequence_id: int, *, keep_kv: bool) -> ParkedSequence | None:
        resident = self._residents.get(sequence_id)
        if resident is None:
            return None
        kv = None
        if keep_kv and not resident.wants_prompt_logprobs:  # those need the whole prompt again
            kv = self._saved_kv(resident)
        output = resident.known[resident.prompt_count :]
        kv_tokens = 0 if kv is None else resident.computed
        self._leave(resident)
        return ParkedSequence(sequence_id, output, kv, kv_tokens)

    def _saved_kv(self, resident: Resident) -> bytes | None:
        if resident.slot is None or self._context is None:
            return resident.parked_kv  # parked again before it came to a slot
        return self._context.save(resident.slot.index) if resident.computed else None

    def close(self) -> None:
        self._residents.clear()
        if self._context is not None:
            self._context.close()
            self._context = None

    def step(self, budget: StepBudget) -> StepReport:
        """Decode every resident sequence once, and prefill as far as the budget goes."""
        assert self._context is not None, "load first"
        started = time.monotonic()
        self._keeper.tick()
        in_order = sorted(self._residents.values(), key=_service_order)
        outputs = [
            output for one in in_order if (output := self._at_bound_already(one)) is not None
        ]
        residents = [one for one in in_order if one.spec.sequence_id in self._residents]
        self._keeper.place_waiting(residents)
        if self._plan.streams:
            self._keeper.close_gap(residents)
        try:
            chunks, computed = (self._compute_exact if self._is_exact else self._compute)(budget)
        except _Interrupted as interrupted:
            step_ms = (time.monotonic() - started) * 1e3
            outputs += interrupted.failures
            return StepReport(outputs, step_ms=step_ms, interrupted=True)
        outputs += computed
        prefilled = sum(chunk.count for chunk in chunks if chunk.is_prefill)
        return StepReport(
            outputs=outputs,
            prefill_tokens=prefilled,
            decode_tokens=sum(chunk.count for chunk in chunks) - prefilled,
            step_ms=(time.monotonic() - started) * 1e3,
            kv_tokens_used=sum(one.computed for one in self._residents.values()),
        )

    def _at_bound_already(self, resident: Resident) -> SequenceOutput | None:
        """A sequence that came in with all it may have, and wants no prompt log-probabilities."""
        finish = resident.bound_reached(self._plan.window_tokens)
        if finish is None or resident.wants_prompt_logprobs:
            return None
        self._leave(resident)
        return resident.output(resident.output_count, [], finish)

    def _leave(self, resident: Resident) -> None:
        """Take the sequence out; its slot is idle from now on and may remember its KV."""
        del self._residents[resident.spec.sequence_id]
        self._keeper.release(resident)

    # --- one decode -----------------------------------------------------------------------------
    def _compute(self, budget: StepBudget) -> tuple[list[Chunk], list[SequenceOutput]]:
        """One batch, and the tokens chosen after it."""
        chunks, outputs = self._decode(budget)
        return chunks, outputs + self._choose_tokens(chunks)

    def _compute_exact(self, budget: StepBudget) -> tuple[list[Chunk], list[SequenceOutput]]:
        """Batch after batch, each with its tokens; an interrupt ends the step where it is."""
        assert self._context is not None, "load first"
        done, outputs = list[Chunk](), list[SequenceOutput]()
        batches = compose_exact(
            sorted(self._residents.values(), key=_service_order),
            prefill_tokens_max=budget.prefill_tokens_max,
            urgent_only=budget.urgent_only,
        )
        for batch in batches:
            if any(chunk.resident.spec.sequence_id not in self._residents for chunk in batch):
                continue  # an earlier chunk of it failed
            code = self._context.decode(fill(self._context, batch))
            if code == DECODE_INTERRUPTED:
                self._undo(batch)
                if not done:
                    raise _Interrupted(outputs)
                break
            if code != DECODE_OK:
                outputs += [self._fail(chunk.resident, _STEP_FAILED) for chunk in batch]
                continue
            for chunk in batch:
                _advance(chunk)
            done += batch
            outputs += self._choose_tokens(batch)
        return done, outputs

    def _decode(self, budget: StepBudget) -> tuple[list[Chunk], list[SequenceOutput]]:
        """Compute one batch. What does not fit fails alone, newest first; the rest goes on."""
        context, failures = self._context, list[SequenceOutput]()
        assert context is not None, "load first"
        while True:
            chunks = compose(
                sorted(self._residents.values(), key=_service_order),
                prefill_tokens_max=budget.prefill_tokens_max,
                urgent_only=budget.urgent_only,
                batch_tokens=context.batch_tokens,
            )
            if not chunks:
                return [], failures
            code = context.decode(fill(context, chunks))
            if code == DECODE_INTERRUPTED:
                self._undo(chunks)
                raise _Interrupted(failures)
            if code == DECODE_OK:
                for chunk in chunks:
                    _advance(chunk)
                return chunks, failures
            if code != DECODE_NO_KV_ROOM:
                return [], failures + [self._fail(chunk.resident, _STEP_FAILED) for chunk in chunks]
            if not self._keeper.forget_idle_slot():
                newest = max((chunk.resident for chunk in chunks), key=lambda one: one.order)
                failures.append(self._fail(newest, _NO_ROOM))

    def _undo(self, chunks: Sequence[Chunk]) -> None:
        """Take out of the KV what an interrupted decode may have put there."""
        assert self._context is not None, "load first"
        for chunk in chunks:
            slot = chunk.resident.slot
            assert slot is not None, "a sequence without a slot cannot be computed"
            if not self._context.drop_tail(slot.index, chunk.start):
                self._keeper.empty(slot)

    def _fail(self, resident: Resident, message: str) -> SequenceOutput:
        """End a broken sequence; nothing of its KV is trusted."""
        slot = resident.slot
        output = resident.failure(message)
        self._leave(resident)
        if slot is not None:
            self._keeper.empty(slot)
        return output

    # --- tokens ---------------------------------------------------------------------------------
    def _choose_tokens(self, chunks: Sequence[Chunk]) -> list[SequenceOutput]:
        assert self._context is not None, "load first"
        row_count = sum(chunk.row_count for chunk in chunks)
        if row_count == 0:
            return []
        logits = self._context.logits(row_count)
        choosing: list[Resident] = []
        rows: list[int] = []
        outputs: list[SequenceOutput] = []
        row = 0
        for chunk in chunks:
            if chunk.wants_all:
                self._add_prompt_logprobs(chunk, logits[row : row + chunk.count])
            row += chunk.row_count
            if not chunk.wants_last:
                continue
            resident = chunk.resident
            finish = resident.bound_reached(self._plan.window_tokens)
            if finish is None:
                choosing.append(resident)
                rows.append(row - 1)
            else:  # only prompt log-probabilities were wanted
                outputs.append(resident.output(resident.output_count, [], finish))
                self._leave(resident)
        return outputs + self._sample(logits if len(rows) == row_count else logits[rows], choosing)

    def _sample(
        self, logits: NDArray[np.float32], choosing: Sequence[Resident]
    ) -> list[SequenceOutput]:
        outputs = []
        choices = self._sampler.choose(logits, [one.draw() for one in choosing])
        for resident, choice in zip(choosing, choices, strict=True):
            if choice is None:
                is_free = resident.grammar is None
                outputs.append(self._fail(resident, _NO_LOGITS if is_free else _NO_TOKEN))
                continue
            output, is_last = resident.accept(
                choice,
                is_end=choice.token_id in self._end_ids,
                window_tokens=self._plan.window_tokens,
            )
            outputs.append(output)
            if is_last:
                self._leave(resident)
        return outputs

    def _add_prompt_logprobs(self, chunk: Chunk, rows: NDArray[np.float32]) -> None:
        resident = chunk.resident
        prompt, entries = resident.spec.prompt_tokens, resident.prompt_logprobs
        if not entries:
            entries.append(LogprobEntry(prompt[0], None))
        top_count = resident.spec.sampling.logprobs_count or 0
        for offset, row in enumerate(rows):
            index = chunk.start + offset + 1
            if index < len(prompt):
                entries.append(self._sampler.logprob_of(row, prompt[index], top_count))


class _Interrupted(Exception):
    """A decode was ended early; `failures` came before it."""

    def __init__(self, failures: list[SequenceOutput]) -> None:
        super().__init__()
        self.failures = failures


def _service_order(resident: Resident) -> tuple[bool, int, int, int]:
    """Urgent ones, then by lane; within a lane who is nearest to its first token."""
    spec = resident.spec
    return (not spec.urgent, spec.lane_rank, resident.left, resident.order)


def _advance(chunk: Chunk) -> None:
    """The chunk's tokens are in the KV now."""
    resident = chunk.resident
    assert resident.slot is not None, "a sequence without a slot cannot be computed"
    resident.slot.tokens.extend(resident.known[chunk.start : chunk.start + chunk.count])
