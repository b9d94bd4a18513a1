"""Does a tenant's queue keep its order, whatever comes and goes? Against a plain sort."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mantle.core.ids import RequestId
from mantle.scheduler.ordering.deadline_first import DeadlineFirstQueue

steps = st.lists(
    st.tuples(st.sampled_from(["push", "push", "pop", "remove", "return"]), st.integers(0, 40)),
    max_size=400,
)


@given(steps)
@settings(deadline=None)
def test_queue_agrees_with_a_plain_sort(actions):
    queue = DeadlineFirstQueue()
    waiting: dict[RequestId, tuple[int, int]] = {}
    gone: list[tuple[RequestId, tuple[int, int]]] = []
    for arrival, (action, number) in enumerate(actions):
        order = sorted(waiting, key=waiting.__getitem__)
        if action == "push":
            request_id = RequestId(f"r{arrival}")
            waiting[request_id] = (number, arrival)
            queue.push(request_id, expires_ms=number, arrival=arrival)
        elif action == "return" and gone:
            request_id, place = gone.pop(number % len(gone))
            waiting[request_id] = place
            queue.push(request_id, expires_ms=place[0], arrival=place[1])
        elif order and action in ("pop", "remove"):
            request_id = order[0] if action == "pop" else order[number % len(order)]
            gone.append((request_id, waiting.pop(request_id)))
            queue.remove(request_id)
        order = sorted(waiting, key=waiting.__getitem__)
        assert list(queue.ids()) == order
        assert queue.peek() == (order[0] if order else None)
        assert [queue.position(request_id) for request_id in order] == [*range(len(order))]
        assert len(queue) == len(order)


def test_used_up_front_is_given_back():
    queue = DeadlineFirstQueue()
    for arrival in range(10_000):
        queue.push(RequestId(f"r{arrival}"), expires_ms=0.0, arrival=arrival)
        if arrival >= 10:
            queue.remove(RequestId(f"r{arrival - 10}"))
    assert len(queue._order) < 200
