"""Do the values of a config make sense together? What types can not say."""

import math
import os
import re
from collections.abc import Sequence

from mantle.cluster.config_model import Config, JournalConfig, SchedulerConfig, TenantConfig
from mantle.core.limits import (
    BODY_BYTES_MAX,
    BODY_IDLE_S_MAX,
    QUEUE_PING_S_MIN,
    SSE_PING_S,
)
from mantle.core.tenant import ANY_MODEL, QueueBound, Quota, Reservation, Tenant
from mantle.engine.port import EngineSettings


def problems_of(config: Config) -> list[str]:
    """Everything wrong with the values, one line a problem: the key, the fault, the remedy."""
    problems = [
        *_engine_problems("engine", config.engine),
        *(p for m, e in config.engines.items() for p in _engine_problems(f"engines.{m}", e)),
        *_scheduler_problems(config.scheduler),
        *_tenant_problems(config.tenants),
        *_journal_problems(config.journal),
    ]
    if not 0 <= config.server.port <= 65_535:
        problems.append("server.port: must be 0…65535 (0 picks a free one)")
    if not 1 <= config.gateway.body_bytes_max <= BODY_BYTES_MAX:
        problems.append(f"gateway.body_bytes_max: must be 1…{BODY_BYTES_MAX}")
    if not 0 < config.gateway.ping_s <= SSE_PING_S:
        problems.append(f"gateway.ping_s: must be above 0 and at most {SSE_PING_S:g}")
    if not QUEUE_PING_S_MIN <= config.gateway.queue_ping_s <= SSE_PING_S:
        problems.append(f"gateway.queue_ping_s: must be {QUEUE_PING_S_MIN:g}…{SSE_PING_S:g}")
    if not 0 < config.gateway.body_idle_s <= BODY_IDLE_S_MAX:
        problems.append(f"gateway.body_idle_s: must be above 0 and at most {BODY_IDLE_S_MAX:g}")
    if not 0 <= config.gateway.reattach_grace_s <= 3_600:
        problems.append("gateway.reattach_grace_s: must be 0…3600")
    if not 0 <= config.gateway.stream_hold_s <= SSE_PING_S:
        problems.append(f"gateway.stream_hold_s: must be 0…{SSE_PING_S:g}")
    if config.observe.log_level not in ("debug", "info", "warning", "error"):
        problems.append("observe.log_level: must be debug, info, warning or error")
    return problems


def _engine_problems(key: str, engine: EngineSettings) -> list[str]:
    problems = []
    if not 1 <= engine.slots <= 256:
        problems.append(f"{key}.slots: must be 1…256 (llama.cpp has at most 256 sequences)")
    if engine.window_tokens < 0:
        problems.append(f"{key}.window_tokens: must be 0 (the model's own) or more")
    if engine.threads < 0 or engine.threads > 4 * (os.cpu_count() or 1):
        problems.append(f"{key}.threads: must be 0 (all cores) up to four times the cores")
    if engine.batch_tokens < engine.slots:
        problems.append(f"{key}.batch_tokens: must be at least {key}.slots ({engine.slots})")
    if engine.prefill_chunk_tokens < 1:
        problems.append(f"{key}.prefill_chunk_tokens: must be at least 1")
    if engine.kv_layout not in ("streams", "unified"):
        problems.append(f"{key}.kv_layout: must be streams or unified")
    if engine.numerics not in ("fast", "exact"):
        problems.append(f"{key}.numerics: must be fast or exact")
    return problems


def _scheduler_problems(scheduler: SchedulerConfig) -> list[str]:
    problems = []
    floors = scheduler.floors()
    if any(not 0 <= share < 1 for share in floors.values()) or sum(floors.values()) >= 1:
        total = sum(floors.values())
        problems.append(f"scheduler.lanes: the floors add up to {total:.2f}; keep them below 1")
    for lane, lane_config in scheduler.lanes.items():
        problems += [
            f"scheduler.lanes.{lane}.{name}: must be above 0"
            for name in ("requests_max", "tokens_max", "wait_s_max")
            if (value := getattr(lane_config, name)) is not None and value <= 0
        ]
    if scheduler.cost.input_token < 0 or scheduler.cost.output_token <= 0:
        problems.append("scheduler.cost: input_token must be 0 or more, output_token above 0")
    return problems


