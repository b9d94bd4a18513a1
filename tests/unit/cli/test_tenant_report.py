"""Does the report come from the running server, and does each way to miss it get one clear line?"""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from mantle.cli.main import main

REPORT = {
    "object": "report",
    "window_s": 312.0,
    "served_cost": 1234.0,
    "certificate": 0.125,
    "certificate_highest": 0.5,
    "lanes": [],
    "sharing": [
        {"lane": "standard", "model": "m", "certificate": 0.1, "certificate_highest": 0.5,
         "windows_compared": 3, "jain_index": 0.9},
        {"lane": "flex", "model": "m", "certificate": 0.0, "certificate_highest": 0.0,
         "windows_compared": 0, "jain_index": None},
    ],
    "tenants": [
        {"tenant": "acme", "lane": "standard", "weight": 2.0, "served_cost": 617.0,
         "share_of_lane": 0.75, "share": 0.5, "parks": 4, "running": 5, "queued": 6,
         "waits": {"count": 7, "mean_s": 1.5, "p50_s": 1.25, "p99_s": 9.75}},
    ],
    "omitted": 0,
}  # fmt: skip


class Answering:
    """A server that gives one answer to everything and keeps what it was asked."""

    def __init__(self, status, body, location):
        answering = self
        self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answering.asked.append((self.path, self.headers["authorization"]))
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def answering():
    made = []

    def make(status=200, body=REPORT, location=None):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        made.append(Answering(status, raw, location))
        return made[-1]

    yield make
    for server in made:
        server.close()


def mantle(*args, fails=False, **env):
    quiet = {"MANTLE_URL": None, "MANTLE_ADMIN_KEY": None, "MANTLE_CONFIG": None}
    runner = CliRunner(env={**quiet, "http_proxy": "http://127.0.0.1:1", **env})
    result = runner.invoke(main, ["tenants", "report", *args])
    assert result.exit_code == (2 if fails else 0), result.output
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == (1 if fails else 0)
    return result.output


def test_table_shows_each_tenant_and_the_verdict(answering):
    server = answering()
    shown = mantle("--url", server.url + "/", "--limit", "7", MANTLE_ADMIN_KEY="mk-admin")
    assert server.asked == [("/admin/v1/report?limit=7", "Bearer mk-admin")]
    (row,) = [line for line in shown.splitlines() if "acme" in line]
    cells = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert cells == [
        "acme", "standard", "2", "617", "75.0%", "50.0%", "7", "1.50 s", "1.25 s", "9.75 s",
        "4", "5", "6",
    ]  # fmt: skip
    assert "last 312 s" in shown
    assert "certificate 0.125, at most 0.500" in shown
    assert "index 0.900 (3 windows" in " ".join(shown.split())


def test_json_is_all_that_the_server_said(answering):
    server = answering()
    shown = mantle("--json", "--admin-key", "k", MANTLE_URL=server.url)
    assert json.loads(shown) == REPORT


def test_address_comes_from_the_config(answering, tmp_path):
    server = answering()
    config = tmp_path / "mantle.yaml"
    config.write_text(f"server: {{host: 0.0.0.0, port: {server.url.rpartition(':')[2]}}}\n")
    assert "acme" in mantle("--config", str(config), "--admin-key", "k")


def test_rows_left_out_are_counted(answering):
    server = answering(body={**REPORT, "omitted": 12})
    assert "12 rows more" in mantle("--url", server.url, "--admin-key", "k")


def test_no_server_is_said_with_its_address():
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = mantle("--url", url, "--admin-key", "k", fails=True)
    assert f"no server answers at {url}" in said
    assert "mantle serve" in said


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"{}", "does not take this admin key"),
        (404, b"{}", "`mantle admin key` makes one"),
        (500, b"oops", "answers 500"),
        (200, b"<html>", "does not answer as Mantle does"),
        (200, b"{}", "does not answer as Mantle does"),
    ],
)
def test_each_refusal_says_what_helps(answering, status, body, words):
    server = answering(status, body)
    said = mantle("--url", server.url, "--admin-key", "k", fails=True)
    assert words in said
    assert server.url in said


def test_without_a_key_nothing_is_asked(answering):
    server = answering()
    assert "MANTLE_ADMIN_KEY" in mantle("--url", server.url, fails=True)
    assert "no key has" in mantle("--url", server.url, "--admin-key", "a\nb", fails=True)
    assert server.asked == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "localhost:8000", "http://[half"])
def test_what_is_no_address_is_refused(url):
    said = mantle("--url", url, "--admin-key", "k", fails=True)
    assert url in said


def test_key_does_not_follow_a_redirect(answering):
    other = answering()
    server = answering(302, b"", location=f"{other.url}/elsewhere")
    mantle("--url", server.url, "--admin-key", "k")
    assert [key for _, key in server.asked] == ["Bearer k"]
    assert [key for _, key in other.asked] == [None]
