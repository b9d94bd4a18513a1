"""Who runs next, and where? The pure scheduler: events in, effects out, no I/O, no clock.

Three questions are asked at every free slot: which lane (`lane_order`), which tenant of that lane
(`fairness`), which of the tenant's requests (`ordering`). Invariant: every accepted request is
either waiting in exactly one queue or running on exactly one replica until it ends, once.

When no slot is free, a running attempt may be parked for a request that should not wait
(`preemption.py`): it goes back to its queue and continues later, with no token twice.

Events come as method calls with the time; each returns the effects that the dispatcher must
perform in order. The caller owns what a `Rejected` was raised for; everything else is ours.
"""

from collections.abc import Callable, Collection

from mantle.core.epoch import FIRST_EPOCH, Epoch, next_epoch
from mantle.core.ids import ModelId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.limits import ATTEMPTS_MAX
from mantle.core.request import Attempt, Request
from mantle.core.tokens import TokenCursor
from mantle.scheduler.accounts import Accounts
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.cost import OutputEstimate
from mantle.scheduler.effects import Abort, Dispatch, Effect, Expire, Lose, Park
from mantle.scheduler.fairness.port import Fairness
from mantle.scheduler.fairness.virtual_counter import VirtualTokenCounter
from mantle.scheduler.holdings import Holdings
from mantle.scheduler.preemption import Parking
from mantle.scheduler.queues import BoundOf, Queues, Waiting, no_own_bound
from mantle.scheduler.rules import SchedulerRules, equal_weights
from mantle.scheduler.running import Residents, Running
from mantle.scheduler.steady import SteadyTraffic
from mantle.scheduler.wait_estimate import OnWaitOver, WaitEstimate, unjudged


