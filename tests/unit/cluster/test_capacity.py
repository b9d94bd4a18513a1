"""Is a model's speed measured as it is, and is no more sold than that?"""

import pytest

from mantle.cluster.capacity import Speed, SpeedMeter, oversold, refuse_oversold, unmeasured
from mantle.core.errors import InvalidRequest
from mantle.core.ids import ModelId, TenantId
from mantle.core.tenant import Reservation, Tenant

M = ModelId("m")
SPEEDS = {M: Speed(100.0, 10.0)}  # 6,000 input or 600 output tokens a minute


def buyer(name, inputs, outputs, **fields):
    return Tenant(TenantId(name), reservations=(Reservation(M, inputs, outputs),), **fields)


def test_speed_needs_ten_seconds_of_such_steps():
    meter = SpeedMeter()
    for _ in range(99):
        meter.engine_step(M, 100.0, 50, 3)
    assert meter.speeds == {}
    meter.engine_step(M, 100.0, 50, 3)
    assert meter.speeds == {M: Speed(500.0, 0.0)}
    assert not meter.speeds[M].is_measured


def test_prefill_and_decode_are_measured_apart_and_the_best_stays():
    meter = SpeedMeter()
    for decode_tokens in (2, 16, 4):
        for _ in range(200):
            meter.engine_step(M, 50.0, 0, decode_tokens)
            meter.engine_step(M, 50.0, 30, decode_tokens)
    assert meter.speeds == {M: Speed(600.0, 320.0)}


def test_interrupted_step_is_lost_time():
    meter = SpeedMeter()
    meter.engine_step(M, 5_000.0, 0, 0)
    meter.engine_step(M, 5_000.0, 0, 100)
    assert meter.speeds[M].decode_tokens_per_s == 10.0


def test_input_and_output_share_one_engine():
    assert oversold([buyer("a", 3_000, 300)], SPEEDS, M) is None
    both = [buyer("a", 3_000, 300), buyer("b", 600, 0)]
    assert oversold(both, SPEEDS, M) == (
        "reservations of 'm' add up to 3600 input + 300 output tokens per minute; measured were "
        "6000 input or 600 output tokens per minute, so they need 110% of the model"
    )


def test_what_was_not_measured_is_not_refused_but_named():
    huge = buyer("a", 10**9, 10**9)
    assert oversold([huge], {M: Speed(100.0, 0.0)}, M) is None
    assert "not measured yet" in unmeasured(huge, {})[0]
    assert unmeasured(huge, SPEEDS) == []


def test_only_what_grows_is_refused():
    others = [buyer("b", 6_000, 300)]  # oversold already
    before = buyer("a", 100, 100)
    refuse_oversold(before, buyer("a", 100, 100, weight=3.0), others, SPEEDS)
    refuse_oversold(before, buyer("a", 50, 100), others, SPEEDS)
    with pytest.raises(InvalidRequest, match="add up to 6100 input"):
        refuse_oversold(before, buyer("a", 100, 101), others, SPEEDS)
    with pytest.raises(InvalidRequest):
        refuse_oversold(None, before, others, SPEEDS)
