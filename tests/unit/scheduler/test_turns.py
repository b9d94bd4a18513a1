"""Does each model keep its own accounts, and does nobody wait behind what has left?"""

from mantle.core.lane import Lane
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules, default_bounds
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import M, N, a_replica, a_request
from tests.unit.scheduler.runs import charged, ready, run_order


def test_what_an_expired_request_was_blocking_runs_at_once():
    bounds = {**default_bounds(), Lane.STANDARD: QueueBounds(wait_s_max=1.0)}
    scheduler = Scheduler(SchedulerRules(bounds=bounds))
    scheduler.replica_ready(a_replica(slots=4, kv_tokens=1_000, window_tokens=1_000), 0.0)
    big = a_request(prompt_tokens=500, max_output_tokens=100)
    bigger = a_request(prompt_tokens=700, max_output_tokens=100)
    small = a_request(prompt_tokens=10)
    scheduler.submit([big], 0.0)
    scheduler.submit([bigger], 0.0)
    assert scheduler.submit([small], 500.0) == []
    expire, dispatch = scheduler.tick(1_000.0)
    assert (expire.request_id, dispatch.request_id) == (bigger.id, small.id)


def test_what_a_cancelled_request_was_blocking_runs_at_once():
    scheduler = ready(slots=4, kv_tokens=1_000, window_tokens=1_000)
    big = a_request(prompt_tokens=500, max_output_tokens=100)
    bigger = a_request(prompt_tokens=700, max_output_tokens=100)
    small = a_request(prompt_tokens=10)
    for request in (big, bigger, small):
        scheduler.submit([request], 0.0)
    (dispatch,) = scheduler.cancel(bigger.id, 1.0)
    assert dispatch.request_id == small.id


def test_use_of_one_model_does_not_delay_a_tenant_on_another():
    scheduler = ready()
    scheduler.replica_ready(a_replica("n#1", model=N), 0.0)
    mine, theirs = [a_request("a") for _ in range(10)], [a_request("b") for _ in range(10)]
    scheduler.submit([a_request("b", model=N)], 0.0)
    for _ in range(20):  # `a` has much of N, while `b` waits for M
        request = a_request("a", model=N, max_output_tokens=500)
        scheduler.submit([request], 0.0)
    blocker = a_request("blocker", lane=Lane.PRIORITY)
    scheduler.submit([blocker], 0.0)
    scheduler.submit(theirs, 0.0)
    while (running := running_on(scheduler, N)) is not None:
        scheduler.tokens_produced(running, count=500, cached_tokens=0, now_ms=0.0)
        scheduler.released(running, 0.0)
    scheduler.submit(mine, 0.0)
    order, current = [], blocker.id
    for _ in range(10):
        (dispatch,) = scheduler.released(current, 0.0)
        current = dispatch.request_id
        order.append(current)
    assert 4 <= sum(request.id in order for request in mine) <= 6


def running_on(scheduler, model_id):
    running = scheduler.residents.all_running()
    return next((r.request.id for r in running if r.request.model_id == model_id), None)


def test_a_newcomer_is_not_favoured_because_another_model_is_slow():
    scheduler = ready()
    scheduler.replica_ready(a_replica("n#1", model=N), 0.0)
    scheduler.submit([a_request("slow", model=N) for _ in range(5)], 0.0)
    for _ in range(20):  # `old` has had much of M
        request = a_request("old", max_output_tokens=500)
        scheduler.submit([request], 0.0)
        scheduler.tokens_produced(request.id, count=500, cached_tokens=0, now_ms=0.0)
        scheduler.released(request.id, 0.0)
    old, new = [a_request("old") for _ in range(10)], [a_request("new") for _ in range(10)]
    order = run_order(scheduler, [*old, *new])[:10]
    assert 4 <= sum(request.id in order for request in old) <= 6


def test_certificate_remembers_the_debt_of_one_large_request():
    scheduler = Scheduler(weight_of=lambda tenant: 4.0 if tenant == "small" else 1.0)
    scheduler.replica_ready(a_replica(), 0.0)
    large = [a_request("large", prompt_tokens=900, max_output_tokens=1) for _ in range(5)]
    small = [a_request("small", prompt_tokens=10, max_output_tokens=1) for _ in range(1_000)]
    (dispatch, *_) = scheduler.submit([*large, *small], 0.0)
    current, now_ms = dispatch.request_id, 0.0
    for _ in range(600):
        now_ms += 200.0
        (dispatch,) = scheduler.released(current, now_ms)
        current = dispatch.request_id
    assert 0.0 < scheduler.accounts.certificates()[Lane.STANDARD, M].highest <= 1.0


def test_certificate_stays_within_its_bound_under_a_burst():
    scheduler = ready(slots=2)
    for tenant in ("a", "b", "c"):
        for _ in range(300):
            scheduler.submit([a_request(tenant, max_output_tokens=20)], 0.0)
    now_ms = 0.0
    while scheduler.residents.all_running():
        now_ms += 100.0
        running = scheduler.residents.all_running()[0]
        scheduler.tokens_produced(running.request.id, count=20, cached_tokens=0, now_ms=now_ms)
        scheduler.released(running.request.id, now_ms)
    assert 0.0 < scheduler.accounts.certificates()[Lane.STANDARD, M].highest <= 1.0


def test_tokens_of_the_step_under_way_are_charged_though_the_attempt_is_parked():
    scheduler = ready()
    flex = a_request("a", lane=Lane.FLEX, prompt_tokens=10, max_output_tokens=50)
    scheduler.submit([flex], 0.0)
    scheduler.submit([a_request("b", lane=Lane.PRIORITY)], 1_000.0)  # parks it
    scheduler.tokens_produced(flex.id, count=3, cached_tokens=4, now_ms=1_010.0)
    assert charged(scheduler, flex) == 10 - 4 + 2 * 3


def test_tokens_of_the_step_under_way_leave_no_promise_behind():
    scheduler = ready()
    flex = a_request("a", lane=Lane.FLEX, prompt_tokens=10, max_output_tokens=50)
    scheduler.submit([flex], 0.0)
    scheduler.submit([a_request("b", lane=Lane.PRIORITY)], 1_000.0)  # parks it
    scheduler.tokens_produced(flex.id, count=3, cached_tokens=0, now_ms=1_010.0)
    scheduler.parked(flex.id, 1_020.0)
    newcomer = a_request("c", lane=Lane.FLEX)
    scheduler.submit([newcomer], 1_030.0)
    assert charged(scheduler, newcomer) == charged(scheduler, flex)  # lifted to all that `a` had
