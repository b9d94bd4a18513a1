"""Which facts must agree at any moment? Each check reads the real objects, and raises."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from mantle.core.ids import ModelId, WorkerId
from mantle.scheduler.queues import Waiting
from mantle.testing.sim_cluster.invariant import broken, require

if TYPE_CHECKING:
    from mantle.testing.sim_cluster.cluster import SimCluster


def check_places(cluster: SimCluster) -> None:
    """As many requests are queued, running or leaving as were accepted and have not ended.

    All that clients wait for is among them, or only its end is still being written.
    """
    scheduler = cluster.scheduler
    queued, running = len(scheduler.queues), len(scheduler.residents)
    leaving = len(scheduler.leaving())
    live, ending = len(cluster.live), len(cluster.scribe.ending)
    if queued + running + leaving != live:
        broken(f"{live} requests live, but {queued} wait, {running} run, {leaving} leave")
    if live + ending != cluster.watcher.open_count and cluster.is_up:
        clients = cluster.watcher.open_count
        broken(f"{clients} clients wait, but {live} requests live and {ending} end")


def check_everything(cluster: SimCluster, *, late_ms_max: float) -> None:
    """All that needs a look at every request, replica and worker."""
    check_each_place(cluster)
    check_replicas(cluster)
    check_waits(cluster, late_ms_max=late_ms_max)
    check_ledger(cluster)


def check_each_place(cluster: SimCluster) -> None:
    """Every live request is in exactly one place."""
    scheduler = cluster.scheduler
    leaving = set(scheduler.leaving())
    for request_id in cluster.live:
        places = (
            (request_id in scheduler.queues)
            + (scheduler.residents.find(request_id) is not None)
            + (request_id in leaving)
        )
        require(places == 1, f"{request_id} is in {places} places")


def check_replicas(cluster: SimCluster) -> None:
    """No replica is over-committed, and none is idle while all that waits would fit there."""
    residents = cluster.scheduler.residents
    waiting: defaultdict[ModelId, list[Waiting]] = defaultdict(list)
    for request_id in cluster.live:
        found = cluster.scheduler.queues.find(request_id)
        if found is not None:
            waiting[found.request.model_id].append(found)
    for replica in residents.replicas():
        on_it = [residents.find(request_id) for request_id in replica.running]
        kv_tokens = sum(r.kv_tokens for r in on_it if r is not None)
        require(kv_tokens == replica.kv_tokens_taken, f"{replica.replica_id}: KV is miscounted")
        require(kv_tokens <= replica.kv_tokens, f"{replica.replica_id}: KV is over-committed")
        require(len(on_it) <= replica.slots, f"{replica.replica_id}: slots are over-committed")
        hungry = waiting.get(replica.model_id)
        if hungry and not replica.draining:
            need = max(replica.kv_need(w.tokens) for w in hungry)
            require(not replica.fits(need), f"{replica.replica_id} has room while requests wait")


def check_waits(cluster: SimCluster, *, late_ms_max: float) -> None:
    """Nothing stays in a queue past its bound or its deadline."""
    now_ms = cluster.events.at_ms
    for request_id, life in cluster.live.items():
        waiting = cluster.scheduler.queues.find(request_id)
        if waiting is None:
            continue
        expires_ms = waiting.request.deadline_ms if waiting.has_run else waiting.expires_ms
        if expires_ms is not None:
            late_ms = now_ms - max(expires_ms, life.waits_since_ms)
            require(late_ms <= late_ms_max + 1e-6, f"{request_id} waits {late_ms:.0f} ms too long")


def check_ledger(cluster: SimCluster) -> None:
    """On no worker do the replicas take more memory than it has."""
    if cluster.placement is None:
        return
    taken: defaultdict[WorkerId, int] = defaultdict(int)
    for replica in cluster.placement.replicas():
        taken[replica.worker_id] += replica.size_bytes
    for worker_id, size_bytes in taken.items():
        budget_bytes = cluster.budgets[worker_id]
        require(size_bytes <= budget_bytes, f"{worker_id}: memory is over-committed")
