"""May this ask enter? Tenant, model, window, lane and quota are checked; then it is queued.

Invariant: everything is decided before anything is stored: an ask enters whole, with all its
branches, or is rejected whole. What it holds of a quota and of bought capacity is settled once by
its generations, or here when the scheduler refuses it.
"""

import dataclasses
import hashlib
import itertools

from mantle.admission.directory import Directory
from mantle.admission.lane_choice import choose_lane, wants_reserved
from mantle.admission.metered import Held, MeteredGeneration
from mantle.admission.port import Ask, RateLimits
from mantle.admission.quota import Quotas
from mantle.admission.reservation import ReservedHold, ReservedRates
from mantle.core.clock import Clock
from mantle.core.errors import MantleError, PermissionDenied, PromptTooLong, UnknownModel
from mantle.core.ids import ModelId, RequestId, new_id
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.core.sampling import SamplingParams
from mantle.core.tenant import Principal
from mantle.pool.port import CataloguePort, ModelState, PoolPort
from mantle.scheduler.port import Generation, SchedulerPort


class Admission:
    """Implements `AdmissionPort`. The directory may be replaced while requests run."""

    def __init__(
        self,
        *,
        directory: Directory,
        catalogue: CataloguePort,
        pool: PoolPort,
        scheduler: SchedulerPort,
        clock: Clock,
        keeps_content: bool = True,
    ) -> None:
        self.directory = directory
        self._catalogue = catalogue
        self._pool = pool
        self._scheduler = scheduler
        self._clock = clock
        self._keeps_content = keeps_content
        self._quotas = Quotas(clock)
        self._reserved = ReservedRates(clock)

    def authenticate(self, api_key: str | None) -> Principal:
        """See `AdmissionPort`."""
        return self.directory.authenticate(api_key)

    def check_model(self, principal: Principal, model_id: ModelId) -> None:
        """See `AdmissionPort`."""
        entry = self._catalogue.find(model_id)
        if entry is None or entry.state is ModelState.ARCHIVED:
            raise UnknownModel(
                f"the model '{_shown(model_id)}' does not exist",
                hint="GET /v1/models lists the models",
            )
        if not principal.tenant.may_use(entry.id):
            raise PermissionDenied(f"this key may not use the model '{entry.id}'")

    def enter(self, principal: Principal, ask: Ask) -> list[Generation]:
        """See `AdmissionPort`."""
        self.check_model(principal, ask.model_id)
        entry = self._catalogue.find(ask.model_id)
        assert entry is not None, "check_model has seen it"
        lane = choose_lane(ask.service_tier, tenant=principal.tenant)
        max_output_tokens = self._output_room(ask, entry.id)
        holds = self._quotas.reserve(
            principal.tenant,
            entry.id,
            input_tokens=len(ask.prompt_tokens),
            max_output_tokens=max_output_tokens,
            branches=ask.n,
        )
        if holds:
            max_output_tokens = holds[0].output_tokens
        reserved = self._take_reserved(principal, ask, entry.id, max_output_tokens)
        if reserved:
            lane = Lane.RESERVED
        now_ms = self._clock.now_ms()
        requests = [
            Request(
                id=RequestId(new_id("gen_")),
                tenant_id=principal.tenant.id,
                project_id=principal.project_id,
                model_id=entry.id,
                lane=lane,
                prompt_tokens=ask.prompt_tokens,
                sampling=_for_branch(ask.sampling, branch),
                max_output_tokens=max_output_tokens,
                accepted_ms=now_ms,
                deadline_ms=ask.deadline_ms,
                branch_index=branch,
                stop_strings=ask.stop_strings,
                prompt_logprobs=ask.prompt_logprobs,
                ignore_eos=ask.ignore_eos,
                grammar=ask.grammar,
                keeps_content=self._keeps_content,
            )
            for branch in range(ask.n)
        ]
        held: list[tuple[Held, ...]] = [
            tuple(parts[branch] for parts in (holds, reserved) if parts) for branch in range(ask.n)
        ]
        return self._submit(requests, held)

    def limits(self, principal: Principal, model_id: ModelId) -> RateLimits | None:
        """See `AdmissionPort`."""
        return self._quotas.limits(principal.tenant, model_id)

    def _take_reserved(
        self, principal: Principal, ask: Ask, model_id: ModelId, max_output_tokens: int
    ) -> list[ReservedHold]:
        """What the ask takes of bought capacity; empty: it queues with all others."""
        if not wants_reserved(ask.service_tier):
            return []
        taken = self._reserved.take(
            principal.tenant,
            model_id,
            input_tokens=len(ask.prompt_tokens),
            max_output_tokens=max_output_tokens,
            branches=ask.n,
        )
        return taken or []

    def _submit(self, requests: list[Request], held: list[tuple[Held, ...]]) -> list[Generation]:
        """Queue them; from then on each generation settles its own holds."""
        try:
            generations = self._scheduler.submit(requests)
        except MantleError:
            for hold in itertools.chain.from_iterable(held):
                hold.settle(None)
            raise
        if not held[0]:
            return generations
        return [MeteredGeneration(g, *h) for g, h in zip(generations, held, strict=True)]

    def _output_room(self, ask: Ask, model_id: ModelId) -> int:
        """Output tokens this ask may get: what it wants, as far as the window goes."""
        window_tokens = self._pool.window_tokens(model_id)
        prompt_tokens = len(ask.prompt_tokens)
        if prompt_tokens >= window_tokens:
            raise PromptTooLong(
                prompt_tokens=prompt_tokens,
                window_tokens=window_tokens - 1,
                param=ask.prompt_param,
            )
        room = window_tokens - prompt_tokens
        return room if ask.max_output_tokens is None else min(room, ask.max_output_tokens)


def _for_branch(sampling: SamplingParams, branch: int) -> SamplingParams:
    """Branch 0 keeps the client's seed; the others get seeds derived from it."""
    if branch == 0:
        return sampling
    digest = hashlib.blake2b(f"{sampling.seed}/{branch}".encode(), digest_size=8).digest()
    return dataclasses.replace(sampling, seed=int.from_bytes(digest, "big"))


def _shown(name: str) -> str:
    """A client's model name, fit for an error message."""
    return "".join(c for c in name[:100] if c.isprintable())
