"""What do scheduler tests share? One replica, and the order in which it serves."""

from mantle.core.lane import Lane
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import a_replica, a_request


def ready(**replica):
    scheduler = Scheduler()
    scheduler.replica_ready(a_replica(**replica), 0.0)
    return scheduler


def run_order(scheduler, requests, now_ms=0.0):
    """Submit all while the one slot is taken, then free it again and again; who ran, in order."""
    blocker = a_request("blocker", lane=Lane.PRIORITY, max_output_tokens=1, prompt_tokens=1)
    scheduler.submit([blocker], now_ms)
    for request in requests:
        assert scheduler.submit([request], now_ms) == []
    order, current = [], blocker.id
    while effects := scheduler.released(current, now_ms):
        (dispatch,) = effects
        order.append(dispatch.request_id)
        current = dispatch.request_id
    return order


def charged(scheduler, request):
    """What the request's tenant was charged in its lane for its weight, estimates included."""
    fairness = scheduler.accounts.turns_of(request.model_id).fairness[request.lane]
    return fairness.counter(request.tenant_id)
