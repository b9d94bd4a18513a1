"""Who does what the scheduler decides? The loop: it owns the scheduler and every live request.

Invariant: each accepted request is ended exactly once, here, whatever happens to its replica or
its reader; tokens reach the reader only after the journal has committed them (law 4), and outputs
of a sequence that is no longer current are dropped (law 6).
"""

import asyncio
import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Callable

from mantle.core.clock import Clock
from mantle.core.epoch import FIRST_EPOCH, next_epoch
from mantle.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    LoadFailed,
    MantleError,
    ReplicaLost,
    Unavailable,
)
from mantle.core.ids import ModelId, ReplicaId, RequestId
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.request import Request
from mantle.engine.port import LoadReport, SequenceOutput, StepReport
from mantle.journal.port import (
    Accepted,
    Dispatched,
    Finished,
    Journal,
    Parked,
    Record,
    RequestHistory,
    Trimmed,
    redacted,
)
from mantle.pool.port import Demand, ReplicaPool
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.effects import Abort, Dispatch, Effect, Expire, Lose, Park
from mantle.scheduler.generation import LiveGeneration
from mantle.scheduler.observer import DispatchObserver
from mantle.scheduler.outbox import Live, Outbox
from mantle.scheduler.port import Generation, QueueView, written_chunk
from mantle.scheduler.scheduler import Scheduler
from mantle.scheduler.step import Step

log = logging.getLogger("mantle.scheduler")

TICK_S = 0.05

StepMeter = Callable[[ModelId, float, int, int], None]
"""Model, milliseconds, prefill tokens and decode tokens of one engine step."""


