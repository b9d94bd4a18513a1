"""Do the reports say what the scheduler shows, to the operator and to nobody else?"""

import pytest
from gateway_fakes import KEY, Harness

from mantle.core.errors import Unauthenticated
from mantle.core.ids import ModelId, ReplicaId, TenantId
from mantle.core.lane import Lane
from mantle.scheduler.port import (
    LaneShare,
    QueueLine,
    QueuesReport,
    ReplicaLine,
    SharesReport,
    Sharing,
    TenantShare,
    Waits,
)

ADMIN_KEY = "mk-admin"
REPORT, QUEUE = "/admin/v1/report", "/admin/v1/queue"
M = ModelId("m")


class OneKey:
    def authenticate(self, api_key):
        if api_key != ADMIN_KEY:
            raise Unauthenticated("this is not the admin key")


@pytest.fixture
def gateway():
    harness = Harness(admin=OneKey())
    yield harness
    harness.executor.shutdown()


async def asked(gateway, path):
    reply = await gateway.get(path, key=ADMIN_KEY)
    assert reply.status == 200, reply.body
    assert reply.headers["cache-control"] == "no-store"
    return reply.json()


def a_share(name, cost=1.0):
    waits = Waits(4, 1_500.0, 1_000.0, 2_000.4)
    return TenantShare(TenantId(name), Lane.FLEX, 2.0, cost, 0.5, 0.25, waits, 3, 1, 2)


def a_queue(name, estimated_wait_ms):
    return QueueLine(Lane.FLEX, TenantId(name), M, 2, 60.0, 1_234.5, estimated_wait_ms)


@pytest.mark.parametrize("path", [REPORT, QUEUE])
@pytest.mark.parametrize("key", [None, KEY])
async def test_only_the_admin_key_opens_it(gateway, path, key):
    assert (await gateway.get(path, key=key)).status == 401


@pytest.mark.parametrize("path", [REPORT, QUEUE])
async def test_without_an_admin_api_it_does_not_exist(path):
    harness = Harness()
    assert (await harness.get(path, key=ADMIN_KEY)).status == 404
    harness.executor.shutdown()


@pytest.mark.parametrize("path", [REPORT, QUEUE])
async def test_it_can_only_be_read(gateway, path):
    reply = await gateway.call(path, {}, key=ADMIN_KEY)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET"


async def test_report_says_who_got_how_much(gateway):
    gateway.overview.shown_shares = SharesReport(
        300_000.0,
        4.0,
        (LaneShare(Lane.FLEX, 2.0, 0.5, None),),
        (a_share("a"),),
        (
            Sharing(Lane.FLEX, M, 0.1, 0.7, 9, 0.98),
            Sharing(Lane.PRIORITY, M, 0.2, 0.3, 0, None),
        ),
    )
    assert await asked(gateway, REPORT) == {
        "object": "report",
        "window_s": 300.0,
        "served_cost": 4.0,
        "certificate": 0.2,
        "certificate_highest": 0.7,
        "lanes": [{"lane": "flex", "served_cost": 2.0, "share": 0.5, "jain_index": None}],
        "sharing": [
            {"lane": "flex", "model": "m", "certificate": 0.1, "certificate_highest": 0.7,
             "windows_compared": 9, "jain_index": 0.98},
            {"lane": "priority", "model": "m", "certificate": 0.2, "certificate_highest": 0.3,
             "windows_compared": 0, "jain_index": None},
        ],
        "tenants": [
            {"tenant": "a", "lane": "flex", "weight": 2.0, "served_cost": 1.0,
             "share_of_lane": 0.5, "share": 0.25,
             "waits": {"count": 4, "mean_s": 1.5, "p50_s": 1.0, "p99_s": 2.0},
             "parks": 3, "running": 1, "queued": 2},
        ],
        "omitted": 0,
    }  # fmt: skip


async def test_queue_says_what_waits_and_where_work_runs(gateway):
    gateway.overview.shown_queues = QueuesReport(
        (a_queue("a", 4_200.0), a_queue("b", None)),
        (ReplicaLine(ReplicaId("m#1"), M, 16, 3, 1_000, 90, True),),
    )
    report = await asked(gateway, QUEUE)
    assert (report["queued"], report["queued_cost"], report["omitted"]) == (4, 120.0, 0)
    assert report["queues"][0] == {
        "lane": "flex", "tenant": "a", "model": "m", "queued": 2, "queued_cost": 60.0,
        "oldest_wait_s": 1.234, "estimated_wait_s": 4.2,
    }  # fmt: skip
    assert report["queues"][1]["estimated_wait_s"] is None
    assert report["replicas"] == [
        {"replica": "m#1", "model": "m", "slots": 16, "running": 3, "kv_tokens": 1_000,
         "kv_tokens_taken": 90, "draining": True},
    ]  # fmt: skip


async def test_rows_are_limited_and_the_rest_is_counted(gateway):
    gateway.overview.shown_shares = SharesReport(
        1.0, 1.0, (), tuple(a_share(f"t{number}") for number in range(7)), ()
    )
    gateway.overview.shown_queues = QueuesReport(
        tuple(a_queue(f"t{number}", None) for number in range(7)), ()
    )
    report = await asked(gateway, f"{REPORT}?limit=2")
    assert ([row["tenant"] for row in report["tenants"]], report["omitted"]) == (["t0", "t1"], 5)
    report = await asked(gateway, f"{QUEUE}?limit=3")
    assert (len(report["queues"]), report["omitted"], report["queued"]) == (3, 4, 14)


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "²"])
async def test_impossible_limit_is_refused(gateway, limit):
    reply = await gateway.get(f"{QUEUE}?limit={limit}", key=ADMIN_KEY)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "limit"
