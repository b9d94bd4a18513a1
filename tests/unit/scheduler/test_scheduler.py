"""Who runs next, and is every request somewhere, once?"""

import pytest

from mantle.core.epoch import Epoch
from mantle.core.errors import QueueFull
from mantle.core.ids import ReplicaId
from mantle.core.lane import Lane
from mantle.core.limits import ATTEMPTS_MAX
from mantle.scheduler.effects import Abort, Dispatch, Expire, Lose, Park
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules, default_bounds
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import M, N, a_replica, a_request
from tests.unit.scheduler.runs import charged, ready, run_order

R1 = ReplicaId("m#1")


def test_free_slot_is_given_at_once():
    scheduler = ready()
    request = a_request()
    assert scheduler.submit([request], 0.0) == [Dispatch(request.id, R1, Epoch(1))]


def test_request_waits_while_all_slots_are_taken_and_runs_when_one_is_free():
    scheduler = ready()
    first, second = a_request(), a_request()
    scheduler.submit([first], 0.0)
    assert scheduler.submit([second], 1.0) == []
    assert scheduler.released(first.id, 2.0) == [Dispatch(second.id, R1, Epoch(1))]


def test_higher_lane_goes_first():
    flex = a_request("a", lane=Lane.FLEX)
    standard = a_request("b", lane=Lane.STANDARD)
    priority = a_request("c", lane=Lane.PRIORITY)
    order = run_order(ready(), [flex, standard, priority])
    assert order[0] == priority.id
    assert set(order[1:]) == {flex.id, standard.id}


def test_lower_lane_is_not_starved_by_a_steady_higher_one():
    scheduler = ready()
    flex = [a_request("a", lane=Lane.FLEX) for _ in range(5)]
    priority = [a_request("b", lane=Lane.PRIORITY) for _ in range(100)]
    order = run_order(scheduler, [*flex, *priority])
    flex_ids = {r.id for r in flex}
    assert 1 <= sum(i in flex_ids for i in order[:60]) < 5


def test_burst_of_one_tenant_does_not_delay_another():
    noisy = [a_request("noisy", max_output_tokens=50) for _ in range(50)]
    quiet = a_request("quiet")
    order = run_order(ready(), [*noisy, quiet])
    assert order.index(quiet.id) <= 1


def test_tenants_share_by_token_cost_not_by_requests():
    long = [a_request("long", prompt_tokens=900, max_output_tokens=10) for _ in range(20)]
    short = [a_request("short", prompt_tokens=10, max_output_tokens=10) for _ in range(200)]
    order = run_order(ready(), [*long, *short])
    short_ids = {r.id for r in short}
    done_when_long_had_five = order[: order.index(long[5].id)]
    assert sum(i in short_ids for i in done_when_long_had_five) > 50


def test_weight_gives_a_larger_share():
    scheduler = Scheduler(weight_of=lambda tenant: 3.0 if tenant == "heavy" else 1.0)
    scheduler.replica_ready(a_replica(), 0.0)
    heavy = [a_request("heavy") for _ in range(40)]
    light = [a_request("light") for _ in range(40)]
    order = run_order(scheduler, [*light, *heavy])[:40]
    heavy_ids = {r.id for r in heavy}
    assert 28 <= sum(i in heavy_ids for i in order) <= 32


def test_one_tenants_requests_run_in_order_of_arrival():
    mine = [a_request() for _ in range(5)]
    assert run_order(ready(), mine) == [r.id for r in mine]


def test_a_near_deadline_goes_first_within_a_tenants_queue():
    patient, urgent = a_request(), a_request(deadline_ms=1_000.0)
    assert run_order(ready(), [patient, urgent])[0] == urgent.id


def test_a_model_without_replica_does_not_block_the_lane():
    scheduler = ready()
    cold, warm = a_request(model=N), a_request()
    assert scheduler.submit([cold], 0.0) == []
    assert scheduler.submit([warm], 0.0) == [Dispatch(warm.id, R1, Epoch(1))]
    assert set(scheduler.demand()) == {N}


def test_kv_memory_is_never_over_committed_and_nobody_overtakes():
    scheduler = ready(slots=4, kv_tokens=1_000, window_tokens=1_000)
    big, bigger, small = (
        a_request(prompt_tokens=500, max_output_tokens=100),
        a_request(prompt_tokens=700, max_output_tokens=100),
        a_request(prompt_tokens=10),
    )
    assert scheduler.submit([big], 0.0)
    assert scheduler.submit([bigger], 0.0) == []
    assert scheduler.submit([small], 0.0) == []
    dispatched = [e.request_id for e in scheduler.released(big.id, 1.0)]
    assert dispatched == [bigger.id, small.id]


