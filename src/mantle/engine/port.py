"""What is an engine to the rest of Mantle? Two ports and the messages between them.

`Driver` is our code for one engine and one loaded model, inside the worker process: synchronous,
single-threaded, one `step` for all resident sequences. `WorkerLink` is the other side's handle on
a worker process. Invariant: a worker never holds a backlog; whatever is admitted is resident.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams


# --- values -------------------------------------------------------------------------------------
class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a driver runs a model; part of the config (`engine:`).

    `slots`: most resident sequences. `window_tokens`: context a sequence may use (0: the model's
    own). `threads`: 0 means all cores. `batch_tokens`: most tokens in one engine step.
    `prefill_chunk_tokens`: most prompt tokens in one step while others decode.
    `kv_layout`: `streams` gives each slot its own KV stream; `unified` shares one pool of cells.
    `parked_kv_mib`: memory for the KV of parked sequences, beside the model's own.
    `step_ms_target`: prefill is cut so that a step takes about so long (0: never cut).
    `numerics`: `exact` makes logits independent of the batch and of a resume, at the price of
    speed; it overrides `kv_layout` and `flash_attention`. `fast` does not.
    """

    slots: int = 16
    window_tokens: int = 0
    threads: int = 0
    batch_tokens: int = 2048
    prefill_chunk_tokens: int = 512
    kv_layout: str = "streams"
    flash_attention: bool = True
    prefix_reuse: bool = True
    parked_kv_mib: int = 1024
    step_ms_target: float = 120.0
    numerics: str = "fast"


class LoadSpec(msgspec.Struct, frozen=True):
    """Which weights to load, with which driver and settings. `path` never leaves the machine."""

    model_id: str
    driver: str
    path: str
    settings: EngineSettings


class LoadReport(msgspec.Struct, frozen=True):
    """Measured facts of a loaded replica: bytes, milliseconds, tokens.

    `exact`: a resumed sequence continues as the undisturbed one would have, token for token.
    """

    size_bytes: int
    load_ms: float
    slots: int
    window_tokens: int  # most tokens (prompt + output) of one sequence
    kv_tokens: int  # tokens of all resident sequences together
    kv_bytes_per_token: int
    exact: bool = False


class SequenceSpec(msgspec.Struct, frozen=True, array_like=True):
    """One sequence to make resident. Token ids only: no text crosses the link.

    `sequence_id` is unique for the life of a worker link. `resume_tokens` are output tokens that
    are already durable: they are replayed, not sampled, and not reported again; sampling goes on
    at output position len(resume_tokens). `lane_rank` orders prefill (0 first). An
    `urgent` sequence may interrupt the step in progress, and its prefill comes before all else.
    `grammar` (in llguidance's form, "" for none) constrains the output; resumed tokens must fit it.
    `adapter_slot` is reserved for LoRA.
    """

    sequence_id: int
    prompt_tokens: list[int]
    max_output_tokens: int
    sampling: SamplingParams
    resume_tokens: list[int] = []
    lane_rank: int = 2
    prompt_logprobs: bool = False
    ignore_eos: bool = False
    grammar: str = ""
    adapter_slot: int | None = None
    urgent: bool = False

    def __repr__(self) -> str:
        prompt, resumed = len(self.prompt_tokens), len(self.resume_tokens)
        return f"SequenceSpec({self.sequence_id}, prompt={prompt} tokens, resumed={resumed})"