class Scheduler:
    """The one owner of queues, slots and what was served to whom."""

    def __init__(
        self,
        rules: SchedulerRules | None = None,
        *,
        weight_of: Callable[[TenantId], float] = equal_weights,
        fairness_of: Callable[[Lane], Fairness] | None = None,
        bound_of: BoundOf = no_own_bound,
        on_wait_over: OnWaitOver = unjudged,
    ) -> None:
        rules = rules or SchedulerRules()
        self._cost = rules.cost
        self._weight_of = weight_of
        self.queues = Queues(dict(rules.bounds), bound_of)
        self.residents = Residents()
        make_fairness = fairness_of or (lambda _: VirtualTokenCounter(weight_of))
        self.accounts = Accounts(rules.cost, rules.floors, weight_of, make_fairness, self.queues)
        self._holdings = Holdings(weight_of)
        self._parking = Parking(
            rules.parking,
            self._holdings,
            weight_of,
            self.accounts.is_behind_floor,
        )
        self._leaving: dict[RequestId, Running] = {}  # parked, the engine has not let go yet
        self._steady = SteadyTraffic()
        self._estimate = OutputEstimate()
        self.waits = WaitEstimate(on_over=on_wait_over)
        self._arrivals = 0

    # --- events about requests ------------------------------------------------------------------
    def submit(self, requests: list[Request], now_ms: float) -> list[Effect]:
        """Queue all branches of one ask, or none. Raises `QueueFull`: nothing was queued."""
        first = requests[0]
        self.queues.check_room(requests, retry_after_ms=self.waits.retry_after_ms(requests, now_ms))
        for request in requests:
            waiting = self._arrived(request, now_ms)
            waiting.cost = self._cost.of_input(len(request.prompt_tokens))
            waiting.cost += self._cost.of_output(self._expected_output(waiting))
            self._enqueue(waiting, now_ms)
        effects = self._fill(first.model_id, now_ms)
        for request in requests:
            if request.id in self.queues:
                self.waits.queued(request, now_ms)
        return effects

    def restore(
        self, request: Request, epoch: Epoch, resume_from: int, now_ms: float
    ) -> list[Effect]:
        """A request of an earlier server waits again, whatever the bounds: it was let in there.

        After the first epoch it has run, so its prompt is paid for.
        """
        waiting = self._arrived(request, now_ms)
        waiting.epoch, waiting.resume_from, waiting.parked_ms = epoch, resume_from, now_ms
        waiting.parks = int(epoch > FIRST_EPOCH)
        if not waiting.has_run:
            waiting.cost = self._cost.of_input(len(request.prompt_tokens))
        waiting.cost += self._cost.of_output(self._expected_output(waiting))
        self._enqueue(waiting, now_ms)
        return self._fill(request.model_id, now_ms)

    def cancel(self, request_id: RequestId, now_ms: float) -> list[Effect]:
        """The client is gone, or has enough: a waiting request leaves, a running one gives way.

        The slot is free at once: the link keeps order, so the engine lets go of the aborted
        sequence before it sees the next one.
        """
        if request_id in self.queues:
            waiting = self._dequeue(request_id, now_ms)
            return self._fill(waiting.request.model_id, now_ms)  # it may have been in the way
        leaving = self._leaving.pop(request_id, None)
        if leaving is not None:
            return [Abort(request_id, leaving.attempt.replica_id)]
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
            leaving = self._leaving.get(request_id)
            if leaving is not None:  # of the step that was under way when it was parked
                self.accounts.charge_late(leaving, count, cached_tokens, now_ms)
                self.accounts.note_service(leaving, count, cached_tokens, now_ms)
                leaving.produced_tokens += count
            return
        if running.waiting.has_run:
            cached_tokens = 0  # it found what it had computed itself
        if cached_tokens:
            self.accounts.charge(running, -self._cost.of_input(cached_tokens), now_ms)
        beyond = count - max(0, running.estimated_output_tokens - running.produced_tokens)
        if beyond > 0:
            self.accounts.charge(running, self._cost.of_output(beyond), now_ms)
        self.accounts.note_service(running, count, cached_tokens, now_ms)
        running.produced_tokens += count

    def released(self, request_id: RequestId, now_ms: float) -> list[Effect]:
        """The attempt is over (finished, broke or aborted): its slot is free."""
        if self._leaving.pop(request_id, None) is not None:
            return []  # it ended in the step that was under way when it was parked
        running = self.residents.release(request_id)
        if running is None:
            return []
        self._let_go(running, now_ms)
        produced_tokens = running.waiting.resume_from + running.produced_tokens
        self._estimate.learn(running.request.tenant_id, produced_tokens)
        return self._fill(running.request.model_id, now_ms)

    def parked(self, request_id: RequestId, now_ms: float) -> list[Effect]:
        """The engine has let go of a parked attempt: the request waits again, in its old place."""
        running = self._leaving.pop(request_id, None)
        if running is None:
            return []
        waiting = running.waiting
        waiting.resume_from += running.produced_tokens
        waiting.parks += 1
        waiting.epoch = next_epoch(waiting.epoch)
        waiting.parked_ms = now_ms
        waiting.cost = self._cost.of_output(self._expected_output(waiting))
        self._enqueue(waiting, now_ms)
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
        """A replica was lost or unloaded. What ran there goes back to its place in the queue.

        It goes on after the tokens it has shown; only what was lost too often is given up.
        """
        effects: list[Effect] = []
        models: set[ModelId] = set()
        leaving = [r for r in self._leaving.values() if r.attempt.replica_id == replica_id]
        for running in leaving:
            del self._leaving[running.request.id]
        lost = self.residents.drop_replica(replica_id)
        for running in lost:
            self._let_go(running, now_ms)
        for running in [*lost, *leaving]:
            models.add(running.request.model_id)
            waiting = running.waiting
            waiting.attempts += 1
            if waiting.attempts >= ATTEMPTS_MAX:
                effects.append(Lose(running.request.id))
                continue
            waiting.resume_from += running.produced_tokens
            waiting.epoch = next_epoch(waiting.epoch)
            self._enqueue(waiting, now_ms)
        for model_id in sorted(models):
            effects += self._fill(model_id, now_ms)
        return effects

    def tick(self, now_ms: float) -> list[Effect]:
        """Time has passed: drop what has waited too long; it may have been in others' way."""
        effects: list[Effect] = []
        models: set[ModelId] = set()
        while (request_id := self.queues.pop_expired(now_ms)) is not None:
            waiting = self._dequeue(request_id, now_ms)
            deadline_ms = waiting.request.deadline_ms
            by_deadline = deadline_ms is not None and deadline_ms <= now_ms
            effects.append(Expire(request_id, now_ms - waiting.queued_ms, by_deadline))
            models.add(waiting.request.model_id)
        for model_id in sorted(models):
            effects += self._fill(model_id, now_ms)
        return effects

    # --- answers --------------------------------------------------------------------------------
    def demand(self) -> dict[ModelId, float]:
        """Token cost that waits, a model: what the pool weighs against the cost of loading."""
        return self.queues.demand()

    def leaving(self) -> Collection[RequestId]:
        """Parked attempts that their engines have not let go of yet."""
        return self._leaving.keys()

    def model_failed(self, model_id: ModelId, now_ms: float) -> list[RequestId]:
        """The model can not be loaded: everything that waits for it leaves. Returns who."""
        return [
            self._dequeue(waiting.request.id, now_ms).request.id
            for waiting in self.queues.of_model(model_id)
        ]

    def estimated_wait_ms(self, request_id: RequestId, now_ms: float) -> float | None:
        """How long the request will still wait; None: it does not, or no pace is known."""
        waiting = self.queues.find(request_id)
        if waiting is None:
            return None
        position = self.queues.position(request_id)
        queued_ms = max(waiting.queued_ms, waiting.parked_ms)
        return self.waits.wait_ms(waiting.request, position, queued_ms=queued_ms, now_ms=now_ms)

    # --- inside ---------------------------------------------------------------------------------
    def _fill(self, model_id: ModelId, now_ms: float) -> list[Effect]:
        """Late binding: give each free slot of the model's replicas to whoever is next."""
        effects: list[Effect] = []
        turns = self.accounts.turns_of(model_id)
        while self.residents.serves(model_id):
            lane = turns.lane_order.pick(self.queues.lanes_waiting(model_id))
            if lane is None:
                break
            tenant_id = turns.fairness[lane].pick()
            assert tenant_id is not None, "a backlogged lane has a backlogged tenant"
            waiting = self.queues.head(lane, tenant_id, model_id)
            replica = self.residents.room_for(model_id, waiting.tokens)
            if replica is None:
                # no overtaking: a long request must not starve behind short ones
                found = self._find_victim(waiting, now_ms)
                if found is None:
                    break
                waiting, victim = found
                effects.append(self._park(victim, now_ms))
                replica = self.residents.replica(victim.attempt.replica_id)
                assert replica is not None, "a victim runs on a replica"
                if not replica.fits(replica.kv_need(waiting.tokens)):
                    continue  # KV memory is short: the next round frees more
            effects.append(self._start(waiting, replica, now_ms))
        return effects

    def _find_victim(self, first: Waiting, now_ms: float) -> tuple[Waiting, Running] | None:
        """Who should run though all is taken, and who gives way.

        Asked are the one whose turn it is, then, lane by lane, the waiting tenant that holds
        fewest slots: a turn is a matter of cost served, a slot a matter of cost to come.
        """
        victim = self._victim(first, now_ms)
        if victim is not None:
            return first, victim
        model_id = first.request.model_id
        for lane in Lane:
            tenant_id = self._holdings.lightest_waiting(model_id, lane)
            if tenant_id is None:
                continue
            waiting = self.queues.head(lane, tenant_id, model_id)
            victim = None if waiting is first else self._victim(waiting, now_ms)
            if victim is not None and self._may_go_first(waiting, victim):
                return waiting, victim
        return None

    def _may_go_first(self, waiting: Waiting, victim: Running) -> bool:
        """Out of turn only to within one request of what the victim's tenant has had.

        Without that slots would be shared evenly, but cost would not. Nor may it then be ahead
        by more than the largest cost in flight: half of the fairness bound is for who is behind.
        """
        request = waiting.request
        if victim.request.lane is not request.lane:
            return True
        turns = self.accounts.turns_of(request.model_id)
        fairness = turns.fairness[request.lane]
        lead = fairness.counter(request.tenant_id) - fairness.counter(victim.request.tenant_id)
        cost = waiting.cost / self._weight_of(request.tenant_id)
        return lead <= min(cost, turns.certificates[request.lane].largest_in_flight - cost)

    def _victim(self, waiting: Waiting, now_ms: float) -> Running | None:
        request = waiting.request
        here = self._holdings.of(request.model_id, request.lane)
        held = 0 if here is None else here.count(request.tenant_id)
        steady_slots = self._steady.slots(request.tenant_id, request.model_id, now_ms)
        return self._parking.victim_for(request, is_steady=held < steady_slots, now_ms=now_ms)

    def _park(self, victim: Running, now_ms: float) -> Park:
        self.residents.release(victim.request.id)
        self._let_go(victim, now_ms)
        self._leaving[victim.request.id] = victim
        self.accounts.ledger.parked(victim.request.lane, victim.request.tenant_id, now_ms)
        return Park(victim.request.id, victim.attempt.replica_id)

    def _start(self, waiting: Waiting, replica: ReplicaCapacity, now_ms: float) -> Dispatch:
        request = waiting.request
        by_floor = self.accounts.turns_of(request.model_id).lane_order.is_ahead_of_turn(
            request.lane, self.queues.lanes_waiting(request.model_id)
        )
        queued_ms = max(waiting.queued_ms, waiting.parked_ms)
        self.waits.dispatched(request, queued_ms=queued_ms, now_ms=now_ms)
        if not waiting.has_run:
            wait_ms = now_ms - waiting.queued_ms
            self.accounts.ledger.waited(request.lane, request.tenant_id, wait_ms, now_ms)
        self._dequeue(request.id, now_ms)
        expected = self._expected_output(waiting)
        running = Running(
            request,
            Attempt(
                request.id, replica.replica_id, waiting.epoch, TokenCursor(waiting.resume_from)
            ),
            waiting,
            replica.kv_need(waiting.tokens),
            now_ms,
            expected,
            by_floor,
        )
        urgent = not waiting.has_run and not by_floor and self._parking.is_urgent(request)
        self.residents.start(running)
        self._holdings.add(running)
        input_tokens = 0 if waiting.has_run else len(request.prompt_tokens)
        cost = self._cost.of_input(input_tokens) + self._cost.of_output(expected)
        self.accounts.charge(running, cost, now_ms)
        return Dispatch(request.id, replica.replica_id, waiting.epoch, waiting.resume_from, urgent)

    def _arrived(self, request: Request, now_ms: float) -> Waiting:
        self._arrivals += 1
        self._steady.arrived(request.tenant_id, request.model_id, now_ms)
        expires_ms = self.queues.expires_ms(request, now_ms)
        return Waiting(request, self._arrivals, now_ms, expires_ms, cost=0.0)

    def _let_go(self, running: Running, now_ms: float) -> None:
        """The slot is free: take back what was estimated but not produced, and learn from it."""
        self._holdings.remove(running)
        self.accounts.landed(running, now_ms)
        request = running.request
        self._steady.served(
            request.tenant_id, request.model_id, now_ms - running.started_ms, now_ms
        )

    def _enqueue(self, waiting: Waiting, now_ms: float) -> None:
        request = waiting.request
        if self.queues.add(waiting):
            turns = self.accounts.turns_of(request.model_id)
            turns.backlogged(request.lane, request.tenant_id, now_ms)
            self._holdings.waits(request.model_id, request.lane, request.tenant_id)

    def _dequeue(self, request_id: RequestId, now_ms: float) -> Waiting:
        waiting, is_empty = self.queues.remove(request_id)
        request = waiting.request
        self.waits.left(request)
        if is_empty:
            turns = self.accounts.turns_of(request.model_id)
            turns.drained(request.lane, request.tenant_id, now_ms)
            self._holdings.rests(request.model_id, request.lane, request.tenant_id)
            if request.lane not in self.queues.lanes_waiting(request.model_id):
                turns.lane_order.drained(request.lane)
        return waiting

    def _expected_output(self, waiting: Waiting) -> int:
        request = waiting.request
        expected = self._estimate.expected(request.tenant_id, request.max_output_tokens)
        return max(1, expected - waiting.resume_from)