def test_branches_enter_together_or_not_at_all():
    bounds = {**default_bounds(), Lane.STANDARD: QueueBounds(requests_max=3)}
    scheduler = Scheduler(SchedulerRules(bounds=bounds))
    scheduler.submit([a_request(), a_request()], 0.0)
    with pytest.raises(QueueFull) as refusal:
        scheduler.submit([a_request(), a_request()], 0.0)
    assert refusal.value.retry_after_ms > 0
    assert len(scheduler.queues) == 2


def test_full_queue_of_one_tenant_leaves_room_for_another():
    bounds = {**default_bounds(), Lane.STANDARD: QueueBounds(requests_max=1)}
    scheduler = Scheduler(SchedulerRules(bounds=bounds))
    scheduler.submit([a_request("a")], 0.0)
    with pytest.raises(QueueFull):
        scheduler.submit([a_request("a")], 0.0)
    scheduler.submit([a_request("b")], 0.0)
    assert len(scheduler.queues) == 2


def test_queue_is_bounded_in_tokens_but_always_takes_one():
    bounds = {**default_bounds(), Lane.STANDARD: QueueBounds(tokens_max=50)}
    scheduler = Scheduler(SchedulerRules(bounds=bounds))
    scheduler.submit([a_request(prompt_tokens=500)], 0.0)
    with pytest.raises(QueueFull):
        scheduler.submit([a_request(prompt_tokens=1)], 0.0)


def test_cancelled_while_waiting_is_never_started():
    scheduler = ready()
    first, second = a_request(), a_request()
    scheduler.submit([first], 0.0)
    scheduler.submit([second], 0.0)
    assert scheduler.cancel(second.id, 1.0) == []
    assert scheduler.released(first.id, 2.0) == []


def test_cancelled_while_running_frees_its_slot_for_the_next():
    scheduler = ready()
    first, second = a_request(), a_request()
    scheduler.submit([first], 0.0)
    scheduler.submit([second], 0.0)
    effects = scheduler.cancel(first.id, 1.0)
    assert effects == [Abort(first.id, R1), Dispatch(second.id, R1, Epoch(1))]
    assert scheduler.cancel(first.id, 2.0) == []


def test_waiting_past_the_lanes_bound_expires():
    scheduler = Scheduler()
    request = a_request(lane=Lane.PRIORITY)
    scheduler.submit([request], 0.0)
    assert scheduler.tick(59_999.0) == []
    assert scheduler.tick(60_000.0) == [Expire(request.id, 60_000.0, by_deadline=False)]
    assert len(scheduler.queues) == 0


def test_passed_deadline_expires():
    scheduler = Scheduler()
    request = a_request(deadline_ms=500.0)
    scheduler.submit([request], 0.0)
    assert scheduler.tick(600.0) == [Expire(request.id, 600.0, by_deadline=True)]


def test_lost_replica_requeues_what_ran_there_where_it_was():
    scheduler = ready(slots=2)
    silent, talking = a_request(), a_request()
    scheduler.submit([silent], 0.0)
    scheduler.submit([talking], 0.0)
    scheduler.tokens_produced(talking.id, count=3, cached_tokens=0, now_ms=1.0)
    assert scheduler.replica_gone(R1, 2.0) == []
    again = scheduler.replica_ready(a_replica("m#2", slots=2), 3.0)
    assert again == [
        Dispatch(silent.id, ReplicaId("m#2"), Epoch(2)),
        Dispatch(talking.id, ReplicaId("m#2"), Epoch(2), resume_from=3),
    ]


def test_request_that_kills_replicas_is_given_up():
    scheduler = Scheduler()
    request = a_request()
    scheduler.submit([request], 0.0)
    for life in range(1, ATTEMPTS_MAX + 1):
        name = f"m#{life}"
        scheduler.replica_ready(a_replica(name), float(life))
        effects = scheduler.replica_gone(ReplicaId(name), float(life))
    assert effects == [Lose(request.id)]
    assert len(scheduler.queues) == 0