def _journal_problems(journal: JournalConfig) -> list[str]:
    problems = []
    if not journal.keep_s > 0:
        problems.append("journal.keep_s: must be above 0")
    if journal.url and journal.store != "postgres":
        problems.append("journal.url: is for `store: postgres` only; remove one of the two")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", journal.schema):
        problems.append("journal.schema: use 1…63 lower-case letters, digits or '_'")
    return problems


def _tenant_problems(tenants: list[TenantConfig]) -> list[str]:
    problems = []
    seen: set[str] = set()
    for index, tenant in enumerate(tenants):
        key = f"tenants[{index}]"
        if tenant.id in seen:
            problems.append(f"{key}.id: '{tenant.id}' is there twice; give each its own id")
        seen.add(tenant.id)
        problems += [
            f"{key}.api_key_sha256[{n}]: must be 64 hexadecimal digits; "
            "`mantle tenants hash` makes one from a key"
            for n, key_hash in enumerate(tenant.api_key_sha256)
            if not re.fullmatch(r"[0-9a-f]{64}", key_hash)
        ]
        problems += [f"{key}.{problem}" for problem in problems_of_tenant(tenant.as_tenant())]
    return problems


def problems_of_tenant(tenant: Tenant) -> list[str]:
    """Everything wrong with a tenant's values: the key, the fault, the remedy."""
    problems = []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", tenant.id):
        problems.append("id: use 1…63 letters, digits, '.', '_' or '-'")
    if not (tenant.weight > 0 and math.isfinite(tenant.weight)):
        problems.append("weight: must be above 0")
    if not tenant.lanes:
        problems.append("lanes: name at least one lane, or leave it out for all")
    problems += _limit_problems("quotas", tenant.quotas, _QUOTA_LIMITS)
    problems += _limit_problems("reservations", tenant.reservations, _QUOTA_LIMITS[:2])
    problems += [
        f"quotas[{n}]: give at least one of {', '.join(_QUOTA_LIMITS)}"
        for n, quota in enumerate(tenant.quotas)
        if all(getattr(quota, name) is None for name in _QUOTA_LIMITS)
    ]
    problems += [
        f"reservations[{n}].model: must name a model"
        for n, bought in enumerate(tenant.reservations)
        if bought.model_id == ANY_MODEL
    ]
    return [*problems, *_queue_problems(tenant.queues)]


def _queue_problems(queues: Sequence[QueueBound]) -> list[str]:
    problems = []
    lanes = [bound.lane for bound in queues]
    for n, bound in enumerate(queues):
        if bound.lane in lanes[:n]:
            problems.append(f"queues[{n}].lane: '{bound.lane}' is there twice; keep one")
        if bound.requests_max is None and bound.tokens_max is None:
            problems.append(f"queues[{n}]: give at least one of requests_max, tokens_max")
        problems += [
            f"queues[{n}].{name}: must be 1…{_COUNT_MAX}"
            for name in ("requests_max", "tokens_max")
            if (value := getattr(bound, name)) is not None and not 1 <= value <= _COUNT_MAX
        ]
    return problems


_QUOTA_LIMITS = ("input_tokens_per_min", "output_tokens_per_min", "concurrent_max")


def _limit_problems(
    key: str, limits: Sequence[Quota | Reservation], names: tuple[str, ...]
) -> list[str]:
    problems = []
    seen: set[str] = set()
    for n, limit in enumerate(limits):
        model = limit.model_id
        if model in seen:
            problems.append(f"{key}[{n}].model: '{model}' is there twice; keep one")
        seen.add(model)
        if not 0 < len(model) < 256:
            problems.append(f"{key}[{n}].model: use 1…255 characters")
        problems += [
            f"{key}[{n}].{name}: must be 1…{_COUNT_MAX}"
            for name in names
            if (value := getattr(limit, name)) is not None and not 1 <= value <= _COUNT_MAX
        ]
    return problems


_COUNT_MAX = 2**53
