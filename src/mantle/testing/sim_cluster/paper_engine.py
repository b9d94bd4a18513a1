"""What does one replica produce, and when? An engine on paper, moved from milestone to milestone.

Steps are not simulated one by one: while nothing enters or leaves, every decoding sequence gains
one token a step and steps take equally long, so only the next milestone (a prompt done, a report
due, a sequence finished) is an event. Invariant: never more sequences than slots, nor more KV
tokens than there are.
"""

import heapq
from dataclasses import dataclass, field

from mantle.core.epoch import Epoch
from mantle.core.ids import RequestId
from mantle.testing.sim_cluster.cost_model import CostModel
from mantle.testing.sim_cluster.invariant import require

_NEARLY = 1e-6  # of a step or token: floating-point time is never quite on the milestone


@dataclass(slots=True)
class PaperSequence:
    """One attempt inside an engine. `prefill_tokens` are still to compute before its first token.

    `first_index` counts the output tokens that earlier attempts had shown.
    """

    request_id: RequestId
    epoch: Epoch
    lane_rank: int
    prefill_tokens: float
    first_index: int
    output_tokens: int
    kv_tokens: int
    number: int = 0
    produced_tokens: int = 0  # and reported
    decoding_since: float | None = None  # in steps; the first token came then


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine says of one sequence: new tokens, and whether they were the last."""

    request_id: RequestId
    epoch: Epoch
    first_index: int
    count: int
    finished: bool


@dataclass(slots=True)
class PaperEngine:
    """One loaded model. `report_tokens`: it speaks of a sequence at least every so many tokens."""

    cost: CostModel
    slots: int
    kv_tokens: int
    report_tokens: int = 32
    slowness: float = 1.0
    _sequences: dict[RequestId, PaperSequence] = field(default_factory=dict)
    _prefills: list[tuple[int, int, PaperSequence]] = field(default_factory=list)
    _prefilling: PaperSequence | None = None
    _milestones: list[tuple[float, int, PaperSequence]] = field(default_factory=list)
    _decoding: int = 0
    _kv_tokens_taken: int = 0
    _steps: float = 0.0
    _at_ms: float = 0.0
    _admitted: int = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def admit(self, sequence: PaperSequence, now_ms: float) -> None:
        """Take a sequence in; its prompt is prefilled when its turn comes, by lane."""
        self._advance(now_ms)
        require(sequence.request_id not in self._sequences, "a sequence was admitted twice")
        self._admitted += 1
        sequence.number = self._admitted
        self._sequences[sequence.request_id] = sequence
        self._kv_tokens_taken += sequence.kv_tokens
        require(len(self._sequences) <= self.slots, "an engine has more sequences than slots")
        require(self._kv_tokens_taken <= self.kv_tokens, "an engine's KV memory is over-committed")
        heapq.heappush(self._prefills, (sequence.lane_rank, sequence.number, sequence))
        self._next_prefill()

    def take_out(self, request_id: RequestId, epoch: Epoch, now_ms: float) -> Progress | None:
        """Let a sequence go before its end; what it produced since its last report, or None when
        it is not here any more.
        """
        self._advance(now_ms)
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.epoch != epoch:
            return None
        progress = self._report(sequence)
        if not progress.finished:
            self._remove(sequence)
        return progress

    def due(self, now_ms: float) -> list[Progress]:
        """Everything that is due now."""
        self._advance(now_ms)
        reports: list[Progress] = []
        prefilled = self._prefilling
        if prefilled is not None and prefilled.prefill_tokens <= _NEARLY:
            self._prefilling = None
            self._decoding += 1
            prefilled.decoding_since = self._steps
            reports.append(self._report(prefilled))
            self._next_prefill()
        while self._milestones and self._milestones[0][0] <= self._steps + _NEARLY:
            _, _, sequence = heapq.heappop(self._milestones)
            if self._sequences.get(sequence.request_id) is sequence:
                reports.append(self._report(sequence))
        return reports

    def next_due_ms(self) -> float | None:
        """When `due` has something to say next; None while idle."""
        times: list[float] = []
        if self._prefilling is not None:
            rate = self.cost.prefill_tokens_per_s / 1e3 / self.slowness
            times.append(self._at_ms + self._prefilling.prefill_tokens / rate)
        while self._milestones:
            step, _, sequence = self._milestones[0]
            if self._sequences.get(sequence.request_id) is sequence:
                times.append(self._at_ms + max(0.0, step - self._steps) * self._step_ms())
                break
            heapq.heappop(self._milestones)
        return min(times, default=None)

    def slow_down(self, slowness: float, now_ms: float) -> None:
        """From now on everything takes so many times as long."""
        self._advance(now_ms)
        self.slowness = slowness

    def _advance(self, now_ms: float) -> None:
        elapsed_ms = now_ms - self._at_ms
        self._at_ms = now_ms
        if elapsed_ms <= 0:
            return
        if self._decoding:
            self._steps += elapsed_ms / self._step_ms()
        if self._prefilling is not None:
            rate = self.cost.prefill_tokens_per_s / 1e3 / self.slowness
            self._prefilling.prefill_tokens -= elapsed_ms * rate

    def _step_ms(self) -> float:
        beside = self._prefilling is not None
        return self.slowness * self.cost.decode_step_ms(self._decoding, beside_prefill=beside)

    def _report(self, sequence: PaperSequence) -> Progress:
        """Say what is new, and plan the next milestone or the end."""
        produced_tokens = 0
        if sequence.decoding_since is not None:
            produced_tokens = 1 + int(self._steps - sequence.decoding_since + _NEARLY)
        produced_tokens = min(produced_tokens, sequence.output_tokens)
        count = produced_tokens - sequence.produced_tokens
        first_index = sequence.first_index + sequence.produced_tokens
        sequence.produced_tokens = produced_tokens
        finished = produced_tokens == sequence.output_tokens
        if finished:
            self._remove(sequence)
        elif sequence.decoding_since is not None:
            ahead = min(produced_tokens + self.report_tokens, sequence.output_tokens) - 1
            step = sequence.decoding_since + ahead
            heapq.heappush(self._milestones, (step, sequence.number, sequence))
        return Progress(sequence.request_id, sequence.epoch, first_index, count, finished)

    def _remove(self, sequence: PaperSequence) -> None:
        del self._sequences[sequence.request_id]
        self._kv_tokens_taken -= sequence.kv_tokens
        if sequence.decoding_since is not None:
            self._decoding -= 1
        if self._prefilling is sequence:
            self._prefilling = None
            self._next_prefill()

    def _next_prefill(self) -> None:
        while self._prefilling is None and self._prefills:
            _, _, sequence = heapq.heappop(self._prefills)
            if self._sequences.get(sequence.request_id) is sequence:
                self._prefilling = sequence