def test_draining_replica_gets_nothing_new():
    scheduler = ready()
    scheduler.replica_draining(R1)
    assert scheduler.submit([a_request()], 0.0) == []
    assert not scheduler.residents.serves(M)


def test_failed_model_releases_all_who_wait_for_it():
    scheduler = Scheduler()
    waiting, other = a_request(model=N), a_request()
    scheduler.submit([waiting], 0.0)
    scheduler.submit([other], 0.0)
    assert scheduler.model_failed(N, 0.0) == [waiting.id]
    assert other.id in scheduler.queues


def test_cached_input_is_not_charged():
    scheduler = ready(slots=1)
    first = a_request("cached", prompt_tokens=800, max_output_tokens=1)
    plain = [a_request("plain", prompt_tokens=100, max_output_tokens=1) for _ in range(5)]
    second = a_request("cached", prompt_tokens=100, max_output_tokens=1)
    for request in (first, *plain, second):
        scheduler.submit([request], 0.0)
    scheduler.tokens_produced(first.id, count=1, cached_tokens=799, now_ms=1.0)
    order, current = [], first.id
    while effects := scheduler.released(current, 2.0):
        current = effects[0].request_id
        order.append(current)
    assert order.index(second.id) <= 1  # charged in full it would come last


# --- parking ------------------------------------------------------------------------------------
def test_priority_parks_flex_before_standard_when_slots_are_full():
    scheduler = ready(slots=2)
    standard = a_request("a")
    flex = a_request("b", lane=Lane.FLEX)
    for request in (standard, flex):
        scheduler.submit([request], 0.0)
    urgent = a_request("c", lane=Lane.PRIORITY)
    effects = scheduler.submit([urgent], 10.0)
    assert effects == [Park(flex.id, R1), Dispatch(urgent.id, R1, Epoch(1), urgent=True)]
    more = a_request("c", lane=Lane.PRIORITY)
    assert scheduler.submit([more], 20.0)[0] == Park(standard.id, R1)
    assert scheduler.submit([a_request("c", lane=Lane.PRIORITY)], 30.0) == []


def test_parked_request_goes_on_where_it_was_and_is_not_charged_again():
    scheduler = ready(slots=1)
    flex = a_request("b", lane=Lane.FLEX, prompt_tokens=500)
    scheduler.submit([flex], 0.0)
    scheduler.tokens_produced(flex.id, count=3, cached_tokens=0, now_ms=5.0)
    urgent = a_request("c", lane=Lane.PRIORITY)
    scheduler.submit([urgent], 10.0)
    assert scheduler.parked(flex.id, 11.0) == []
    assert flex.id in scheduler.queues
    before = charged(scheduler, flex)
    assert scheduler.released(urgent.id, 20.0) == [Dispatch(flex.id, R1, Epoch(2), resume_from=3)]
    again = charged(scheduler, flex) - before
    assert again == 2.0 * (10 - 3)  # the output still expected; the prompt is not paid twice


def test_tokens_of_the_step_under_way_count_when_a_sequence_is_parked():
    scheduler = ready(slots=1)
    flex = a_request("b", lane=Lane.FLEX)
    scheduler.submit([flex], 0.0)
    scheduler.submit([a_request("c", lane=Lane.PRIORITY)], 10.0)
    scheduler.tokens_produced(flex.id, count=2, cached_tokens=0, now_ms=11.0)
    scheduler.parked(flex.id, 12.0)
    assert scheduler.queues.find(flex.id).resume_from == 2


def test_sequence_that_ended_while_it_was_being_parked_is_over():
    scheduler = ready(slots=1)
    flex = a_request("b", lane=Lane.FLEX)
    scheduler.submit([flex], 0.0)
    scheduler.submit([a_request("c", lane=Lane.PRIORITY)], 10.0)
    assert scheduler.released(flex.id, 11.0) == []
    assert scheduler.parked(flex.id, 12.0) == []
    assert flex.id not in scheduler.queues


def test_parked_request_does_not_expire_with_its_lane():
    scheduler = ready(slots=1)
    flex = a_request("b", lane=Lane.FLEX)
    scheduler.submit([flex], 0.0)
    scheduler.submit([a_request("c", lane=Lane.PRIORITY)], 10.0)
    scheduler.parked(flex.id, 11.0)
    assert scheduler.tick(10_000_000.0) == []


