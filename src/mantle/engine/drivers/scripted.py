"""What would an engine do that knows its lines? A driver that replays a script at a given pace.

Invariant: output depends only on (script, prompt, seed, position), so a resumed, parked or batched
sequence says what an undisturbed one says. Time and death are injected: tests own both.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mantle.core.clock import Clock, SystemClock
from mantle.core.errors import EngineFailed, LoadFailed
from mantle.core.outcome import FinishReason
from mantle.core.script import Fault, ReplyTokens, Script, Vocabulary, parse_script
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

_PROMPTS_REMEMBERED = 64
_DEATH_EXIT_CODE = 134


@dataclass(slots=True, repr=False)
class _Resident:
    """A sequence in its slot. `output` includes what it was resumed with (`resumed` tokens)."""

    spec: SequenceSpec
    reply: ReplyTokens
    prompt_text: bytes
    prefill_left: int
    cached_tokens: int
    output: list[int] = field(default_factory=list)
    resumed: int = 0
    is_announced: bool = False

    @property
    def kv_tokens(self) -> int:
        return len(self.spec.prompt_tokens) + len(self.output) - self.prefill_left


class ScriptedDriver:
    """The `scripted` driver. `pace` sleeps for seconds; `die` ends the process."""

    def __init__(
        self,
        *,
        pace: Callable[[float], None] = time.sleep,
        clock: Clock | None = None,
        die: Callable[[], None] = lambda: os._exit(_DEATH_EXIT_CODE),
    ) -> None:
        self._pace = pace
        self._clock = clock or SystemClock()
        self._die = die
        self._script = Script()
        self._vocabulary = Vocabulary(self._script)
        self._slots = 0
        self._window_tokens = 0
        self._prefix_reuse = False
        self._residents: dict[int, _Resident] = {}
        self._seen_prompts: deque[list[int]] = deque(maxlen=_PROMPTS_REMEMBERED)
        self._strikes = 0

    # --- loading --------------------------------------------------------------------------------
    def load(self, spec: LoadSpec) -> LoadReport:
        started_ms = self._clock.now_ms()
        try:
            content = Path(spec.path).read_bytes()
            script = parse_script(content)
        except OSError as fault:
            raise LoadFailed("the script file cannot be read") from fault
        except msgspec.MsgspecError as fault:
            raise LoadFailed(f"the script file is wrong: {fault}") from fault
        self._wait_ms(script.load_ms)
        if script.fault is not None and script.fault.kind == "fail_load":
            raise LoadFailed("the script says that loading fails")
        settings = spec.settings
        self._script = script
        self._vocabulary = Vocabulary(script)
        self._slots = min(script.slots or settings.slots, settings.slots)
        window_tokens = settings.window_tokens or script.window_tokens
        self._window_tokens = min(window_tokens, script.window_tokens)
        self._prefix_reuse = script.prefix_reuse and settings.prefix_reuse
        return LoadReport(
            size_bytes=len(content),
            load_ms=self._clock.now_ms() - started_ms,
            slots=self._slots,
            window_tokens=self._window_tokens,
            kv_tokens=self._slots * self._window_tokens,
            kv_bytes_per_token=script.kv_bytes_per_token,
            exact=True,
        )

    def close(self) -> None:
        self._residents.clear()
        self._seen_prompts.clear()

    # --- residents ------------------------------------------------------------------------------
    def admit(self, sequence: SequenceSpec) -> None:
        self._make_resident(sequence, output=list(sequence.resume_tokens), has_kv=False)

    def resume(self, sequence: SequenceSpec, parked: ParkedSequence) -> None:
        if sequence.resume_tokens and sequence.resume_tokens != parked.output_tokens:
            raise EngineFailed("the parked sequence is another one")
        if parked.kv is not None:
            kv_tokens = len(sequence.prompt_tokens) + len(parked.output_tokens)
            if len(parked.kv) != kv_tokens * self._script.kv_bytes_per_token:
                raise EngineFailed("the parked KV is not of this sequence")
        output = list(parked.output_tokens)
        self._make_resident(sequence, output=output, has_kv=parked.kv is not None)

    def cancel(self, sequence_id: int) -> bool:
        return self._residents.pop(sequence_id, None) is not None

    def park(self, sequence_id: int, *, keep_kv: bool) -> ParkedSequence | None:
        resident = self._residents.pop(sequence_id, None)
        if resident is None:
            return None
        kv = None
        if keep_kv and resident.prefill_left == 0:
            kv = bytes(resident.kv_tokens * self._script.kv_bytes_per_token)
        return ParkedSequence(sequence_id, resident.output, kv, resident.kv_tokens if kv else 0)

    def interrupt(self) -> None:
        """A scripted step ends when its pace says so."""

    def has_work(self) -> bool:
        return bool(self._residents)

    def _make_resident(self, spec: SequenceSpec, *, output: list[int], has_kv: bool) -> None:
        prompt = spec.prompt_tokens
        if spec.sequence_id in self._residents:
            raise EngineFailed("the sequence is already resident")
        if len(self._residents) >= self._slots:
            raise EngineFailed("no slot is free")
        if not prompt:
            raise EngineFailed("the prompt is empty")
        if len(prompt) + len(output) > self._window_tokens:
            raise EngineFailed("the sequence is longer than the window")
        cached_tokens = len(prompt) if has_kv else self._cached_tokens(prompt)
        self._residents[spec.sequence_id] = _Resident(
            spec=spec,
            reply=self._reply_to(spec),
            prompt_text=self._vocabulary.bytes_of(prompt),
            prefill_left=0 if has_kv else len(prompt) - cached_tokens + len(output),
            cached_tokens=cached_tokens,
            output=output,
            resumed=len(output),
        )

    def _cached_tokens(self, prompt: list[int]) -> int:
        """The longest prefix seen before; the last token is always computed, as engines must."""
        if not self._prefix_reuse:
            return 0
        longest = max((_common_prefix(prompt, seen) for seen in self._seen_prompts), default=0)
        return min(longest, len(prompt) - 1)

    def _reply_to(self, spec: SequenceSpec) -> ReplyTokens:
        script, vocabulary = self._script, self._vocabulary
        if script.echo_last_user:
            return ReplyTokens(tuple(_last_user_turn(vocabulary, spec.prompt_tokens)), {})
        if script.choose == "seed" and script.replies:
            rule = script.replies[spec.sampling.seed % len(script.replies)]
            return vocabulary.reply_tokens(rule.reply)
        prompt_text = vocabulary.bytes_of(spec.prompt_tokens)
        for rule in script.replies:
            if rule.match is None or rule.match.encode() in prompt_text:
                return vocabulary.reply_tokens(rule.reply)
        return vocabulary.reply_tokens(script.reply)

    # --- one step -------------------------------------------------------------------------------
    def step(self, budget: StepBudget) -> StepReport:
        started_ms = self._clock.now_ms()
        decoding = [one for one in self._residents.values() if one.prefill_left == 0]
        prefilled, prefill_tokens = self._prefill(budget.prefill_tokens_max)
        active = decoding + prefilled
        struck = {id(one) for one in active if self._fault_strikes(one)}
        self._wait_for_step(active, prefill_tokens)
        outputs = [self._broken(one) if id(one) in struck else self._advance(one) for one in active]
        return StepReport(
            outputs=outputs,
            prefill_tokens=prefill_tokens,
            decode_tokens=len(decoding),
            step_ms=self._clock.now_ms() - started_ms,
            kv_tokens_used=sum(one.kv_tokens for one in self._residents.values()),
        )

    def _prefill(self, budget_tokens: int) -> tuple[list[_Resident], int]:
        """Spend the budget in order of lane, then of admission; who got done, tokens spent."""
        waiting = [one for one in self._residents.values() if one.prefill_left > 0]
        done: list[_Resident] = []
        spent = 0
        for resident in sorted(waiting, key=lambda one: one.spec.lane_rank):
            chunk = min(resident.prefill_left, budget_tokens - spent)
            resident.prefill_left -= chunk
            spent += chunk
            if resident.prefill_left == 0:
                done.append(resident)
                if self._prefix_reuse:
                    self._seen_prompts.append(resident.spec.prompt_tokens)
        return done, spent

    def _wait_for_step(self, active: list[_Resident], prefill_tokens: int) -> None:
        wait_ms = self._script.step_ms
        if self._script.prefill_tokens_per_s > 0:
            wait_ms += prefill_tokens / self._script.prefill_tokens_per_s * 1e3
        self._wait_ms(wait_ms + max(map(self._pauses_ms, active), default=0.0))

    def _pauses_ms(self, resident: _Resident) -> float:
        first = len(resident.output)
        positions = range(first, first + self._script.tokens_per_step)
        return sum(map(resident.reply.pause_ms_before, positions))

    def _wait_ms(self, wait_ms: float) -> None:
        if wait_ms > 0:
            self._pace(wait_ms / 1e3)

    def _advance(self, resident: _Resident) -> SequenceOutput:
        spec, first_index = resident.spec, len(resident.output)
        endless = self._script.repeat or spec.ignore_eos
        finish = self._bound(resident)
        for _ in range(self._script.tokens_per_step):
            if finish is not None:
                break
            token_id = resident.reply.token_at(len(resident.output), endless=endless)
            if token_id is None:
                finish = FinishReason.END
            else:
                resident.output.append(token_id)
                finish = self._bound(resident)
        if finish is not None:
            del self._residents[spec.sequence_id]
        is_first, resident.is_announced = not resident.is_announced, True
        new_tokens = resident.output[first_index:]
        return SequenceOutput(
            sequence_id=spec.sequence_id,
            first_index=first_index,
            token_ids=new_tokens,
            logprobs=self._logprobs(spec, new_tokens),
            finish=finish,
            cached_tokens=resident.cached_tokens if is_first else 0,
            prompt_logprobs=self._prompt_logprobs(spec) if is_first else None,
        )

    def _bound(self, resident: _Resident) -> FinishReason | None:
        if len(resident.output) >= resident.spec.max_output_tokens:
            return FinishReason.LENGTH
        if len(resident.spec.prompt_tokens) + len(resident.output) >= self._window_tokens:
            return FinishReason.WINDOW
        return None

    # --- log-probabilities (made up: the k-th likeliest token has probability 2^-(k+1)) -----------
    def _logprobs(self, spec: SequenceSpec, token_ids: list[int]) -> list[LogprobEntry] | None:
        count = spec.sampling.logprobs_count
        return None if count is None else [self._entry(one, count) for one in token_ids]

    def _prompt_logprobs(self, spec: SequenceSpec) -> list[LogprobEntry] | None:
        if not spec.prompt_logprobs:
            return None
        count = spec.sampling.logprobs_count or 0
        first, *others = spec.prompt_tokens
        return [LogprobEntry(first, None), *(self._entry(one, count) for one in others)]

    def _entry(self, token_id: int, count: int) -> LogprobEntry:
        size = self._vocabulary.size
        top = [((token_id + k) % size, -(k + 1) * math.log(2)) for k in range(min(count, size))]
        return LogprobEntry(token_id, -math.log(2), top)

    # --- faults ---------------------------------------------------------------------------------
    def _fault_strikes(self, resident: _Resident) -> bool:
        """True when this sequence breaks; a stall or death happens here."""
        fault = self._script.fault
        if fault is None or not self._is_due(fault, resident):
            return False
        self._strikes += 1
        if fault.kind == "die":
            self._die()
        elif fault.kind == "stall":
            self._wait_ms(fault.stall_ms)
        return fault.kind == "fail_sequence"

    def _is_due(self, fault: Fault, resident: _Resident) -> bool:
        after = fault.after_output_tokens
        if fault.times is not None and self._strikes >= fault.times:
            return False
        if len(resident.output) < after or 0 < after <= resident.resumed:
            return False
        return fault.match is None or fault.match.encode() in resident.prompt_text

    def _broken(self, resident: _Resident) -> SequenceOutput:
        del self._residents[resident.spec.sequence_id]
        error = "the script says that this sequence fails"
        sequence_id = resident.spec.sequence_id
        return SequenceOutput(sequence_id, len(resident.output), [], error=error)


def _common_prefix(left: list[int], right: list[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _last_user_turn(vocabulary: Vocabulary, prompt: list[int]) -> list[int]:
    """The content of the last user message; the whole prompt when it is not a chat."""
    marker = [vocabulary.turn_id, *vocabulary.encode("user\n")]
    for start in range(len(prompt) - len(marker), -1, -1):
        if prompt[start] == marker[0] and prompt[start : start + len(marker)] == marker:
            content = prompt[start + len(marker) :]
            end = content.index(vocabulary.end_id) if vocabulary.end_id in content else None
            return content[:end]
    return [token_id for token_id in prompt if token_id < vocabulary.bos_id]
