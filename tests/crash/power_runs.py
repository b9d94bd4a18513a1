"""What did a child write, what was a client told by then, and what does a power loss leave of it?

Invariant: `losses` opens what is left as a server does, and fails for anything that is wrong; only
what is missing is its answer, so that controls can ask for it.
"""

import itertools
import subprocess
import sys
from pathlib import Path

import msgspec

from mantle.journal.stores.sqlite import SqliteStore
from tests.crash.forgetful_disk import AnyOp, Disk, PowerLost, Sync, SyncFolder, Write
from tests.crash.forgetful_folder import write_image
from tests.crash.journal_child import TOLD_NAME, Plan, Told, Trouble, token_of

DEADLINE_S = 60
LARGE = Plan(asks=10, appends=150, tokens_max=10_000)  # over 1,000 pages: a checkpoint on the way
ANY_WORD = msgspec.json.Decoder(Told | Trouble)


def child_command(folder, plan):
    text = msgspec.json.encode(plan).decode()
    return [sys.executable, "-m", "tests.crash.journal_child", str(folder.path), text]


def run_child(folder, plan=None) -> list[Told | Trouble]:
    """What it said until its end."""
    done = subprocess.run(
        child_command(folder, plan or Plan()), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return [ANY_WORD.decode(line) for line in done.stdout.splitlines()]


# --- what there should be, and what there is ----------------------------------------------------
def told_at_moments(ops: list[AnyOp]) -> list[list[Told]]:
    """Before each operation, and at the end: all that was told by then."""
    disk, told, text = Disk(), [], b""
    moments = []
    for op in ops:
        moments.append(told)
        disk.apply(op)
        if isinstance(op, PowerLost):
            text = b""
        if isinstance(op, Write) and op.file == disk.names.get(TOLD_NAME):
            *lines, text = (text + op.data).split(b"\n")  # a write may be split between pages
            words = map(ANY_WORD.decode, lines)
            told = told + [word for word in words if isinstance(word, Told)]
    return [*moments, told]


def losses(image: Path, told: list[Told]) -> list[Told]:
    """Open the journal as a server does; what was told and is not there.

    Whatever is there must be right: no damage, no wrong token, no second end.
    """
    store = SqliteStore(image, synchronous="OFF")  # this image needs no disk
    try:
        assert store.recover().damaged == ()
        assert store.verify() == []
        lost, kept = [], {}
        for word in told:
            if word.ask not in kept:
                kept[word.ask] = sound_history(store, word.ask)
            count, is_over = kept[word.ask]
            if count < word.count or is_over < word.is_over:
                lost.append(word)
        return lost
    finally:
        store.close()


def sound_history(store, name) -> tuple[int, bool]:
    """How many tokens there are, each the right one, and whether it is over; -1: no such ask."""
    ask = store.history(name)
    if ask is None:
        return -1, False
    (request,) = ask.requests
    number = int(name.removeprefix("ask_"))
    assert request.output == [token_of(number, i) for i in range(request.output_count)]
    return request.output_count, ask.is_over


def losses_at(ops, moments, folder, *, seeds=False) -> dict[int, list[Told]]:
    """Cut the power before each of these operations; the moments that lose something told."""
    told = told_at_moments(ops)
    found = {}
    for moment in moments:
        disk = Disk([*ops[:moment], PowerLost(moment if seeds else None)])
        image = folder / f"image_{moment}"
        write_image(disk, image)
        lost = losses(image, told[moment])
        if lost:
            found[moment] = lost
    return found


def edges(ops) -> list[int]:
    """Where the disk is about to have more, and the end: between two of them nothing changes but
    what was told, so these are all moments there are.
    """
    syncs = [at for at, op in enumerate(ops) if isinstance(op, Sync | SyncFolder)]
    return [*syncs, len(ops)]


def checkpoints(ops) -> list[int]:
    """Where the database file itself is synced."""
    disk, found = Disk(), []
    for at, op in enumerate(ops):
        disk.apply(op)
        if isinstance(op, Sync) and op.file == disk.names.get("journal.db"):
            found.append(at)
    return found


def killed_child(folder, plan, lines) -> list[Told]:
    """Killed after so many words; all that it said."""
    with subprocess.Popen(child_command(folder, plan), stdout=subprocess.PIPE, text=True) as child:
        try:
            heard = list(itertools.islice(child.stdout, lines))
        finally:
            child.kill()
        heard += child.stdout.readlines()
    words = [ANY_WORD.decode(line) for line in heard if line.endswith("\n")]
    return [word for word in words if isinstance(word, Told)]