class LogprobEntry(msgspec.Struct, frozen=True, array_like=True):
    """As `core.tokens.TokenLogprob`, for the link."""

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]] = []


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one step gave one sequence.

    `first_index` is the output position of `token_ids[0]`. The end-of-turn token is not part of
    `token_ids`. `finish` set means the sequence is no longer resident. `cached_tokens` (prompt
    tokens whose KV was reused) and `prompt_logprobs` come once, with the first token.
    `error` set means that this sequence broke; nothing else in the batch did.
    """

    sequence_id: int
    first_index: int
    token_ids: list[int]
    logprobs: list[LogprobEntry] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    prompt_logprobs: list[LogprobEntry] | None = None
    error: str | None = None

    def __repr__(self) -> str:
        return f"SequenceOutput({self.sequence_id}, {len(self.token_ids)} tokens, {self.finish})"


class StepBudget(msgspec.Struct, frozen=True):
    """How much prefill one step may do beside decoding every resident sequence once.

    `urgent_only`: nothing but the prefill of urgent sequences.
    """

    prefill_tokens_max: int
    urgent_only: bool = False


class StepReport(msgspec.Struct, frozen=True, array_like=True):
    """One engine step: all sequences' new tokens, and what it cost.

    `interrupted`: it was ended early and nothing came of it.
    """

    outputs: list[SequenceOutput]
    prefill_tokens: int = 0
    decode_tokens: int = 0
    step_ms: float = 0.0
    kv_tokens_used: int = 0
    interrupted: bool = False


class ParkedSequence(msgspec.Struct, frozen=True):
    """A sequence taken out of its slot: its tokens so far, and its KV unless dropped.

    It never crosses the link: the worker keeps it (`parked_kv.py`), since tens of megabytes a
    sequence would hold up every step.
    """

    sequence_id: int
    output_tokens: list[int]
    kv: bytes | None
    kv_tokens: int = 0  # how many tokens `kv` holds

    def __repr__(self) -> str:
        return f"ParkedSequence({self.sequence_id}, {len(self.output_tokens)} tokens)"


# --- the driver's port (inside the worker) ------------------------------------------------------
class Driver(Protocol):
    """One loaded model. Raises `core.errors.LoadFailed` / `EngineFailed`; never anything else.

    `admit` takes over the sequence: from then on exactly one output of a later `step` carries its
    `finish` or `error`, unless `cancel` or `park` took it out first (both are no-ops for a
    sequence that is not resident: `cancel` then returns False, `park` None).
    """

    def load(self, spec: LoadSpec) -> LoadReport: ...

    def admit(self, sequence: SequenceSpec) -> None: ...

    def step(self, budget: StepBudget) -> StepReport: ...

    def interrupt(self) -> None:
        """End the step in progress soon, with nothing done (`StepReport.interrupted`).

        The only method that another thread may call; without a step in progress it does nothing,
        and an engine that can not stop early may ignore it.
        """
        ...

    def has_work(self) -> bool: ...

    def cancel(self, sequence_id: int) -> bool: ...

    def park(self, sequence_id: int, *, keep_kv: bool) -> ParkedSequence | None: ...

    def resume(self, sequence: SequenceSpec, parked: ParkedSequence) -> None: ...

    def close(self) -> None: ...


# --- messages on the link -----------------------------------------------------------------------
class Load(msgspec.Struct, frozen=True, tag=True):
    """Load a replica. Answered by `Loaded` or `LoadFault`; the other replicas go on stepping."""

    replica_id: str
    spec: LoadSpec


class Unload(msgspec.Struct, frozen=True, tag=True):
    """Drop a replica. Its resident sequences, if any, are dropped without outputs."""

    replica_id: str


class Admit(msgspec.Struct, frozen=True, tag=True):
    replica_id: str
    sequence: SequenceSpec


class Cancel(msgspec.Struct, frozen=True, tag=True):
    replica_id: str
    sequence_id: int


class Park(msgspec.Struct, frozen=True, tag=True):
    """Take a sequence out of its slot. Answered by `Parked`, after the outputs it still had;
    silent when it had ended by then.
    """

    replica_id: str
    sequence_id: int


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Go on with a parked sequence under a new id; `sequence.resume_tokens` is all its output.

    Where the worker no longer has the KV of `parked_id`, the sequence is prefilled again.
    """

    replica_id: str
    sequence: SequenceSpec
    parked_id: int


class Forget(msgspec.Struct, frozen=True, tag=True):
    """A parked sequence will not be resumed."""

    replica_id: str
    parked_id: int


Command = Load | Unload | Admit | Cancel | Park | Resume | Forget


class Loaded(msgspec.Struct, frozen=True, tag=True):
    replica_id: str
    report: LoadReport


class LoadFault(msgspec.Struct, frozen=True, tag=True):
    """`message` is safe to show to a client."""

    replica_id: str
    message: str


class Unloaded(msgspec.Struct, frozen=True, tag=True):
    replica_id: str


class Stepped(msgspec.Struct, frozen=True, tag=True):
    replica_id: str
    report: StepReport


class Parked(msgspec.Struct, frozen=True, tag=True):
    """The sequence has left its slot; `kv_bytes` are held for it (0: none, it is cheaper so)."""

    replica_id: str
    sequence_id: int
    kv_bytes: int


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The worker lives. `busy_ms` is the age of the engine step in progress (0: none)."""

    busy_ms: float


WorkerEvent = Loaded | LoadFault | Unloaded | Stepped | Parked | Heartbeat


# --- the link's port (outside the worker) -------------------------------------------------------
class WorkerLink(Protocol):
    """A handle on one worker. One owner; `send` never blocks and never raises.

    `receive` returns all events that have gathered since the last call (at least one), in order,
    and raises `core.errors.ReplicaLost` once the worker is dead or stalled; whoever gets that
    owns the clean-up of everything that was resident there.
    """

    def send(self, commands: Sequence[Command]) -> None: ...

    async def receive(self) -> list[WorkerEvent]: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class OutputCollector:
    """Gathers `SequenceOutput`s of steps; test-kit and benchmarks read whole sequences with it."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, FinishReason] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        for output in report.outputs:
            self.tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
            if output.finish is not None:
                self.finished[output.sequence_id] = output.finish


def drive_to_end(driver: Driver, budget: StepBudget) -> Iterator[StepReport]:
    """Step `driver` until nothing is resident, yielding each report."""
    while driver.has_work():
        yield driver.step(budget)
