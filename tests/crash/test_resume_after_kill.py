"""A server that is killed anywhere, and started again: what a client was shown goes on, exactly."""

import json
import subprocess
import sys

import httpx
import pytest

from mantle.core.crash_point import CRASH_POINTS
from mantle.testing.scripts import script_of, write_script
from tests.running_server import start_server

pytestmark = pytest.mark.process

LETTERS = [chr(code) for code in range(ord("a"), ord("a") + 26)]
SCRIPT = script_of(*LETTERS, step_ms=15.0)
TEXT = "".join(LETTERS)
DEADLINE_S = 30


class Site:
    """One data folder; servers start on it and die."""

    def __init__(self, folder, journal):
        self.folder = folder
        self.started = []
        self.journal = journal
        path = write_script(folder, SCRIPT)
        self._mantle("models", "add", str(path), "--name", "fake")
        self.api_key = self._mantle("tenants", "add", "t").strip().splitlines()[-1]
        config = {"pool": {"preload": ["fake"]}, "journal": self.journal}
        (folder / "mantle.yaml").write_text(json.dumps(config))

    def _mantle(self, *words):
        command = [sys.executable, "-m", "mantle.cli.main", *words, "--data-dir", str(self.folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout

    def start(self, crash_point=""):
        config = str(self.folder / "mantle.yaml")
        env = {"MANTLE_CRASH_POINT": crash_point}
        server = start_server(self.folder, "--config", config, env=env)
        self.started.append(server)
        headers = {"authorization": f"Bearer {self.api_key}"}
        return server, httpx.Client(base_url=server.base_url, headers=headers, timeout=DEADLINE_S)

    def stop(self):
        for server in self.started:
            if server.process.poll() is None:
                server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def site(request, tmp_path):
    journal = {"store": request.param}
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        journal |= {"url": server.url, "schema": request.getfixturevalue("postgres_schema")}
    made = Site(tmp_path, journal)
    yield made
    made.stop()


class Seen:
    """What a client has of a stream: texts by choice, positions, and the request's id."""

    def __init__(self):
        self.request_id = None
        self.positions = []
        self.texts = {}
        self.is_done = False

    def read(self, client, method, path, **kwargs):
        """Read until the end, or until the server is gone."""
        try:
            with client.stream(method, path, **kwargs) as response:
                assert response.status_code == 200, response.read()
                self.request_id = response.headers["x-request-id"]
                for line in response.iter_lines():
                    self._line(line)
        except httpx.TransportError:
            return

    def _line(self, line):
        if line.startswith("id: "):
            assert line[4:] not in self.positions, "a position came twice"
            self.positions.append(line[4:])
        elif line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            for choice in json.loads(line[6:])["choices"]:
                text = choice["delta"].get("content") or ""
                index = choice["index"]
                self.texts[index] = self.texts.get(index, "") + text


def body(**fields):
    messages = [{"role": "user", "content": "go"}]
    return {"model": "fake", "messages": messages, "stream": True, **fields}


def go_on(site, seen):
    """Start the server again and read the rest."""
    _, client = site.start()
    with client:
        headers = {"last-event-id": seen.positions[-1]} if seen.positions else {}
        seen.read(client, "GET", f"/v1/streams/{seen.request_id}", headers=headers)


@pytest.mark.parametrize("passes", [1, 2, 9])
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_what_was_shown_goes_on_at_the_exact_token(site, point, passes) -> None:
    server, client = site.start(f"{point}:{passes}")
    seen = Seen()
    with client:
        seen.read(client, "POST", "/v1/chat/completions", json=body(n=2))
    assert server.process.wait(DEADLINE_S) == -9
    assert not seen.is_done
    if passes == 9:
        assert seen.request_id is not None, "by then the client was told of its request"
    if seen.request_id is None:
        _, client = site.start()
        with client:
            seen.read(client, "POST", "/v1/chat/completions", json=body(n=2))
    else:
        go_on(site, seen)
    assert seen.is_done
    assert seen.texts == {0: TEXT, 1: TEXT}


def test_several_deaths_of_one_request(site) -> None:
    seen = Seen()
    _, client = site.start("after_commit:6")
    with client:
        seen.read(client, "POST", "/v1/chat/completions", json=body())
    for _ in range(2):
        server, client = site.start("after_acknowledge:5")
        with client:
            headers = {"last-event-id": seen.positions[-1]} if seen.positions else {}
            seen.read(client, "GET", f"/v1/streams/{seen.request_id}", headers=headers)
        assert server.process.wait(DEADLINE_S) == -9
    go_on(site, seen)
    assert seen.is_done
    assert seen.texts == {0: TEXT}


def test_a_repeated_key_gets_the_reply_of_the_first_try(site) -> None:
    keyed = {"idempotency-key": "order-17"}
    server, client = site.start("after_commit:9")
    with client, pytest.raises(httpx.TransportError):
        client.post("/v1/chat/completions", json=body(stream=False), headers=keyed)
    assert server.process.wait(DEADLINE_S) == -9
    _, client = site.start()
    with client:
        replies = [
            client.post("/v1/chat/completions", json=body(stream=False), headers=keyed)
            for _ in range(2)
        ]
        first, second = (reply.json() for reply in replies)
        assert first == second
        assert first["choices"][0]["message"]["content"] == TEXT
        other = client.post("/v1/chat/completions", json=body(n=2), headers=keyed)
        assert other.status_code == 409


def test_a_second_server_takes_the_journal_over_and_the_first_one_stops(site) -> None:
    old, old_client = site.start()
    _, new_client = site.start()
    with old_client, new_client:
        refused = old_client.post("/v1/chat/completions", json=body(stream=False))
        assert refused.status_code == 503, "nothing is acknowledged that is not durable"
        assert old.process.wait(DEADLINE_S) == 2, "a clear failure, no trace"
        reply = new_client.post("/v1/chat/completions", json=body(stream=False))
        assert reply.json()["choices"][0]["message"]["content"] == TEXT
    log = (site.folder / "server.log").read_text()
    assert "another server has opened this journal" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_retention_none_leaves_nothing_readable(site) -> None:
    config = {"pool": {"preload": ["fake"]}, "journal": {**site.journal, "retention": "none"}}
    (site.folder / "mantle.yaml").write_text(json.dumps(config))
    secret = "a secret nobody may find"
    server, client = site.start()
    with client:
        messages = [{"role": "user", "content": secret}]
        reply = client.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
        assert reply.json()["choices"][0]["message"]["content"] == TEXT
        gone = client.get(f"/v1/streams/{reply.headers['x-request-id']}")
        assert gone.status_code == 404
    server.stop()
    written = b"".join(path.read_bytes() for path in site.folder.glob("journal.db*"))
    assert reply.headers["x-request-id"].encode() in written, "the control: it was written down"
    assert secret.encode() not in written
    assert TEXT.encode() not in written
