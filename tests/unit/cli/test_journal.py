"""Does `mantle journal` say what is there, find damage, and leave a running server alone?"""

import json
import sqlite3

import pytest
from click.testing import CliRunner

from mantle.cli.main import main
from mantle.journal.stores.postgres import PostgresStore
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


def test_usage_is_summed_by_hour(mantle, store):
    line = json.loads(mantle("usage", "--json"))
    assert (line["hour_s"], line["requests"], line["output_tokens"]) == (0, 1, 3)
    assert line["outcome"] == "completed"
    mantle("compact", "--keep-s", "0")
    assert "3 output" in mantle("usage"), "it outlives the request"
    assert mantle("usage", "--since", "2026-01-01") == ""


def test_a_journal_in_a_database_is_found_by_the_config(
    mantle, postgres, postgres_schema, tmp_path
):
    store = PostgresStore(postgres.url, schema=postgres_schema, wall_s=lambda: 2_000.0)
    store.commit(whole("req_there")[1])
    store.close()
    config = tmp_path / "mantle.yaml"
    place = {"store": "postgres", "url": postgres.url, "schema": postgres_schema}
    config.write_text(json.dumps({"journal": place}))
    assert "req_there" in mantle("ls", "--config", str(config))
    assert "sound" in mantle("verify", "--config", str(config))
    assert mantle("compact", "--keep-s", "0", "--config", str(config)).startswith("1 erased")
    assert "3 output" in mantle("usage", "--config", str(config))


@pytest.mark.parametrize(
    ("journal", "said"),
    [
        ({"store": "none"}, "nothing is written down"),
        ({"store": "postgres"}, "MANTLE_JOURNAL_URL"),
        ({"store": "postgres", "url": "host=/nowhere"}, "cannot be reached"),
        ({"store": "sqlite", "url": "host=/nowhere"}, "remove one of the two"),
        ({"store": "postgres", "schema": "a-b"}, "journal.schema: use"),
    ],
)
def test_a_config_that_leads_nowhere_is_said(mantle, tmp_path, journal, said):
    config = tmp_path / "mantle.yaml"
    config.write_text(json.dumps({"journal": journal}))
    assert said in mantle("ls", "--config", str(config), fails=True)
