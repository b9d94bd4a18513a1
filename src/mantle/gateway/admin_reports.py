"""What is going on? `/admin/v1/report`: who got how much; `/admin/v1/queue`: what waits and runs.

Invariant: each reply is of one moment and of bounded size; times are in seconds, costs in token
cost. `tenant` `*` stands for tenants that were not told apart.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from mantle.core.errors import InvalidRequest
from mantle.core.limits import REPORT_ROWS_MAX
from mantle.gateway.exchange import JSON, Exchange
from mantle.scheduler.port import (
    LaneShare,
    OverviewPort,
    QueueLine,
    ReplicaLine,
    Sharing,
    TenantShare,
)

ROWS_DEFAULT: Final = 1_000


async def _report(overview: OverviewPort, exchange: Exchange) -> None:
    limit = _limit(exchange.query)
    report = overview.shares()
    certificates = [(one.certificate, one.certificate_highest) for one in report.sharing]
    await _reply(
        exchange,
        {
            "object": "report",
            "window_s": _s(report.window_ms),
            "served_cost": report.served_cost,
            "certificate": max((present for present, _ in certificates), default=0.0),
            "certificate_highest": max((highest for _, highest in certificates), default=0.0),
            "lanes": [_lane(one) for one in report.lanes],
            "sharing": [_sharing(one) for one in report.sharing],
            "tenants": [_tenant(one) for one in report.tenants[:limit]],
            "omitted": max(0, len(report.tenants) - limit),
        },
    )


async def _queue(overview: OverviewPort, exchange: Exchange) -> None:
    limit = _limit(exchange.query)
    report = overview.queues()
    await _reply(
        exchange,
        {
            "object": "queue",
            "queued": sum(line.queued for line in report.queues),
            "queued_cost": sum(line.queued_cost for line in report.queues),
            "queues": [_queue_line(line) for line in report.queues[:limit]],
            "omitted": max(0, len(report.queues) - limit),
            "replicas": [_replica(line) for line in report.replicas],
        },
    )


Handler = Callable[[OverviewPort, Exchange], Awaitable[None]]
ROUTES: Final[tuple[tuple[re.Pattern[str], Mapping[str, Handler]], ...]] = (
    (re.compile(r"/admin/v1/report"), {"GET": _report}),
    (re.compile(r"/admin/v1/queue"), {"GET": _queue}),
)


# --- as JSON ------------------------------------------------------------------------------------
def _lane(one: LaneShare) -> dict[str, Any]:
    return {
        "lane": one.lane,
        "served_cost": one.served_cost,
        "share": one.share_of_all,
        "jain_index": one.jain_index,
    }


def _sharing(one: Sharing) -> dict[str, Any]:
    return {
        "lane": one.lane,
        "model": one.model_id,
        "certificate": one.certificate,
        "certificate_highest": one.certificate_highest,
        "windows_compared": one.windows_compared,
        "jain_index": one.jain_index,
    }


def _tenant(one: TenantShare) -> dict[str, Any]:
    waits = one.waits
    return {
        "tenant": one.tenant_id,
        "lane": one.lane,
        "weight": one.weight,
        "served_cost": one.served_cost,
        "share_of_lane": one.share_of_lane,
        "share": one.share_of_all,
        "waits": {
            "count": waits.count,
            "mean_s": _s(waits.ms_mean),
            "p50_s": _s(waits.ms_p50),
            "p99_s": _s(waits.ms_p99),
        },
        "parks": one.parks,
        "running": one.running,
        "queued": one.queued,
    }


def _queue_line(line: QueueLine) -> dict[str, Any]:
    estimated_ms = line.estimated_wait_ms
    return {
        "lane": line.lane,
        "tenant": line.tenant_id,
        "model": line.model_id,
        "queued": line.queued,
        "queued_cost": line.queued_cost,
        "oldest_wait_s": _s(line.oldest_wait_ms),
        "estimated_wait_s": None if estimated_ms is None else _s(estimated_ms),
    }


def _replica(line: ReplicaLine) -> dict[str, Any]:
    return {
        "replica": line.replica_id,
        "model": line.model_id,
        "slots": line.slots,
        "running": line.running,
        "kv_tokens": line.kv_tokens,
        "kv_tokens_taken": line.kv_tokens_taken,
        "draining": line.is_draining,
    }


def _s(span_ms: float) -> float:
    return round(span_ms / 1_000, 3)


def _limit(query: str) -> int:
    """Most rows to show. Raises `InvalidRequest`."""
    value = parse_qs(query).get("limit", [str(ROWS_DEFAULT)])[-1]
    if value.isascii() and value.isdigit() and len(value) < 9:
        limit = int(value)
        if 1 <= limit <= REPORT_ROWS_MAX:
            return limit
    raise InvalidRequest(f"limit must be 1…{REPORT_ROWS_MAX}", param="limit")


async def _reply(exchange: Exchange, value: dict[str, Any]) -> None:
    body = msgspec.json.encode(value)
    headers = [(b"cache-control", b"no-store")]
    await exchange.respond(200, body, content_type=JSON, headers=headers)
