"""One data folder on which servers start and die, and what a client has seen of a stream."""

import json

import httpx

from tests.running_server import say, start_server

DEADLINE_S = 30


class Site:
    """One data folder, with one tenant; servers start on it and die."""

    def __init__(self, folder, journal, *, model, **config):
        """`config`: sections of the config besides these."""
        self.folder = folder
        self.started = []
        self.journal = journal
        self.config = {"pool": {"preload": [model]}, **config}
        self.api_key = self.mantle("tenants", "add", "t").strip().splitlines()[-1]

    def mantle(self, *words):
        """What a command says."""
        return say(self.folder, *words)

    def start(self, crash_point=""):
        config = self.folder / "mantle.yaml"
        config.write_text(json.dumps({**self.config, "journal": self.journal}))
        env = {"MANTLE_CRASH_POINT": crash_point}
        server = start_server(self.folder, "--config", str(config), env=env)
        self.started.append(server)
        headers = {"authorization": f"Bearer {self.api_key}"}
        return server, httpx.Client(base_url=server.base_url, headers=headers, timeout=DEADLINE_S)

    def stop(self):
        for server in self.started:
            if server.process.poll() is None:
                server.stop()


def journal_place(request, store):
    """The section `journal` of the config, for a store of the test's own."""
    if store == "sqlite":
        return {"store": store}
    server = request.getfixturevalue("postgres")
    schema = request.getfixturevalue("postgres_schema")
    return {"store": store, "url": server.url, "schema": schema}


class Choice:
    """One choice of a reply, as far as a client has it."""

    def __init__(self):
        self.text = ""
        self.tokens = []
        self.finish = None

    def __eq__(self, other):
        mine, theirs = ((x.text, x.tokens, x.finish) for x in (self, other))
        return mine == theirs

    def __repr__(self):
        return f"Choice({self.text!r}, {len(self.tokens)} tokens scored, {self.finish})"

    def take(self, choice):
        assert self.finish is None, "nothing comes after the end of a choice"
        self.text += choice["delta"].get("content") or ""
        scored = (choice.get("logprobs") or {}).get("content") or []
        self.tokens += [(one["token"], one["bytes"], one["logprob"]) for one in scored]
        self.finish = choice["finish_reason"]


class Seen:
    """What a client has of a stream: choices by index, usage, positions, and the request's id."""

    def __init__(self):
        self.request_id = None
        self.positions = []
        self.choices = {}
        self.usage = None
        self.is_done = False

    @property
    def texts(self):
        return {index: choice.text for index, choice in self.choices.items()}

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

    def go_on(self, client):
        """Read the rest, on any server."""
        headers = {"last-event-id": self.positions[-1]} if self.positions else {}
        self.read(client, "GET", f"/v1/streams/{self.request_id}", headers=headers)

    def _line(self, line):
        if line.startswith("id: "):
            assert line[4:] not in self.positions, "a position came twice"
            self.positions.append(line[4:])
        elif line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            assert "error" not in event, event
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                self.choices.setdefault(choice["index"], Choice()).take(choice)
