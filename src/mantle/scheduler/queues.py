"""Where does a request wait? One queue per (lane, tenant, model), bounded in requests and tokens.

Invariant: every waiting request is in exactly one queue, and the per-tenant totals equal the sums
over its queues.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import QueueFull
from mantle.core.ids import ModelId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.core.tenant import QueueBound
from mantle.scheduler.ordering.deadline_first import DeadlineFirstQueue


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much one tenant may have waiting in one lane, and for how long."""

    requests_max: int = 2_000
    tokens_max: int = 8_000_000
    wait_s_max: float = 300.0

    def but(self, own: QueueBound | None) -> "QueueBounds":
        """These, with what a tenant has of its own."""
        if own is None:
            return self
        return QueueBounds(
            self.requests_max if own.requests_max is None else own.requests_max,
            self.tokens_max if own.tokens_max is None else own.tokens_max,
            self.wait_s_max,
        )


@dataclass(slots=True)
class Waiting:
    """A request in its queue. `cost` is estimated; `attempts` counts the tries already lost.

    A request that was parked or whose replica was lost goes on at `resume_from` (output tokens so
    far). It has run: its prompt is paid for, and only its own deadline can still expire it.
    """

    request: Request
    arrival: int
    queued_ms: float
    expires_ms: float
    cost: float
    epoch: Epoch = FIRST_EPOCH
    attempts: int = 0
    parks: int = 0
    resume_from: int = 0
    parked_ms: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.request.prompt_tokens) + self.request.max_output_tokens

    @property
    def has_run(self) -> bool:
        return self.parks > 0 or self.attempts > 0


@dataclass(slots=True)
class LaneLoad:
    """What one tenant has waiting in one lane."""

    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class TenantQueue:
    """What one tenant has waiting in one lane for one model. `deadlines`: requests with one."""

    order: DeadlineFirstQueue = field(default_factory=DeadlineFirstQueue)
    cost: float = 0.0
    deadlines: int = 0


QueueKey = tuple[Lane, TenantId, ModelId]
BoundOf = Callable[[TenantId, Lane], QueueBound | None]


def no_own_bound(_tenant_id: TenantId, _lane: Lane) -> None:
    """Every tenant has the lane's bounds."""
    return


