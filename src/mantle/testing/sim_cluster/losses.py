"""What if a worker dies? It is missed a little later, and comes back empty.

Invariant: a server hears only of the workers that it has known; a machine that died by itself is
not back before its time, whatever happens to the server meanwhile.
"""

from functools import partial

from mantle.pool.replica import ReplicaState
from mantle.testing.sim_cluster.cluster import SimCluster
from mantle.testing.sim_cluster.paper_worker import PaperWorker


def lose(
    cluster: SimCluster, worker: PaperWorker, *, noticed_after_ms: float, back_after_ms: float
) -> None:
    """The worker dies now."""
    if not worker.alive:
        return
    worker.die()
    cluster.lost.add(worker.id)
    cluster.watcher.note("worker dies", worker.id)
    cluster.events.after(noticed_after_ms, partial(_miss, cluster, worker, cluster.server_number))
    cluster.events.after(noticed_after_ms + back_after_ms, partial(_welcome, cluster, worker))


def join(cluster: SimCluster, worker: PaperWorker) -> None:
    """An empty worker is there."""
    assert cluster.placement is not None, "installed replicas do not come back"
    worker.revive()
    cluster.placement.worker_up(worker.id, cluster.budgets[worker.id])


def _miss(cluster: SimCluster, worker: PaperWorker, server_number: int) -> None:
    if not cluster.is_up or server_number != cluster.server_number:
        return
    assert cluster.placement is not None, "installed replicas are not lost"
    cluster.watcher.note("worker missed", worker.id)
    worker.notice_loss()
    for replica in cluster.placement.worker_down(worker.id):
        if replica.state is not ReplicaState.LOADING:
            cluster.replica_gone(replica.id)
    cluster.checked()


def _welcome(cluster: SimCluster, worker: PaperWorker) -> None:
    cluster.lost.discard(worker.id)
    if cluster.is_up:
        cluster.watcher.note("worker back", worker.id)
        join(cluster, worker)
