"""What goes wrong with the server and its journal, and when? Seeded, like the workers' mishaps."""

import random
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from mantle.testing.sim_cluster.restarts import Restarts

TURNS = 10
"""So often a worker that does not know that it is out of date says everything again."""

WORDS_AFTER_DEATH_MS = 3_000.0
"""So long the words of a dead server's attempts come to the next one."""


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
    """One mishap.

    `for_ms`: until the next server starts, or the disk is well again.
    """

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
        for _ in range(rng.randint(0, 4))
    )


def befall(restarts: Restarts, mishap: ServerMishap) -> None:
    """Let the mishap befall the server that is up now."""
    cluster, disk = restarts.cluster, restarts.disk
    until_ms = cluster.events.at_ms + mishap.for_ms
    if mishap.kind is ServerMishapKind.DIES:
        restarts.die(down_ms=mishap.for_ms)
        _say_again_and_again(restarts, mishap.for_ms, WORDS_AFTER_DEATH_MS)
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
        _say_again_and_again(restarts, 0.0, mishap.for_ms)


def _say_again_and_again(restarts: Restarts, after_ms: float, for_ms: float) -> None:
    for turn in range(1, TURNS + 1):
        restarts.cluster.events.after(
            after_ms + for_ms * turn / TURNS, partial(_say_again, restarts)
        )


def _say_again(restarts: Restarts) -> None:
    """Workers' words that no longer count come once more, over the links of today's attempts.

    What was said to an earlier server in an epoch that its successor uses again is left out: a
    worker ends with its server, so nothing but the link could tell these apart.
    """
    cluster = restarts.cluster
    journal = cluster.scribe.journal
    if not cluster.is_up or journal is None or journal.has_failed:
        return
    for request_id, progress in cluster.stale.items():
        life = restarts.witness.lives[request_id]
        if life.replica_id is not None and progress.epoch < life.epoch:
            cluster.on_progress(life.replica_id, [progress])
