"""Builders of requests and replicas for tests: only what a test is about needs to be said."""

import itertools

from mantle.core.ids import ModelId, ProjectId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.core.sampling import SamplingParams
from mantle.scheduler.capacity import ReplicaCapacity

_numbers = itertools.count(1)

M = ModelId("m")
N = ModelId("n")


def a_request(
    tenant: str = "t",
    *,
    lane: Lane = Lane.STANDARD,
    model: ModelId = M,
    prompt_tokens: int = 10,
    max_output_tokens: int = 10,
    accepted_ms: float = 0.0,
    deadline_ms: float | None = None,
    sampling: SamplingParams | None = None,
) -> Request:
    """A request with a fresh id and a prompt of so many tokens."""
    return Request(
        id=RequestId(f"r{next(_numbers)}"),
        tenant_id=TenantId(tenant),
        project_id=ProjectId("default"),
        model_id=model,
        lane=lane,
        prompt_tokens=tuple(range(prompt_tokens)),
        sampling=sampling or SamplingParams(),
        max_output_tokens=max_output_tokens,
        accepted_ms=accepted_ms,
        deadline_ms=deadline_ms,
    )


def a_replica(
    name: str = "m#1",
    *,
    model: ModelId = M,
    slots: int = 1,
    kv_tokens: int = 100_000,
    window_tokens: int = 1_000,
) -> ReplicaCapacity:
    """An empty replica with so many slots."""
    return ReplicaCapacity(ReplicaId(name), model, slots, kv_tokens, window_tokens)
