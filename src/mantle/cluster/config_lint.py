"""What is valid and yet will not do what it says? Warnings, each with its key and its remedy.

Errors are `config_checks`; here stands what starts and then disappoints: a lower lane that beats a
higher one, floors and reservations that do not fit together, waits that can not be met.

**Longest wait.** A request of tenant t at the end of its own full queue in lane L waits at most

    need_s = 10 + Q / (S × g × (1 − R) × w/W),  or wait_s_max, when it is dropped: the smaller one

Q: tokens_max of its queue. S: the slower of the model's two measured speeds. g: what the lane is
sure of, its floor; for Priority what all floors leave. R: the reserved share of the model. w/W: the
tenant's weight among all tenants that may use lane and model, as if all of them waited. 10 s is the
window over which floors are kept. The largest need_s in Flex is the published longest wait.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mantle.cluster.capacity import (
    Speed,
    oversold,
    reservations_of,
    reserved_models,
    unmeasured,
)
from mantle.cluster.config_model import Config, SchedulerConfig
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.limits import QUEUE_PING_S
from mantle.core.tenant import Tenant
from mantle.gateway.parts import GatewaySettings

FLOOR_WINDOW_S = 10.0
SHARED_LANES = (Lane.PRIORITY, Lane.STANDARD, Lane.FLEX)


@dataclass(frozen=True, slots=True)
class Finding:
    """One warning."""

    key: str
    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.fault}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class LongestWait:
    """What the fullest queue of one lane may have to wait, and after how long it is dropped."""

    lane: Lane
    tenant_id: TenantId
    model_id: ModelId
    tokens_max: int
    need_s: float
    drop_s: float

    @property
    def bound_s(self) -> float:
        """The published longest wait."""
        return min(self.need_s, self.drop_s)


def findings_of(
    config: Config, tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed]
) -> list[Finding]:
    """Everything doubtful about a valid config, with the tenants in force and measured speeds."""
    return [
        *_gateway_findings(config.gateway),
        *_floor_findings(config.scheduler),
        *_wait_order_findings(config.scheduler),
        *_tenant_findings(tenants),
        *_reservation_findings(config.scheduler, tenants, speeds),
        *_wait_findings(config.scheduler, tenants, speeds),
    ]


def longest_waits(
    scheduler: SchedulerConfig, tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed]
) -> list[LongestWait]:
    """The longest wait of each shared lane, for the tenant and measured model where it is worst."""
    waits = []
    for lane in SHARED_LANES:
        found = list(_waits_in(lane, scheduler, tenants, speeds))
        if found:
            waits.append(max(found, key=lambda wait: wait.need_s))
    return waits


def sure_share(lane: Lane, floors: Mapping[Lane, float]) -> float:
    """The share of what is not reserved that a lane gets when all lanes wait."""
    if lane is Lane.PRIORITY:
        return 1 - sum(share for other, share in floors.items() if other in SHARED_LANES[1:])
    return floors.get(lane, 0.0)


# --- streams ------------------------------------------------------------------------------------
def _gateway_findings(gateway: GatewaySettings) -> Iterator[Finding]:
    if gateway.queue_ping_s > max(gateway.ping_s, QUEUE_PING_S):
        yield Finding(
            "gateway.queue_ping_s",
            f"is {gateway.queue_ping_s:g}, but no stream is silent for longer than ping_s, "
            f"{gateway.ping_s:g}",
            f"keep it at or below {gateway.ping_s:g}",
        )


# --- lanes --------------------------------------------------------------------------------------
def _floor_findings(scheduler: SchedulerConfig) -> Iterator[Finding]:
    floors = scheduler.floors()
    if Lane.RESERVED in floors:
        yield Finding(
            "scheduler.lanes.reserved.floor",
            "has no effect: Reserved goes first while its tenants keep to what they bought",
            "remove it",
        )
    for lane in SHARED_LANES[1:]:
        if not floors.get(lane):
            yield Finding(
                f"scheduler.lanes.{lane}.floor",
                "is 0, so the lanes above can keep this one waiting until its requests are dropped",
                "give it a floor",
            )
    for upper, lower in itertools.pairwise(SHARED_LANES):
        sure, lower_floor = sure_share(upper, floors), floors.get(lower, 0.0)
        if lower_floor > sure > 0:
            yield Finding(
                f"scheduler.lanes.{lower}.floor",
                f"gives {lower} {lower_floor:.0%} while all lanes wait, and {upper} above it only "
                f"{sure:.0%}",
                f"keep it at or below {sure:.0%}",
            )


def _wait_order_findings(scheduler: SchedulerConfig) -> Iterator[Finding]:
    bounds = scheduler.bounds()
    for upper, lower in itertools.pairwise(SHARED_LANES):
        if bounds[lower].wait_s_max < bounds[upper].wait_s_max:
            yield Finding(
                f"scheduler.lanes.{lower}.wait_s_max",
                f"drops {lower} after {bounds[lower].wait_s_max:g} s, sooner than {upper} "
                f"({bounds[upper].wait_s_max:g} s), which is also served first",
                f"make it at least {bounds[upper].wait_s_max:g}",
            )


# --- tenants ------------------------------------------------------------------------------------
def _tenant_findings(tenants: Sequence[Tenant]) -> Iterator[Finding]:
    for tenant in tenants:
        key = f"tenant '{tenant.id}'"
        yield from _weight_findings(key, tenant, tenants)
        if tenant.reservations and tenant.lanes == {Lane.PRIORITY}:
            yield Finding(
                f"{key}.lanes",
                "have only priority, so all that goes beyond its reservation outranks the "
                "Standard requests of others",
                "let it use standard",
            )
        for bought in tenant.reservations:
            if not tenant.may_use(bought.model_id):
                yield Finding(
                    f"{key}.reservations",
                    f"reserve '{bought.model_id}', which its models do not name",
                    "add the model or end the reservation",
                )
            quota = tenant.quota(bought.model_id)
            for name in ("input_tokens_per_min", "output_tokens_per_min"):
                limit, rate = getattr(quota, name, None), getattr(bought, name)
                if limit is not None and limit < rate:
                    yield Finding(
                        f"{key}.quotas.{name}",
                        f"allow {limit} of '{bought.model_id}', less than the {rate} it reserved",
                        f"make it at least {rate}",
                    )


def _weight_findings(key: str, tenant: Tenant, tenants: Sequence[Tenant]) -> Iterator[Finding]:
    """A weight counts within a lane: a heavy tenant below a light one is behind it all the same."""
    top = min(tenant.lanes, key=lambda lane: lane.rank)
    above = [
        other
        for other in tenants
        if other.weight < tenant.weight and any(lane.rank < top.rank for lane in other.lanes)
    ]
    if tenant.weight > 1 and above:
        yield Finding(
            f"{key}.weight",
            f"is {tenant.weight:g}, but counts only within {top} and below; '{above[0].id}' "
            f"(weight {above[0].weight:g}) may use a lane above and goes first there",
            "let it use the higher lane, or take that lane from the other",
        )


# --- reservations -------------------------------------------------------------------------------
def _reservation_findings(
    scheduler: SchedulerConfig, tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed]
) -> Iterator[Finding]:
    for tenant in tenants:
        for warning in unmeasured(tenant, speeds):
            yield Finding(f"tenant '{tenant.id}'.reservations", warning, "or run load on it first")
    promised = sum(share for lane, share in scheduler.floors().items() if lane in SHARED_LANES)
    total = 0.0
    for model_id in reserved_models(tenants):
        problem = oversold(tenants, speeds, model_id)
        if problem is not None:
            yield Finding("reservations", problem, "reserve less")
        share = _reserved_share(tenants, speeds, model_id)
        total += share
        if problem is None and share + promised > 1:
            yield Finding(
                "scheduler.lanes",
                f"the floors add up to {promised:.0%}, and {share:.0%} of '{model_id}' is "
                f"reserved; while Reserved uses it all, floors share the other {1 - share:.0%}",
                "lower the floors or reserve less",
            )
    if total > 1 and len(reserved_models(tenants)) > 1:
        yield Finding(
            "reservations",
            f"of all models together need {total:.0%} of an engine; models in one worker share it",
            "reserve less, or do not keep these models in one worker",
        )


def _reserved_share(
    tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed], model_id: ModelId
) -> float:
    speed = speeds.get(model_id, Speed())
    return speed.share_of(reservations_of(tenants, model_id)) if speed.is_measured else 0.0


# --- waits --------------------------------------------------------------------------------------
def _wait_findings(
    scheduler: SchedulerConfig, tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed]
) -> Iterator[Finding]:
    for wait in longest_waits(scheduler, tenants, speeds):
        if wait.need_s <= wait.drop_s:
            continue
        served_s = max(0.0, wait.drop_s - FLOOR_WINDOW_S)
        tokens = int(wait.tokens_max * served_s / (wait.need_s - FLOOR_WINDOW_S))
        yield Finding(
            f"scheduler.lanes.{wait.lane}.tokens_max",
            f"a full queue ({wait.tokens_max} tokens) of tenant '{wait.tenant_id}' on "
            f"'{wait.model_id}' may need {wait.need_s:.0f} s, but its requests are dropped after "
            f"{wait.drop_s:g} s",
            f"lower it to {max(1, tokens)}, for this tenant or for all, or raise the lane's "
            "floor or wait_s_max",
        )


def _waits_in(
    lane: Lane,
    scheduler: SchedulerConfig,
    tenants: Sequence[Tenant],
    speeds: Mapping[ModelId, Speed],
) -> Iterator[LongestWait]:
    sure = sure_share(lane, scheduler.floors())
    for model_id, speed in speeds.items():
        users = [t for t in tenants if lane in t.lanes and t.may_use(model_id)]
        rest = 1 - _reserved_share(tenants, speeds, model_id)
        rate = min(speed.prefill_tokens_per_s, speed.decode_tokens_per_s) * sure * rest
        if rate <= 0:
            continue  # not measured, or said elsewhere: no floor, oversold
        weights = sum(tenant.weight for tenant in users)
        for tenant in users:
            bounds = scheduler.bounds()[lane].but(tenant.queue_bound(lane))
            need_s = FLOOR_WINDOW_S + bounds.tokens_max * weights / (rate * tenant.weight)
            yield LongestWait(
                lane, tenant.id, model_id, bounds.tokens_max, need_s, bounds.wait_s_max
            )
