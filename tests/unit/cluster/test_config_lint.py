"""Does each promise that can not be kept get a warning with key and remedy, and nothing else?"""

import pytest

from mantle.cluster.capacity import Speed
from mantle.cluster.config_lint import findings_of, longest_waits
from mantle.cluster.config_model import Config, LaneConfig, SchedulerConfig
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Quota, Reservation, Tenant
from mantle.gateway.parts import GatewaySettings

M = ModelId("m")
FAST = {M: Speed(1e9, 1e9)}


def tenant(name="a", **fields):
    return Tenant(TenantId(name), **fields)


def config(**lanes):
    return Config(scheduler=SchedulerConfig({Lane(k): v for k, v in lanes.items()}))


def found(config=None, *tenants, speeds=None):
    return [str(f) for f in findings_of(config or Config(), tenants, speeds or {})]


def test_defaults_are_fine():
    assert found() == []
    assert found(Config(), tenant(), speeds=FAST) == []


@pytest.mark.parametrize(
    ("lanes", "says"),
    [
        ({"flex": LaneConfig(floor=0.3)}, "scheduler.lanes.flex.floor: gives flex 30%"),
        ({"standard": LaneConfig(floor=0.6)}, "scheduler.lanes.standard.floor: gives standard 60%"),
        ({"flex": LaneConfig(floor=0.0)}, "scheduler.lanes.flex.floor: is 0"),
        ({"reserved": LaneConfig(floor=0.1)}, "scheduler.lanes.reserved.floor: has no effect"),
        ({"flex": LaneConfig(wait_s_max=60)}, "scheduler.lanes.flex.wait_s_max: drops flex"),
    ],
)
def test_lane_that_beats_the_one_above_is_named(lanes, says):
    (finding,) = found(config(**lanes))
    assert finding.startswith(says)
    assert ";" in finding


def test_queue_ping_that_never_comes_is_named():
    ignored = Config(gateway=GatewaySettings(ping_s=5, queue_ping_s=6))
    (finding,) = found(ignored)
    assert finding.startswith("gateway.queue_ping_s: is 6")
    assert found(Config(gateway=GatewaySettings(ping_s=1))) == []  # nobody asked for two seconds


def test_weight_that_counts_for_nothing_against_a_lane_above_is_named():
    heavy = tenant("heavy", weight=5.0, lanes=frozenset({Lane.FLEX}))
    (finding,) = found(Config(), heavy, tenant("light"))
    assert finding.startswith("tenant 'heavy'.weight: is 5")
    assert "'light'" in finding
    assert found(Config(), heavy) == []


def test_reservation_that_can_not_be_used_is_named():
    bought = (Reservation(M, 60, 60),)
    quota = (Quota(M, input_tokens_per_min=59),)
    limited = tenant(models=frozenset(), quotas=quota, reservations=bought)
    findings = found(Config(), limited, speeds=FAST)
    assert [f.partition(":")[0] for f in findings] == [
        "tenant 'a'.reservations",
        "tenant 'a'.quotas.input_tokens_per_min",
    ]


def test_overflow_into_priority_is_named():
    only = tenant(lanes=frozenset({Lane.PRIORITY}), reservations=(Reservation(M, 1, 1),))
    (finding,) = found(Config(), only, speeds=FAST)
    assert finding.startswith("tenant 'a'.lanes: have only priority")


def test_reservations_beyond_what_was_measured_and_unmeasured_ones_are_named():
    bought = tenant(reservations=(Reservation(M, 60, 60),))
    (finding,) = found(Config(), bought)
    assert "was not measured yet" in finding
    slow = {M: Speed(1.0, 1.0)}
    assert any("need 200% of the model" in f for f in found(Config(), bought, speeds=slow))


def test_floors_that_do_not_fit_beside_reservations_are_named():
    bought = tenant(reservations=(Reservation(M, 60, 60),))
    speeds = {M: Speed(2.0, 2.5)}  # 90 % sold
    findings = found(Config(), bought, speeds=speeds)
    assert any("floors share the other 10%" in f for f in findings)


def test_models_that_share_an_engine_are_added_up():
    other = ModelId("n")
    bought = tenant(reservations=(Reservation(M, 60, 60), Reservation(other, 60, 60)))
    speeds = {M: Speed(3.0, 3.0), other: Speed(3.0, 3.0)}
    assert any("need 133% of an engine" in f for f in found(Config(), bought, speeds=speeds))


# --- waits ---------------------------------------------------------------------------------------
def waits(config, *tenants, speeds):
    return {w.lane: w for w in longest_waits(config.scheduler, tenants, speeds)}


def test_longest_wait_follows_the_formula():
    speeds = {M: Speed(4_000.0, 1_000.0)}
    flex = {"flex": LaneConfig(tokens_max=10_000)}
    bought = tenant(
        "c", lanes=frozenset({Lane.STANDARD}), reservations=(Reservation(M, 1, 30_000),)
    )
    longest = waits(config(**flex), tenant("a"), tenant("b", weight=4.0), bought, speeds=speeds)
    share = 1 - (1 / 60 / 4_000 + 0.5)
    assert longest[Lane.FLEX].tenant_id == "a", "the lighter one waits longer"
    need_s = 10 + 10_000 / (1_000 * 0.05 * share * 1 / 5)
    assert longest[Lane.FLEX].need_s == pytest.approx(need_s)
    assert longest[Lane.FLEX].bound_s == longest[Lane.FLEX].need_s < 3_600
    assert longest[Lane.PRIORITY].bound_s == longest[Lane.PRIORITY].drop_s == 60
    assert longest[Lane.PRIORITY].need_s == pytest.approx(
        10 + 8_000_000 / (1_000 * 0.75 * share * 1 / 5)
    )


def test_wait_that_can_not_be_met_is_named_and_its_remedy_works():
    speeds = {M: Speed(1_000.0, 1_000.0)}
    flex_only = tenant(lanes=frozenset({Lane.FLEX}))
    (finding,) = found(Config(), flex_only, speeds=speeds)
    assert finding.startswith("scheduler.lanes.flex.tokens_max: a full queue (8000000 tokens)")
    tokens = int(finding.partition("lower it to ")[2].partition(",")[0])
    bound = QueueBound(Lane.FLEX, tokens_max=tokens)
    smaller = tenant(lanes=frozenset({Lane.FLEX}), queues=(bound,))
    assert found(Config(), smaller, speeds=speeds) == []
    assert waits(Config(), smaller, speeds=speeds)[Lane.FLEX].bound_s == pytest.approx(3_600, abs=1)
