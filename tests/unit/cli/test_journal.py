"""Does `mantle journal` say what is there, find damage, and leave a running server alone?"""

import json
import sqlite3

import pytest
from click.testing import CliRunner

from mantle.cli.main import main
from mantle.journal.stores.sqlite import SqliteStore
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, tokens, whole


@pytest.fixture
def mantle(tmp_path):
    def run(*args, fails=False):
        result = CliRunner().invoke(
            main, ["journal", *args], env={"MANTLE_DATA_DIR": str(tmp_path)}
        )
        assert (result.exit_code != 0) == fails, result.output
        assert "Traceback" not in result.output
        return result.output

    return run


@pytest.fixture
def store(tmp_path):
    """A server's store, with one finished ask and one that runs."""
    store = SqliteStore(tmp_path, wall_s=lambda: 2_000.0)
    store.commit(whole("req_done")[1])
    running = a_request()
    asked = ask_of(running, ask_id="req_live", created_s=1_500)
    store.commit([*begun(running), asked, tokens(running, 0, 77, 78)])
    yield store
    store.close()


def test_lists_newest_first(mantle, store):
    lines = [json.loads(line) for line in mantle("ls", "--json").splitlines()]
    assert [line["id"] for line in lines] == ["req_live", "req_done"]
    assert [line["finished_s"] for line in lines] == [None, 2_000]
    assert "req_live" in mantle("ls", "--running")
    assert "req_done" not in mantle("ls", "--running")
    assert len(mantle("ls", "--limit", "1").splitlines()) == 1


def test_shows_counts_and_no_content(mantle, store):
    printed = mantle("show", "req_live")
    (choice,) = json.loads(printed)["choices"]
    assert (choice["prompt_tokens"], choice["output_tokens"], choice["outcome"]) == (10, 2, None)
    assert "77" not in printed
    assert json.loads(mantle("show", "req_done"))["choices"][0]["outcome"] == "completed"
    assert "there is no request" in mantle("show", "req_none", fails=True)


def test_finds_damage(mantle, store):
    assert "sound" in mantle("verify")
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE records SET blob = zeroblob(9) WHERE owner = 'req_done'")
    connection.commit()
    connection.close()
    assert "req_done: " in mantle("verify", fails=True)
    assert "damaged" in mantle("show", "req_done", fails=True)


def test_compact_erases_what_is_over_and_leaves_the_server_its_journal(mantle, store):
    assert mantle("compact", "--keep-s", "0").startswith("1 erased")
    assert "req_done" not in mantle("ls")
    store.commit(whole("req_next")[1])
    assert "req_next" in mantle("ls")


def test_a_missing_journal_is_said(mantle):
    assert "is not there" in mantle("ls", fails=True)
