"""What goes wrong with the server and its journal, and when? Seeded, like the workers' mishaps."""

import random
from dataclasses import dataclass
from enum import StrEnum

from mantle.testing.sim_cluster.restarts import Restarts


class ServerMishapKind(StrEnum):
    """Closed set of what may befall the server."""

    DIES = "server dies"
    RECORD_DAMAGED = "record damaged"
    COMMITS_SLOW = "commits are slow"
    STORE_FULL = "store is full"
    FSYNC_FAILS = "fsync fails"
    STALE_WORDS = "stale words"


@dataclass(frozen=True, slots=True)
class ServerMishap:
    """One mishap. `for_ms`: until the next server starts, or the disk is well again."""

    at_ms: float
    kind: ServerMishapKind
    for_ms: float


def random_server_mishaps(rng: random.Random, span_ms: float) -> tuple[ServerMishap, ...]:
    return tuple(
        ServerMishap(
            at_ms=rng.uniform(0, span_ms),
            kind=rng.choice(list(ServerMishapKind)),
            for_ms=rng.uniform(50, 3_000),
        )
        for _ in range(rng.randint(0, 5))
    )


def befall(restarts: Restarts, mishap: ServerMishap) -> None:
    """Let the mishap befall the server that is up now."""
    cluster, disk = restarts.cluster, restarts.disk
    until_ms = cluster.events.at_ms + mishap.for_ms
    if mishap.kind is ServerMishapKind.DIES:
        restarts.die(down_ms=mishap.for_ms)
        return
    cluster.watcher.note(str(mishap.kind), f"for {mishap.for_ms:.0f} ms")
    if mishap.kind is ServerMishapKind.RECORD_DAMAGED:
        restarts.die(down_ms=mishap.for_ms, damaged_records=1)
    elif mishap.kind is ServerMishapKind.COMMITS_SLOW:
        disk.slow_until_ms = until_ms
    elif mishap.kind is ServerMishapKind.STORE_FULL:
        disk.full_until_ms = until_ms
    elif mishap.kind is ServerMishapKind.FSYNC_FAILS:
        disk.next_fsync_fails, restarts.down_ms_after_fsync = True, mishap.for_ms
    else:
        say_again(restarts)


def say_again(restarts: Restarts) -> None:
    """Workers' words that no longer count come once more, over the links of today's attempts.

    What was said to an earlier server in an epoch that its successor uses again is left out: a
    worker ends with its server, so nothing but the link could tell these apart.
    """
    cluster = restarts.cluster
    journal = cluster.scribe.journal
    if not cluster.is_up or journal is None or journal.has_failed:
        return
    for heard in list(cluster.heard):
        for progress in heard.reports:
            life = restarts.witness.lives[progress.request_id]
            is_stale = life.outcome is not None or progress.epoch < life.epoch
            if is_stale and progress.count:
                cluster.on_progress(life.replica_id or heard.replica_id, [progress])
