"""What comes of a journal that is damaged anywhere? Every byte is changed, and every one cut off.

Invariant of all: a wrong token is never served, nothing but `JournalFault` is raised, a running ask
is served whole or named as damaged, and what `verify` finds sound reads exactly as it was written.
"""

import contextlib
import dataclasses
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from mantle.cli.journal import journal
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId, TenantId
from mantle.journal.stores.sqlite import FILE_NAME, SqliteStore
from mantle.testing.requests import a_request
from mantle.testing.scripts import script_of, write_script
from tests.running_server import start_server
from tests.unit.journal.records import ask_of, begun, finished, tokens

LOG_NAME = FILE_NAME + "-wal"
PAGE_BYTES = 512
HEADER_BYTES = 100
ASKS = ("ask_1", "ask_2", "ask_3")


class Running(NamedTuple):
    """What a server would go on with, and whom it would end."""

    asks: dict
    orphans: tuple


class Rest(NamedTuple):
    """What else can be asked."""

    over: object
    key: object
    listed: object


def running_of(store) -> tuple[Running, set[str]]:
    """With those that it sets aside."""
    recovered = store.recover()
    asks = {ask.asked.id: ask for ask in recovered.asks}
    return Running(asks, recovered.orphans), {damage.id for damage in recovered.damaged}


def rest_of(store) -> Rest:
    key = store.find_key(TenantId("t"), "digest")
    listed = [(one.id, one.tenant_id, one.created_s, one.requests) for one in store.summaries()]
    return Rest(store.history("ask_3"), key, listed)


def said(ask):
    try:
        return ask()
    except JournalFault as fault:
        return fault.message


def is_prefix(found, whole) -> bool:
    """Equal but for tokens and an end that are missing."""
    if found.asked != whole.asked:
        return False
    return all(
        one.request == other.request
        and one.output == other.output[: len(one.output)]
        and one.finished in (None, other.finished)
        for one, other in zip(found.requests, whole.requests, strict=True)
    )


class Journal:
    """A small journal: its files, and what was true after each commit of the last part."""

    def __init__(self, folder, *, has_log):
        self.folder = folder
        self._make_small_pages()
        commits = list(commits_of_three_asks())
        in_file = len(commits) - 3 if has_log else len(commits)
        self._commit(commits[:in_file])
        store = SqliteStore(folder, wall_s=lambda: 2_000)
        self.moments = [running_of(store)[0]]
        for records in commits[in_file:]:
            store.commit(records)
            self.moments.append(running_of(store)[0])
        self.rest = rest_of(store)
        if not has_log:
            store.close()
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files.pop(FILE_NAME + "-shm", None)
        store.close()

    def _make_small_pages(self):
        """So that all bytes of all pages take seconds, not minutes."""
        raw = sqlite3.connect(self.folder / FILE_NAME)
        raw.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
        raw.execute("CREATE TABLE passing (one)")
        raw.execute("DROP TABLE passing")
        raw.close()

    def _commit(self, commits):
        store = SqliteStore(self.folder, wall_s=lambda: 2_000)
        for records in commits:
            store.commit(records)
        store.close()

    def damaged(self, name, content):
        """Put these bytes instead of one file's; the folder."""
        for path in self.folder.iterdir():
            path.unlink()
        for other, kept in self.files.items():
            (self.folder / other).write_bytes(content if other == name else kept)
        return self.folder


def commits_of_three_asks():
    """Two that run, one that is over and has a key, and a request without an ask."""
    one, two, three, stray = (
        dataclasses.replace(a_request(prompt_tokens=3), id=RequestId(f"req_{number}"))
        for number in range(1, 5)
    )
    yield [*begun(one), ask_of(one, ask_id="ask_1"), tokens(one, 0, 100, 101)]
    yield [*begun(two), ask_of(two, ask_id="ask_2"), tokens(two, 0, 200)]
    yield [*begun(three), ask_of(three, ask_id="ask_3", key_digest="digest"), tokens(three, 0, 300)]
    yield [finished(three, 1)]
    yield begun(stray)
    yield [tokens(one, 2, 102)]
    yield [tokens(two, 1, 201)]
    yield [tokens(one, 3, 103)]


def flipped(content, at) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


def outcome(journal, content) -> str:
    """Open it as a server does, and hold what it says against the truth."""
    store, (truth,) = None, journal.moments
    try:
        store = SqliteStore(journal.damaged(FILE_NAME, content), synchronous="OFF")
        running, aside = running_of(store)
        noticed = store.verify()
        if not noticed:
            assert (running, rest_of(store)) == (truth, journal.rest), "verify calls it sound"
            return "as it was"
        histories = {name: said(lambda name=name: store.history(name)) for name in ASKS}
    except JournalFault:
        return "refused"
    finally:
        if store is not None:
            store.close()
    for name, ask in running.asks.items():
        assert ask == truth.asks[name], "served, and not as it was"
    lost = truth.asks.keys() - running.asks.keys()
    assert len(lost) <= len(aside), "an ask vanished, and nobody was told"
    for name, found in histories.items():
        if found is not None and not isinstance(found, str):
            assert is_prefix(found, truth.asks.get(name, journal.rest.over))
    orphans = {request_id for request_id, _ in running.orphans}
    served = {one.request.id for ask in running.asks.values() for one in ask.requests}
    assert not orphans & served, "it would be ended while it runs"
    return f"{len(lost)} set aside"


