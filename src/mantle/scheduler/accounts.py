"""What was each lane and each tenant served? All books are kept here, so that they agree.

Invariant: whatever an attempt is charged goes at once to its tenant's counter, its lane's debt and
the certificate; when it ends, what was estimated but not produced is taken back. The ledger, for
reports, has only what was produced.
"""

from collections.abc import Callable, Mapping

from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.scheduler.certificate import Certificate
from mantle.scheduler.cost import CostWeights
from mantle.scheduler.fairness.port import Fairness
from mantle.scheduler.ledger import Ledger
from mantle.scheduler.queues import Queues
from mantle.scheduler.running import Running
from mantle.scheduler.turns import Turns


class Accounts:
    """The books of all models."""

    def __init__(
        self,
        cost: CostWeights,
        floors: Mapping[Lane, float],
        weight_of: Callable[[TenantId], float],
        fairness_of: Callable[[Lane], Fairness],
        queues: Queues,
    ) -> None:
        self._cost = cost
        self._floors = floors
        self.weight_of = weight_of
        self.ledger = Ledger()
        self._fairness_of = fairness_of
        self._queues = queues
        self._turns: dict[ModelId, Turns] = {}

    def turns_of(self, model_id: ModelId) -> Turns:
        """The accounts of one model."""
        turns = self._turns.get(model_id)
        if turns is None:
            turns = self._turns[model_id] = Turns.fresh(self._floors, self._fairness_of)
        return turns

    def charge(self, running: Running, cost: float, now_ms: float) -> None:
        """`cost` was given to the attempt, by estimate; negative: an estimate is taken back."""
        request = running.request
        running.charged_cost += cost
        turns = self.turns_of(request.model_id)
        turns.fairness[request.lane].charge(request.tenant_id, cost)
        backlogged = self._queues.lanes_waiting(request.model_id)
        turns.lane_order.charge(request.lane, cost, backlogged=backlogged, now_ms=now_ms)
        weighted = cost / self.weight_of(request.tenant_id)
        turns.certificates[request.lane].charged(request.tenant_id, weighted, now_ms)

    def landed(self, running: Running, now_ms: float) -> None:
        """The attempt has left its slot: what it did not produce is not charged."""
        unproduced = running.estimated_output_tokens - running.produced_tokens
        if unproduced > 0:
            self.charge(running, -self._cost.of_output(unproduced), now_ms)
        request = running.request
        turns = self.turns_of(request.model_id)
        never_produced = running.charged_cost - running.produced_cost  # it ended before its prompt
        turns.fairness[request.lane].produced(request.tenant_id, never_produced)
        weighted = running.charged_cost / self.weight_of(request.tenant_id)
        certificate = turns.certificates[request.lane]
        certificate.landed(request.tenant_id, weighted, now_ms)
        turns.fairness[request.lane].forget_idle(certificate.is_in_flight)

    def charge_late(self, running: Running, count: int, cached_tokens: int, now_ms: float) -> None:
        """Charge output that came after the attempt had landed, and take cached input back."""
        cost = self._cost.of_output(count)
        if not running.waiting.resume_from:
            cost -= self._cost.of_input(cached_tokens)
        self.charge(running, cost, now_ms)
        request = running.request
        weighted = cost / self.weight_of(request.tenant_id)
        certificates = self.turns_of(request.model_id).certificates
        certificates[request.lane].landed(request.tenant_id, weighted, now_ms)

    def note_service(self, running: Running, count: int, cached_tokens: int, now_ms: float) -> None:
        """Tell tenant and lane what was produced, the prompt with its first token."""
        cost = self._cost.of_output(count)
        if not (running.produced_tokens or running.waiting.has_run):
            cost += self._cost.of_input(len(running.request.prompt_tokens) - cached_tokens)
        running.produced_cost += cost
        request = running.request
        turns = self.turns_of(request.model_id)
        turns.service.served(request.lane, cost, now_ms)
        turns.fairness[request.lane].produced(request.tenant_id, cost)
        self.ledger.served(request.lane, request.tenant_id, cost, now_ms)

    # --- answers --------------------------------------------------------------------------------
    def is_behind_floor(self, model_id: ModelId, lane: Lane, now_ms: float) -> bool:
        """True when the lane really gets less than its floor of this model just now."""
        return self.turns_of(model_id).is_behind_floor(lane, now_ms)

    def certificates(self) -> dict[tuple[Lane, ModelId], Certificate]:
        """The fairness certificate of each lane on each model."""
        return {
            (lane, model_id): certificate
            for model_id, turns in self._turns.items()
            for lane, certificate in turns.certificates.items()
        }
