"""What does the journal do when the disk refuses? It stops, or waits for room; it never guesses.

A failed fsync is worse than it looks: Linux counts the pages as clean afterwards, so the next fsync
succeeds while they never reached the disk, and every reader still sees them in the page cache.
"""

import subprocess

import pytest

from tests.crash.forgetful_disk import Disk, Sync
from tests.crash.forgetful_folder import write_image
from tests.crash.forgetful_log import Faults
from tests.crash.journal_child import REFUSED, Plan, Told, Trouble
from tests.crash.power_runs import (
    ANY_WORD,
    LARGE,
    child_command,
    edges,
    losses,
    losses_at,
    run_child,
    told_at_moments,
)

pytestmark = pytest.mark.process

DEADLINE_S = 60


def wal_syncs(ops) -> list[int]:
    """Where a commit becomes durable."""
    disk, found = Disk(), []
    for at, op in enumerate(ops):
        disk.apply(op)
        if isinstance(op, Sync) and op.file == disk.names.get("journal.db-wal"):
            found.append(at)
    return found


@pytest.mark.parametrize("before", range(9))
def test_failed_fsync_while_a_journal_is_made_opens_nothing(mounted, before):
    """SQLite tells of some only by another journal mode, which would lose what was told."""
    folder = mounted()
    folder.order(Faults(syncs_before_fault=before))
    assert run_child(folder) == [Trouble("not opened", 1)]
    said = run_child(folder)
    assert not any(isinstance(word, Trouble) for word in said), "the next try is a new one"


@pytest.mark.parametrize("before", [20, 25, 30, 40])
def test_failed_fsync_is_the_end_and_nothing_told_is_lost(mounted, tmp_path, before):
    folder = mounted()
    folder.order(Faults(syncs_before_fault=before))
    said = run_child(folder, Plan(appends=200))
    ops = folder.ops()
    assert any(isinstance(op, Sync) and op.has_failed for op in ops)
    *told, failure, refusal = said
    assert all(isinstance(word, Told) for word in told)
    assert isinstance(failure, Trouble)
    assert failure.failures == 1
    assert refusal == Trouble(REFUSED, 1), "though the next fsync would have succeeded"
    assert losses_at(ops, edges(ops)[-8:], tmp_path) == {}


@pytest.mark.parametrize("before", [21, 25, 30])
def test_next_server_does_not_believe_the_page_cache_after_a_failed_fsync(
    mounted, tmp_path, before
):
    """The first dies without closing; the second one finds commits that no disk has."""
    folder = mounted()
    folder.order(Faults(syncs_before_fault=before))
    said = run_child(folder, Plan(appends=200, dies_when_failed=True))
    assert said[-1] == Trouble(REFUSED, 1)
    first_life = len(folder.ops())
    run_child(folder, Plan(seed=2, first_ask=10))
    ops = folder.ops()
    moments = [at for at in edges(ops) if at > first_life]
    assert losses_at(ops, moments, tmp_path) == {}


def test_failed_fsync_of_a_checkpoint_loses_nothing(mounted, tmp_path):
    """SQLite keeps quiet about it, and is right: the log has it all, and the pages are written
    again later.
    """
    folder = mounted()
    folder.order(Faults(syncs_before_fault=2, only="journal.db"))  # two while it is made
    run_child(folder, LARGE)
    ops = folder.ops()
    (failed,) = [at for at, op in enumerate(ops) if isinstance(op, Sync) and op.has_failed]
    run_child(folder, Plan(seed=2, first_ask=20))
    ops = folder.ops()
    moments = [at for at in edges(ops) if at > failed]
    assert losses_at(ops, [*moments[:5], *moments[5::9], len(ops)], tmp_path) == {}


def test_next_server_does_not_believe_what_was_written_but_never_synced(mounted, tmp_path):
    """Killed between a commit's write and its fsync: readable, not durable."""
    first = mounted("first")
    run_child(first)
    ops = first.ops()
    for number, at in enumerate(wal_syncs(ops)[4:28:6]):
        again = mounted(f"again_{number}", ops[:at])
        run_child(again, Plan(seed=2, first_ask=10, appends=4))
        both = again.ops()
        assert told_at_moments(both)[-1] != told_at_moments(ops[:at])[-1]
        moments = [moment for moment in edges(both) if moment > at]
        assert losses_at(both, moments, tmp_path / f"images_{number}") == {}


def test_full_disk_makes_the_journal_wait_and_nothing_is_lost(mounted, tmp_path):
    folder = mounted()
    folder.order(Faults(room_bytes=250_000))
    said = []
    command = child_command(folder, Plan(appends=200))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            for line in child.stdout:
                said.append(ANY_WORD.decode(line))
                if isinstance(said[-1], Trouble) and said[-1].reason:
                    assert said[-1] == Trouble("the journal's disk is full")
                    folder.order(Faults())
        finally:
            child.kill()
    told = [word for word in said if isinstance(word, Told)]
    assert len(said) - len(told) == 1, "it was full once, and once only"
    assert len(told) > 200
    folder.cut_power()
    write_image(Disk(folder.ops()), tmp_path / "after")
    assert losses(tmp_path / "after", told) == []
