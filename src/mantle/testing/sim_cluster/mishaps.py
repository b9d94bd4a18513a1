"""What goes wrong, and when? Seeded mishaps of machines; those of the link are `LinkDelays`, those
of the server and its journal `server_mishaps`.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from mantle.core.ids import WorkerId
from mantle.testing.sim_cluster.cluster import SimCluster
from mantle.testing.sim_cluster.losses import lose


class MishapKind(StrEnum):
    """Closed set of what may befall a worker."""

    LOST = "lost"
    SLOW = "slow"
    ENGINE_CRASH = "engine crash"
    LOAD_BREAKS = "load breaks"


@dataclass(frozen=True, slots=True)
class Mishap:
    """One mishap. `for_ms`: until the worker is back, or at its usual speed."""

    at_ms: float
    kind: MishapKind
    worker_id: WorkerId
    for_ms: float
    noticed_after_ms: float = 1_000.0
    slowness: float = 10.0


def random_mishaps(
    rng: random.Random, workers: list[WorkerId], span_ms: float
) -> tuple[Mishap, ...]:
    return tuple(
        Mishap(
            at_ms=rng.uniform(0, span_ms),
            kind=rng.choice(list(MishapKind)),
            worker_id=rng.choice(workers),
            for_ms=rng.uniform(100, 5_000),
            noticed_after_ms=rng.choice((0.0, 20.0, 1_000.0)),
            slowness=rng.choice((2.0, 20.0)),
        )
        for _ in range(rng.randint(0, 4))
    )


def happen(cluster: SimCluster, mishap: Mishap) -> None:
    """Let the mishap befall its worker."""
    worker = cluster.workers[mishap.worker_id]
    if mishap.kind is MishapKind.LOST:
        noticed_after_ms, back_after_ms = mishap.noticed_after_ms, mishap.for_ms
        lose(cluster, worker, noticed_after_ms=noticed_after_ms, back_after_ms=back_after_ms)
        return
    cluster.watcher.note(str(mishap.kind), worker.id)
    if mishap.kind is MishapKind.SLOW:
        worker.slow_down(mishap.slowness)
        cluster.events.after(mishap.for_ms, lambda: worker.slow_down(1.0))
    elif mishap.kind is MishapKind.ENGINE_CRASH:
        worker.break_engine()
    else:
        worker.break_next_loads += 1