class Dispatcher:
    """Implements `SchedulerPort` and `PoolListener`. All methods run on one event loop."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        pool: ReplicaPool,
        journal: Journal,
        clock: Clock,
        observer: DispatchObserver,
        on_step: StepMeter | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._journal = journal
        self._clock = clock
        self._observer = observer
        self._on_step = on_step or _unmetered
        self._live: dict[RequestId, Live] = {}
        self._outbox = Outbox(pool)
        self._deadlines: list[tuple[float, RequestId]] = []
        self.tick_faults = 0
        self._draining = False
        self._emptied = asyncio.Event()
        self._tick_task: asyncio.Task[None] | None = None
        pool.set_listener(self)

    # --- life -----------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to expire what waits too long and to tell the pool what is wanted."""
        self._tick_task = asyncio.create_task(self._tick_forever())

    async def close(self) -> None:
        """Refuse new requests and leave the live ones; their readers get `Unavailable`.

        Nothing is written of it: a journal that lasts lets the next server go on with them.
        """
        self._draining = True
        if self._tick_task is not None:
            self._tick_task.cancel()
            await asyncio.gather(self._tick_task, return_exceptions=True)
        queues = self._scheduler.queues
        waiting_first = sorted(self._live, key=lambda request_id: request_id not in queues)
        for request_id in waiting_first:  # or a freed slot would start one of them
            generation = self._take(request_id).generation
            if not generation.is_over:
                generation.fail(Unavailable("the server is shutting down"))
            self._perform(self._scheduler.cancel(request_id, self._clock.now_ms()))

    async def drain(self, *, seconds_max: float) -> None:
        """Refuse new requests; wait until the live ones have ended, or the time is over."""
        self._draining = True
        if self._live:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds_max)

    # --- SchedulerPort --------------------------------------------------------------------------
    def submit(self, requests: list[Request]) -> list[Generation]:
        """See `SchedulerPort.submit`."""
        if self._draining:
            raise Unavailable("the server is shutting down", hint="retry on another server")
        if self._journal.trouble:
            raise Unavailable(self._journal.trouble, hint="retry later")
        effects = self._scheduler.submit(requests, self._clock.now_ms())
        generations: list[Generation] = [self._take_on(request).generation for request in requests]
        accepted = map(Accepted, requests)
        self._write([a if a.request.keeps_content else redacted(a) for a in accepted])
        self._perform(effects)
        if not self._scheduler.residents.serves(requests[0].model_id):
            self._rebalance()  # do not wait for the tick: somebody waits for a load
        return generations

    def restore(self, request: Request, history: RequestHistory, *, exact: bool) -> Generation:
        """Go on with a request of an earlier server, after its durable tokens.

        `request` is the one of `history` on this server's clock. `exact`: the model and its
        template are those that began it.
        """
        live = self._take_on(request)
        live.epoch = next_epoch(history.epoch) if history.was_dispatched else FIRST_EPOCH
        live.output, live.cached_tokens = list(history.output), history.cached_tokens
        live.generation.resumed_inexactly = bool(history.output) and not exact
        if history.output:
            live.generation.put(written_chunk(history), history.cached_tokens)
        now_ms = self._clock.now_ms()
        resume_from = len(history.output)
        self._perform(self._scheduler.restore(request, live.epoch, resume_from, now_ms))
        return live.generation

    def write_end(self, end: Finished) -> None:
        """The end of a request of an earlier server that does not go on."""
        self._write([end])

    def _take_on(self, request: Request) -> Live:
        generation = LiveGeneration(
            request, now_ms=self._clock.now_ms, view=self._view, give_up=self._give_up
        )
        live = self._live[request.id] = Live(generation)
        if request.deadline_ms is not None:
            heapq.heappush(self._deadlines, (request.deadline_ms, request.id))
        return live

    def queued_count(self, request_id: RequestId) -> int:
        queues = self._scheduler.queues
        return queues.position(request_id) if request_id in queues else 0

    # --- PoolListener ---------------------------------------------------------------------------
    def replica_ready(self, replica_id: ReplicaId, model_id: ModelId, report: LoadReport) -> None:
        capacity = ReplicaCapacity(
            replica_id,
            model_id,
            report.slots,
            report.kv_tokens,
            report.window_tokens,
            exact=report.exact,
        )
        self._perform(self._scheduler.replica_ready(capacity, self._clock.now_ms()))

    def replica_draining(self, replica_id: ReplicaId) -> None:
        self._scheduler.replica_draining(replica_id)

    def replica_gone(self, replica_id: ReplicaId, reason: str) -> None:
        self._outbox.replica_gone(replica_id)
        effects = self._scheduler.replica_gone(replica_id, self._clock.now_ms())
        self._forget_sequences()
        self._perform(effects)

    def load_failed(self, model_id: ModelId, error: LoadFailed) -> None:
        for request_id in self._scheduler.model_failed(model_id, self._clock.now_ms()):
            again = LoadFailed(error.message, retry_after_ms=error.retry_after_ms, hint=error.hint)
            self._fail(request_id, again)

    def stepped(self, replica_id: ReplicaId, report: StepReport) -> None:
        """Write the step's tokens down; they are shown once they are committed."""
        step = Step()
        for output in report.outputs:
            request_id = self._outbox.request_of(output.sequence_id)
            if request_id is not None:
                self._take_in(self._live[request_id], output, step)
        self._write(step.records, step.show)
        for request_id in step.leaving:
            self._perform(self._scheduler.released(request_id, self._clock.now_ms()))
        self._outbox.flush()
        replica = self._scheduler.residents.replica(replica_id)
        if replica is not None:
            self._observer.engine_step(
                replica.model_id, report.step_ms, report.prefill_tokens, report.decode_tokens
            )
            self._on_step(
                replica.model_id, report.step_ms, report.prefill_tokens, report.decode_tokens
            )

    def parked(self, replica_id: ReplicaId, sequence_id: int) -> None:
        """The engine has let go: the request waits again."""
        request_id = self._outbox.parked(replica_id, sequence_id)
        if request_id is None:
            self._outbox.flush()
            return
        live = self._live[request_id]
        live.sequence_id = None
        live.parked_on = (replica_id, sequence_id)
        self._write([Parked(request_id, live.epoch)])
        self._perform(self._scheduler.parked(request_id, self._clock.now_ms()))

    # --- facts for metrics and health -----------------------------------------------------------
    def waiting_counts(self) -> Counter[tuple[Lane, ModelId]]:
        """Waiting requests a lane and model."""
        return self._scheduler.queues.counts()

    def running_counts(self) -> Counter[tuple[Lane, ModelId]]:
        """Running requests a lane and model."""
        running = self._scheduler.residents.all_running()
        return Counter((r.request.lane, r.request.model_id) for r in running)

    # --- what a step brought --------------------------------------------------------------------
    def _take_in(self, live: Live, output: SequenceOutput, step: Step) -> None:
        """One sequence's part of a step. Its state moves on now, its reader when it is durable."""
        request_id = live.generation.request.id
        if output.token_ids or output.prompt_logprobs or output.cached_tokens:
            if live.epoch == FIRST_EPOCH and not live.output:
                live.cached_tokens = output.cached_tokens
            live.output += output.token_ids
            self._scheduler.tokens_produced(
                request_id,
                count=len(output.token_ids),
                cached_tokens=output.cached_tokens,
                now_ms=self._clock.now_ms(),
            )
            step.tokens(live, output)
        if output.error is not None:
            self._take(request_id)
            step.failed(live, EngineFailed(output.error))
        elif output.finish is not None:
            self._take(request_id)
            step.completed(live, output.finish)

    # --- ending a request (each exactly once) ---------------------------------------------------
    def _fail(self, request_id: RequestId, error: MantleError) -> None:
        live = self._take(request_id)
        step = Step()
        step.failed(live, error)
        self._write(step.records, step.show)
        self._perform(self._scheduler.cancel(request_id, self._clock.now_ms()))

    def _give_up(self, generation: LiveGeneration, finish: FinishReason | None) -> None:
        """The reader has enough (`finish` set) or is gone."""
        request_id = generation.request.id
        usage = generation.usage_so_far()
        generation.end(finish or FinishReason.END, usage)
        if request_id not in self._live:  # its end was written already, with more tokens
            if finish is not None:
                self._write([Trimmed(request_id, usage)])
            return
        outcome = Outcome.COMPLETED if finish else Outcome.CANCELLED
        self._write([Finished(request_id, outcome, finish, usage)])
        self._perform(self._scheduler.cancel(request_id, self._clock.now_ms()))
        self._take(request_id)  # only now: performing `Abort` needed its sequence
        self._outbox.flush()

    def _take(self, request_id: RequestId) -> Live:
        live = self._live.pop(request_id)
        self._outbox.leave(live)
        if not self._live:
            self._emptied.set()
        return live

    # --- performing effects ---------------------------------------------------------------------
    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self._dispatch(effect)
            elif isinstance(effect, Park | Abort):
                live = self._live.get(effect.request_id)
                if live is None:
                    continue  # it ended in the step that also freed a slot; `released` follows
                if isinstance(effect, Park):
                    self._outbox.park(live, effect.replica_id)
                else:
                    self._outbox.abort(live, effect.replica_id)
            elif isinstance(effect, Expire):
                self._fail(effect.request_id, effect.error())
            elif isinstance(effect, Lose):
                lost = ReplicaLost(
                    "the worker was lost while it produced this reply",
                    hint="send the request again",
                )
                self._fail(effect.request_id, lost)
        self._outbox.flush()

    def _dispatch(self, effect: Dispatch) -> None:
        live = self._live[effect.request_id]
        generation = live.generation
        live.epoch = effect.epoch
        if generation.dispatched_ms is None:
            generation.dispatched_ms = self._clock.now_ms()
        replica = self._scheduler.residents.replica(effect.replica_id)
        holds_kv = live.parked_on is not None and live.parked_on[0] == effect.replica_id
        if live.output and not holds_kv and not (replica is not None and replica.exact):
            generation.resumed_inexactly = True
        self._write([Dispatched(effect.request_id, effect.epoch, effect.replica_id)])
        self._outbox.enter(live, effect.replica_id, urgent=effect.urgent)

    def _forget_sequences(self) -> None:
        """After a loss: requests that went back to their queue have no sequence any more."""
        for live in self._live.values():
            request_id = live.generation.request.id
            running = self._scheduler.residents.find(request_id)
            if live.sequence_id is not None and running is None:
                self._outbox.leave(live)

    # --- time and demand ------------------------------------------------------------------------
    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:  # the loop's outer edge: without ticks nothing expires or loads
                self.tick_faults += 1
                log.exception("a tick failed; the next one comes")

    def tick(self) -> None:
        """Expire what waited too long; tell the pool what is wanted."""
        self._pass_deadlines()
        self._perform(self._scheduler.tick(self._clock.now_ms()))
        self._rebalance()

    def _pass_deadlines(self) -> None:
        """End what is past its own deadline, wherever it is."""
        now_ms = self._clock.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request_id = heapq.heappop(self._deadlines)
            live = self._live.get(request_id)
            if live is None:
                continue
            since_ms = now_ms - live.generation.request.accepted_ms
            self._perform(self._scheduler.cancel(request_id, now_ms))
            message = f"the deadline passed after {since_ms / 1_000:.1f} s"
            self._fail(request_id, DeadlineExceeded(message))

    def _rebalance(self) -> None:
        now_ms = self._clock.now_ms()
        queues, residents = self._scheduler.queues, self._scheduler.residents
        demand: dict[ModelId, Demand] = {}
        for model_id, cost in queues.demand().items():
            is_served = residents.serves(model_id)
            wait_ms = 0.0 if is_served else queues.oldest_wait_ms(model_id, now_ms)
            demand[model_id] = Demand(cost, wait_ms)
        running = {r.replica_id: len(r.running) for r in residents.replicas()}
        self._pool.rebalance(demand, running)

    def _write(self, records: list[Record], committed: Callable[[], None] | None = None) -> None:
        """After a failure of the journal nothing is written, so nothing more is shown either."""
        if not self._journal.has_failed:
            self._journal.append(records, committed or _nothing)

    def _view(self, generation: LiveGeneration) -> QueueView | None:
        waiting = self._scheduler.queues.find(generation.request.id)
        if waiting is None:
            return None
        request_id, now_ms = generation.request.id, self._clock.now_ms()
        return QueueView(
            self._scheduler.queues.position(request_id),
            now_ms - waiting.queued_ms,
            self._scheduler.estimated_wait_ms(request_id, now_ms),
        )


def _nothing() -> None:
    return None


def _unmetered(_model_id: ModelId, _ms: float, _prefill_tokens: int, _decode_tokens: int) -> None:
    return None