def test_over_share_tenant_gives_way_until_shares_are_equal():
    scheduler = ready(slots=4)
    noisy = [a_request("noisy") for _ in range(4)]
    for request in noisy:
        scheduler.submit([request], 0.0)
    quiet = [a_request("quiet") for _ in range(3)]
    first = scheduler.submit([quiet[0]], 1_000.0)
    assert first == [Park(noisy[3].id, R1), Dispatch(quiet[0].id, R1, Epoch(1), urgent=True)]
    second = scheduler.submit([quiet[1]], 1_001.0)
    assert second[0] == Park(noisy[2].id, R1)
    assert scheduler.submit([quiet[2]], 1_002.0) == []


def test_fresh_attempt_is_left_alone_for_a_while():
    scheduler = ready(slots=2)
    for _ in range(2):
        scheduler.submit([a_request("noisy")], 0.0)
    assert scheduler.submit([a_request("quiet")], 100.0) == []


def test_steady_tenant_does_not_wait_for_a_fresh_burst():
    scheduler = ready(slots=2)
    now_ms = 0.0
    for _ in range(60):
        request = a_request("steady")
        scheduler.submit([request], now_ms)
        scheduler.released(request.id, now_ms + 900.0)
        now_ms += 1_000.0
    for _ in range(2):
        scheduler.submit([a_request("noisy")], now_ms)
    effects = scheduler.submit([a_request("steady")], now_ms + 10.0)
    assert isinstance(effects[0], Park)


def test_weights_decide_how_far_parking_goes():
    scheduler = Scheduler(weight_of=lambda tenant: 3.0 if tenant == "heavy" else 1.0)
    scheduler.replica_ready(a_replica(slots=4), 0.0)
    for _ in range(4):
        scheduler.submit([a_request("light")], 0.0)
    for turn in range(4):
        scheduler.submit([a_request("heavy")], 1_000.0 + turn)
    held = [r.request.tenant_id for r in scheduler.residents.all_running()]
    assert held.count("heavy") == 3


def test_lone_tenant_takes_all_slots_also_in_flex():
    scheduler = ready(slots=4)
    dispatched = [scheduler.submit([a_request("a", lane=Lane.FLEX)], 0.0) for _ in range(4)]
    assert all(effects for effects in dispatched)


def test_lane_behind_its_floor_is_not_parked():
    scheduler = ready(slots=1)
    flex = a_request("b", lane=Lane.FLEX, max_output_tokens=200)
    scheduler.submit([a_request("p", lane=Lane.PRIORITY)], 0.0)
    scheduler.submit([flex], 0.0)
    running = next(r.request.id for r in scheduler.residents.all_running())
    parks = 0
    for turn in range(1, 200):
        scheduler.submit([a_request("p", lane=Lane.PRIORITY)], turn * 10.0)
        effects = scheduler.released(running, turn * 10.0 + 5)
        parks += sum(isinstance(e, Park) for e in effects)
        running = next(r.request.id for r in scheduler.residents.all_running())
        if running == flex.id:
            break
    assert running == flex.id
    assert scheduler.submit([a_request("p", lane=Lane.PRIORITY)], 5_000.0) == []
    assert parks == 0


def test_parking_makes_room_in_kv_memory():
    scheduler = ready(slots=8, kv_tokens=1_000, window_tokens=1_000)
    small = [a_request("b", lane=Lane.FLEX, prompt_tokens=300) for _ in range(3)]
    for request in small:
        scheduler.submit([request], 0.0)
    urgent = a_request("c", lane=Lane.PRIORITY, prompt_tokens=600)
    effects = scheduler.submit([urgent], 10.0)
    assert [type(e) for e in effects] == [Park, Park, Dispatch]


def test_waiting_times_do_not_pile_up_for_requests_that_are_long_gone():
    scheduler = ready(slots=1)
    for turn in range(1_000):
        request = a_request(lane=Lane.FLEX)
        scheduler.submit([request], float(turn))
        scheduler.released(request.id, float(turn))
    assert len(scheduler.queues._expiry) < 100


def test_what_a_second_attempt_finds_cached_is_no_gift():
    scheduler = ready()
    request = a_request(prompt_tokens=500)
    scheduler.submit([request], 0.0)
    scheduler.replica_gone(R1, 1.0)
    scheduler.replica_ready(a_replica("m#2"), 2.0)
    before = charged(scheduler, request)
    scheduler.tokens_produced(request.id, count=1, cached_tokens=499, now_ms=3.0)
    assert charged(scheduler, request) == before