class Queues:
    """All waiting requests. `bound_of` is asked at each arrival, so a change counts at once."""

    def __init__(self, bounds: dict[Lane, QueueBounds], bound_of: BoundOf = no_own_bound) -> None:
        self._bounds = bounds
        self._bound_of = bound_of
        self._queues: dict[QueueKey, TenantQueue] = {}
        self._oldest: dict[ModelId, RequestId] = {}  # where it is known: asked for, still here
        self._waiting: dict[RequestId, Waiting] = {}
        self._load: defaultdict[tuple[Lane, TenantId], LaneLoad] = defaultdict(LaneLoad)
        self._lanes_of: dict[ModelId, dict[Lane, int]] = {}
        self._demand: defaultdict[ModelId, float] = defaultdict(float)
        self._expiry: list[tuple[float, RequestId]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    def check_room(self, requests: list[Request], *, retry_after_ms: float) -> None:
        """Raises `QueueFull` when the tenant's own bound in this lane would be passed."""
        first = requests[0]
        own = self._bound_of(first.tenant_id, first.lane)
        bounds = self._bounds[first.lane].but(own)
        load = self._load.get((first.lane, first.tenant_id), LaneLoad())
        tokens = sum(len(r.prompt_tokens) + r.max_output_tokens for r in requests)
        if load.requests + len(requests) > bounds.requests_max:
            full = f"{load.requests} requests wait there, {bounds.requests_max} may"
        elif load.requests and load.tokens + tokens > bounds.tokens_max:
            full = f"{load.tokens} tokens wait there, {bounds.tokens_max} may"
        else:
            return
        raise QueueFull(
            f"your queue in the {first.lane} lane is full: {full}",
            retry_after_ms=retry_after_ms,
            hint="retry later or send less at once",
        )

    def expires_ms(self, request: Request, now_ms: float) -> float:
        """When a request that is queued now leaves unserved: its lane's bound or its deadline."""
        by_lane = now_ms + self._bounds[request.lane].wait_s_max * 1_000
        return by_lane if request.deadline_ms is None else min(by_lane, request.deadline_ms)

    def add(self, waiting: Waiting) -> bool:
        """Queue it. True when its (lane, tenant, model) queue was empty before."""
        request = waiting.request
        key = (request.lane, request.tenant_id, request.model_id)
        queue = self._queues.get(key)
        was_empty = queue is None
        if queue is None:
            queue = self._queues[key] = TenantQueue()
            lanes = self._lanes_of.setdefault(request.model_id, {})
            lanes[request.lane] = lanes.get(request.lane, 0) + 1
        queue.order.push(request.id, expires_ms=waiting.expires_ms, arrival=waiting.arrival)
        queue.cost += waiting.cost
        queue.deadlines += request.deadline_ms is not None
        self._waiting[request.id] = waiting
        oldest = self._oldest.get(request.model_id)
        if oldest is not None and waiting.queued_ms < self._queued_ms(oldest):
            self._oldest[request.model_id] = request.id
        expiry_ms = self._expiry_ms(waiting)
        if expiry_ms is not None:
            heapq.heappush(self._expiry, (expiry_ms, request.id))
            if len(self._expiry) > 64 and len(self._expiry) > 4 * len(self._waiting):
                self._sweep_expiry()
        load = self._load[request.lane, request.tenant_id]
        load.requests += 1
        load.tokens += waiting.tokens
        self._demand[request.model_id] += waiting.cost
        return was_empty

    def head(self, lane: Lane, tenant_id: TenantId, model_id: ModelId) -> Waiting:
        """The next request of a queue that is not empty."""
        request_id = self._queues[lane, tenant_id, model_id].order.peek()
        assert request_id is not None, "an empty queue was left behind"
        return self._waiting[request_id]

    def remove(self, request_id: RequestId) -> tuple[Waiting, bool]:
        """Take a waiting request out. The flag is True when its queue is now empty."""
        waiting = self._waiting.pop(request_id)
        request = waiting.request
        load_key = (request.lane, request.tenant_id)
        load = self._load[load_key]
        load.requests -= 1
        load.tokens -= waiting.tokens
        if load.requests == 0:
            del self._load[load_key]
        key = (request.lane, request.tenant_id, request.model_id)
        queue = self._queues[key]
        queue.order.remove(request_id)
        queue.cost -= waiting.cost
        queue.deadlines -= request.deadline_ms is not None
        if self._oldest.get(request.model_id) == request_id:
            del self._oldest[request.model_id]
        self._demand[request.model_id] -= waiting.cost
        if queue.order:
            return waiting, False
        del self._queues[key]
        lanes = self._lanes_of[request.model_id]
        lanes[request.lane] -= 1
        if lanes[request.lane] == 0:
            del lanes[request.lane]
        if not lanes:
            del self._lanes_of[request.model_id]
            del self._demand[request.model_id]
        return waiting, True

    def _sweep_expiry(self) -> None:
        """Drop entries of requests that left their queue long before their time."""
        times = ((self._expiry_ms(w), request_id) for request_id, w in self._waiting.items())
        self._expiry = [(at_ms, request_id) for at_ms, request_id in times if at_ms is not None]
        heapq.heapify(self._expiry)

    def pop_expired(self, now_ms: float) -> RequestId | None:
        """A request whose time is over, still in its queue; None when there is none."""
        while self._expiry and self._expiry[0][0] <= now_ms:
            expires_ms, request_id = heapq.heappop(self._expiry)
            waiting = self._waiting.get(request_id)
            if waiting is not None and self._expiry_ms(waiting) == expires_ms:
                return request_id
        return None

    @staticmethod
    def _expiry_ms(waiting: Waiting) -> float | None:
        return waiting.request.deadline_ms if waiting.has_run else waiting.expires_ms

    def lanes_waiting(self, model_id: ModelId) -> Collection[Lane]:
        """Lanes in which something waits for this model, as it is now."""
        return self._lanes_of.get(model_id, ())

    def demand(self) -> dict[ModelId, float]:
        """Estimated token cost that waits, a model."""
        return dict(self._demand)

    def oldest_wait_ms(self, model_id: ModelId, now_ms: float) -> float:
        """How long the request that waits longest for this model has waited.

        It is looked for (O(n)) only when the one that was has left; of a model that is not served
        yet, and for those it is asked, hardly any leaves.
        """
        oldest = self._oldest.get(model_id)
        if oldest is None:
            ids = [waiting.request.id for waiting in self.of_model(model_id)]
            if not ids:
                return 0.0
            oldest = self._oldest[model_id] = min(ids, key=self._queued_ms)
        return now_ms - self._queued_ms(oldest)

    def lines(self) -> Iterator[tuple[QueueKey, int, float, float]]:
        """Each queue: requests, their cost, and since when the one that waits longest waits."""
        for key, queue in self._queues.items():
            ids = queue.order.ids() if queue.deadlines else itertools.islice(queue.order.ids(), 1)
            yield key, len(queue.order), queue.cost, min(map(self._queued_ms, ids))

    def loads(self) -> dict[tuple[Lane, TenantId], int]:
        """Waiting requests a lane and tenant."""
        return {key: load.requests for key, load in self._load.items()}

    def counts(self) -> Counter[tuple[Lane, ModelId]]:
        """Waiting requests a lane and model (O(n): for metrics)."""
        return Counter((w.request.lane, w.request.model_id) for w in self._waiting.values())

    def of_model(self, model_id: ModelId) -> list[Waiting]:
        """Everything that waits for one model (O(n): for failures and reports)."""
        return [w for w in self._waiting.values() if w.request.model_id == model_id]

    def find(self, request_id: RequestId) -> Waiting | None:
        return self._waiting.get(request_id)

    def position(self, request_id: RequestId) -> int:
        """Requests of the same queue that go first."""
        request = self._waiting[request_id].request
        key = (request.lane, request.tenant_id, request.model_id)
        return self._queues[key].order.position(request_id)

    def _queued_ms(self, request_id: RequestId) -> float:
        return self._waiting[request_id].queued_ms
