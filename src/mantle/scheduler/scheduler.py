"""Who runs next, and where? The pure scheduler: events in, effects out, no I/O, no clock.

Three questions are asked at every free slot: which lane (`lane_order`), which tenant of that lane
(`fairness`), which of the tenant's requests (`ordering`). Invariant: every accepted request is
either waiting in exactly one queue or running on exactly one replica until it ends, once.

Events come as method calls with the time; each returns the effects that the dispatcher must
perform in order. The caller owns what a `Rejected` was raised for; everything else is ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mantle.core.epoch import next_epoch
from mantle.core.ids import ModelId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.limits import ATTEMPTS_MAX
from mantle.core.request import Attempt, Request
from mantle.scheduler.cost import CostWeights, OutputEstimate
from mantle.scheduler.effects import Abort, Dispatch, Effect, Expire, Lose
from mantle.scheduler.fairness.port import Fairness
from mantle.scheduler.fairness.virtual_counter import VirtualTokenCounter
from mantle.scheduler.lane_order import DEFAULT_FLOORS, FloorsLaneOrder
from mantle.scheduler.queues import QueueBounds, Queues, Waiting
from mantle.scheduler.running import ReplicaCapacity, Residents, Running
from mantle.scheduler.service_rate import ServiceRate


def default_bounds() -> dict[Lane, QueueBounds]:
    """Longest waits: a minute in Priority, five in Standard, an hour in Flex."""
    return {
        Lane.RESERVED: QueueBounds(wait_s_max=60.0),
        Lane.PRIORITY: QueueBounds(wait_s_max=60.0),
        Lane.STANDARD: QueueBounds(wait_s_max=300.0),
        Lane.FLEX: QueueBounds(wait_s_max=3_600.0),
    }


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """What the operator decides about scheduling."""

    bounds: Mapping[Lane, QueueBounds] = field(default_factory=default_bounds)
    floors: Mapping[Lane, float] = field(default_factory=lambda: dict(DEFAULT_FLOORS))
    cost: CostWeights = field(default_factory=CostWeights)


def equal_weights(_: TenantId) -> float:
    """Every tenant weighs the same."""
    return 1.0


class Scheduler:
    """The one owner of queues, slots and what was served to whom."""

    def __init__(
        self,
        rules: SchedulerRules | None = None,
        *,
        weight_of: Callable[[TenantId], float] = equal_weights,
        fairness_of: Callable[[Lane], Fairness] | None = None,
    ) -> None:
        rules = rules or SchedulerRules()
        self._cost = rules.cost
        self.queues = Queues(dict(rules.bounds))
        self.residents = Residents()
        self._lane_order = FloorsLaneOrder(rules.floors)
        make_fairness = fairness_of or (lambda _: VirtualTokenCounter(weight_of))
        self._fairness = {lane: make_fairness(lane) for lane in Lane}
        self._estimate = OutputEstimate()
        self._rate = ServiceRate()
        self._arrivals = 0

    # --- events about requests ------------------------------------------------------------------
    def submit(self, requests: list[Request], now_ms: float) -> list[Effect]:
        """Queue all branches of one ask, or none. Raises `QueueFull`: nothing was queued."""
        first = requests[0]
        retry_after_ms = self._rate.expected_wait_ms(first.tenant_id, len(requests))
        self.queues.check_room(requests, retry_after_ms=retry_after_ms)
        for request in requests:
            self._arrivals += 1
            expires_ms = self.queues.expires_ms(request, now_ms)
            cost = self._dispatch_cost(request, self._expected_output(request))
            self._enqueue(Waiting(request, self._arrivals, now_ms, expires_ms, cost))
        return self._fill(first.model_id, now_ms)

    def cancel(self, request_id: RequestId, now_ms: float) -> list[Effect]:
        """The client is gone, or has enough: a waiting request leaves, a running one gives way.

        The slot is free at once: the link keeps order, so the engine lets go of the aborted
        sequence before it sees the next one.
        """
        if request_id in self.queues:
            self._dequeue(request_id)
            return []
        running = self.residents.find(request_id)
        if running is None:
            return []
        abort = Abort(request_id, running.attempt.replica_id)
        return [abort, *self.released(request_id, now_ms)]

    def tokens_produced(
        self, request_id: RequestId, *, count: int, cached_tokens: int, now_ms: float
    ) -> None:
        """The attempt has `count` more output tokens; `cached_tokens` come with the first ones."""
        running = self.residents.find(request_id)
        if running is None:
            return
        if cached_tokens:
            self._charge(running, -self._cost.of_input(cached_tokens), now_ms)
        estimated_left = max(0, running.estimated_output_tokens - running.produced_tokens)
        running.produced_tokens += count
        beyond = count - estimated_left
        if beyond > 0:
            self._charge(running, self._cost.of_output(beyond), now_ms)

    def released(self, request_id: RequestId, now_ms: float) -> list[Effect]:
        """The attempt is over (finished, broke or aborted): its slot is free."""
        running = self.residents.release(request_id)
        if running is None:
            return []
        self._settle(running, now_ms)
        self._rate.served(running.request.tenant_id, now_ms)
        return self._fill(running.request.model_id, now_ms)

    # --- events about replicas ------------------------------------------------------------------
    def replica_ready(self, capacity: ReplicaCapacity, now_ms: float) -> list[Effect]:
        """A replica can take work."""
        self.residents.add_replica(capacity)
        return self._fill(capacity.model_id, now_ms)

    def replica_draining(self, replica_id: ReplicaId) -> None:
        """Give it no more work: its memory is wanted for another model."""
        capacity = self.residents.replica(replica_id)
        if capacity is not None:
            capacity.draining = True

    def replica_gone(self, replica_id: ReplicaId, now_ms: float) -> list[Effect]:
        """A replica was lost or unloaded. What had shown nothing yet goes back to its place."""
        effects: list[Effect] = []
        models: set[ModelId] = set()
        for running in self.residents.drop_replica(replica_id):
            self._settle(running, now_ms)
            models.add(running.request.model_id)
            waiting = running.waiting
            waiting.attempts += 1
            if running.produced_tokens or waiting.attempts >= ATTEMPTS_MAX:
                effects.append(Lose(running.request.id))
                continue
            waiting.epoch = next_epoch(waiting.epoch)
            self._enqueue(waiting)
        for model_id in models:
            effects += self._fill(model_id, now_ms)
        return effects

    def tick(self, now_ms: float) -> list[Effect]:
        """Time has passed: drop what has waited too long."""
        effects: list[Effect] = []
        while (request_id := self.queues.pop_expired(now_ms)) is not None:
            waiting = self._dequeue(request_id)
            deadline_ms = waiting.request.deadline_ms
            by_deadline = deadline_ms is not None and deadline_ms <= now_ms
            effects.append(Expire(request_id, now_ms - waiting.queued_ms, by_deadline))
        return effects

    # --- answers --------------------------------------------------------------------------------
    def demand(self) -> dict[ModelId, float]:
        """Token cost that waits, a model: what the pool weighs against the cost of loading."""
        return self.queues.demand()

    def model_failed(self, model_id: ModelId) -> list[RequestId]:
        """The model can not be loaded: everything that waits for it leaves. Returns who."""
        return [
            self._dequeue(waiting.request.id).request.id
            for waiting in self.queues.of_model(model_id)
        ]

    def expected_wait_ms(self, tenant_id: TenantId, requests: int) -> float:
        """A rough guess, from how fast this tenant was served lately."""
        return self._rate.expected_wait_ms(tenant_id, requests)

    # --- inside ---------------------------------------------------------------------------------
    def _fill(self, model_id: ModelId, now_ms: float) -> list[Effect]:
        """Late binding: give each free slot of the model's replicas to whoever is next."""
        effects: list[Effect] = []
        while (replica := self.residents.roomiest(model_id)) is not None:
            lane = self._lane_order.pick(self.queues.lanes_waiting(model_id), now_ms)
            if lane is None:
                break
            tenant_id = self._fairness[lane].pick(model_id)
            assert tenant_id is not None, "a backlogged lane has a backlogged tenant"
            waiting = self.queues.head(lane, tenant_id, model_id)
            kv_tokens = min(waiting.tokens, replica.window_tokens)
            if not replica.fits(kv_tokens):
                break  # no overtaking: a long request must not starve behind short ones
            effects.append(self._start(waiting, replica, kv_tokens, now_ms))
        return effects

    def _start(
        self, waiting: Waiting, replica: ReplicaCapacity, kv_tokens: int, now_ms: float
    ) -> Dispatch:
        request = waiting.request
        self._dequeue(request.id)
        expected = self._expected_output(request)
        attempt = Attempt(request.id, replica.replica_id, waiting.epoch)
        running = Running(request, attempt, waiting, kv_tokens, expected)
        self.residents.start(running)
        self._charge(running, self._dispatch_cost(request, expected), now_ms)
        return Dispatch(request.id, replica.replica_id, waiting.epoch)

    def _settle(self, running: Running, now_ms: float) -> None:
        """Take back what was estimated but not produced, and learn from it."""
        unproduced = running.estimated_output_tokens - running.produced_tokens
        if unproduced > 0:
            self._charge(running, -self._cost.of_output(unproduced), now_ms)
        self._estimate.learn(running.request.tenant_id, running.produced_tokens)

    def _charge(self, running: Running, cost: float, now_ms: float) -> None:
        request = running.request
        running.charged_cost += cost
        self._fairness[request.lane].charge(request.tenant_id, cost)
        backlogged = self.queues.lanes_waiting(request.model_id)
        self._lane_order.charge(request.lane, cost, backlogged=backlogged, now_ms=now_ms)

    def _enqueue(self, waiting: Waiting) -> None:
        request = waiting.request
        if self.queues.add(waiting):
            self._fairness[request.lane].backlogged(request.tenant_id, request.model_id)

    def _dequeue(self, request_id: RequestId) -> Waiting:
        waiting, is_empty = self.queues.remove(request_id)
        request = waiting.request
        if is_empty:
            self._fairness[request.lane].drained(request.tenant_id, request.model_id)
            if not self.queues.lane_is_waiting(request.lane):
                self._lane_order.drained(request.lane)
        return waiting

    def _expected_output(self, request: Request) -> int:
        return self._estimate.expected(request.tenant_id, request.max_output_tokens)

    def _dispatch_cost(self, request: Request, expected_output: int) -> float:
        return self._cost.of_input(len(request.prompt_tokens)) + self._cost.of_output(
            expected_output
        )