@pytest.fixture
def quick_folder(tmp_path):
    """In memory, where there is such a thing: it is written ten thousands of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="mantle-") as folder:
        yield Path(folder)


@pytest.fixture
def checkpointed(quick_folder):
    return Journal(quick_folder, has_log=False)


@pytest.fixture
def logged(quick_folder):
    return Journal(quick_folder, has_log=True)


def test_any_byte_of_the_file_may_change(checkpointed):
    content = checkpointed.files[FILE_NAME]
    counts = Counter(outcome(checkpointed, flipped(content, at)) for at in range(len(content)))
    assert counts["as it was"] > 1_000, "what is unused in the pages"
    assert counts["1 set aside"] > 1_000, "one ask set aside, the other one served"
    assert counts["refused"] < len(content) / 5


def test_the_file_may_end_anywhere(checkpointed):
    """Of a file that is empty (or has one byte: SQLite calls that empty) a new journal is made."""
    content = checkpointed.files[FILE_NAME]
    counts = Counter(outcome(checkpointed, content[:size]) for size in range(2, len(content)))
    assert counts["refused"] > len(content) / 2


def log_outcome(journal, name, content) -> int | str:
    """The log's checksums cut off what follows the damage: after which commit are we?"""
    store = None
    try:
        store = SqliteStore(journal.damaged(name, content), synchronous="OFF")
        running, aside = running_of(store)
        assert aside == set()
        assert store.verify() == []
    except JournalFault:
        return "refused"
    finally:
        if store is not None:
            store.close()
    return journal.moments.index(running)  # raises when it is none of them


def test_any_byte_of_the_log_may_change(logged):
    log = logged.files[LOG_NAME]
    counts = Counter(log_outcome(logged, LOG_NAME, flipped(log, at)) for at in range(len(log)))
    assert set(counts) == set(range(len(logged.moments) - 1)), "each commit is lost by some byte"


def test_the_log_may_end_anywhere(logged):
    log = logged.files[LOG_NAME]
    kept = [log_outcome(logged, LOG_NAME, log[:size]) for size in range(len(log) + 1)]
    assert kept == sorted(kept), "the longer the log, the more is kept"
    assert set(kept) == set(range(len(logged.moments)))


def test_header_of_the_file_may_change_while_there_is_a_log(logged):
    content = logged.files[FILE_NAME]
    counts = Counter(
        log_outcome(logged, FILE_NAME, flipped(content, at)) for at in range(HEADER_BYTES)
    )
    assert counts[len(logged.moments) - 1] > 0


def test_commands_say_what_is_wrong_without_a_stack_trace(checkpointed):
    content, run = checkpointed.files[FILE_NAME], CliRunner().invoke
    codes = Counter()
    for at in range(0, len(content), 13):
        folder = checkpointed.damaged(FILE_NAME, flipped(content, at))
        for command in (["ls"], ["ls", "--json"], ["verify"], ["show", "ask_1"]):
            done = run(journal, [*command, "--data-dir", str(folder)])
            assert done.exit_code in (0, 1, 2), (at, command, done.exception)
            assert isinstance(done.exception, SystemExit | None), (at, command, done.exception)
            codes[done.exit_code] += 1
    assert min(codes[0], codes[2]) > 100


def unreadable(checkpointed) -> bytes:
    """It can be opened, but not read: so that the server notices later."""
    content = checkpointed.files[FILE_NAME]
    for at in range(len(content)):
        damaged = flipped(content, at)
        with contextlib.suppress(JournalFault):
            store = SqliteStore(checkpointed.damaged(FILE_NAME, damaged), synchronous="OFF")
            with contextlib.closing(store):
                if isinstance(said(store.recover), str):
                    return damaged
    raise AssertionError("no such byte")


@pytest.mark.process
@pytest.mark.parametrize("make", [lambda _: b"not a journal" * 100, unreadable])
def test_server_refuses_a_damaged_journal_and_says_what_to_do(checkpointed, tmp_path, make):
    journal_file = tmp_path / FILE_NAME
    journal_file.write_bytes(make(checkpointed))
    mantle = [sys.executable, "-m", "mantle.cli.main"]
    there = ["--data-dir", str(tmp_path)]
    script = write_script(tmp_path, script_of("a"))
    add = [*mantle, "models", "add", str(script), "--name", "fake", *there]
    subprocess.run(add, check=True, capture_output=True, timeout=60)
    serve = [*mantle, "serve", "--port", "0", *there]
    refused = subprocess.run(serve, capture_output=True, text=True, timeout=60)
    error = refused.stderr.partition("Error: ")[2]
    assert refused.returncode == 2
    assert str(journal_file) in error
    assert "move it" in error
    assert "Traceback" not in refused.stderr
    assert "Warning" not in refused.stderr
    for path in tmp_path.glob(FILE_NAME + "*"):
        path.rename(path.with_name("damaged-" + path.name))
    start_server(tmp_path).stop()
