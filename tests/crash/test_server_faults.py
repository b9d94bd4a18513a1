"""A whole server as a process, on scripted models: deaths, disconnects, shutdown, restart."""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from mantle.core.script import Fault, Script
from mantle.testing.scripts import script_of, write_script
from tests.crash.processes import worker_pids, zombies_of
from tests.running_server import say, start_server

pytestmark = pytest.mark.process

LETTERS = [chr(code) for code in range(ord("a"), ord("a") + 26)]
SLOW = script_of(*LETTERS, step_ms=30.0)
DEADLINE_S = 20


def server_on(folder, **scripts: Script):
    """A server whose catalogue holds these scripts."""
    for name, script in scripts.items():
        path = write_script(folder, script, name=name)
        say(folder, "models", "add", str(path), "--name", name)
    preload = json.dumps(list(scripts))
    config = folder / "mantle.yaml"
    config.write_text(f"pool: {{preload: {preload}}}\n")
    made = say(folder, "tenants", "add", "t")
    server = start_server(folder, "--config", str(config))
    server.api_key = made.strip().splitlines()[-1]
    return server


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(**scripts):
        started.append(server_on(tmp_path, **scripts))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


def client_of(server):
    headers = {"Authorization": f"Bearer {server.api_key}"}
    return httpx.Client(base_url=server.base_url, headers=headers, timeout=DEADLINE_S)


def chat(model, **fields):
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


def until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def deltas(lines, kill_after=None, kill=None):
    """Texts of a chat stream's deltas; `kill` is called after so many of them."""
    texts, last = [], None
    for line in lines:
        if not line.startswith("data: "):
            continue
        last = line[6:]
        if last == "[DONE]":
            break
        body = json.loads(last)
        assert "error" not in body, body
        text = body["choices"][0]["delta"].get("content")
        if text:
            texts.append(text)
            if kill and len(texts) == kill_after:
                kill()
    assert last == "[DONE]"
    return texts


def test_stream_survives_the_death_of_its_worker(serve):
    server = serve(fake=SLOW)

    def kill():
        for pid in worker_pids(server):
            os.kill(pid, signal.SIGKILL)

    with client_of(server) as client:
        body = chat("fake", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert "".join(deltas(reply.iter_lines(), 5, kill)) == "".join(LETTERS)
        metrics = client.get("/metrics").text
    assert "mantle_worker_restarts 1.0" in metrics


def test_stream_survives_a_stopped_worker(serve):
    server = serve(fake=SLOW)

    def stop():
        for pid in worker_pids(server):
            os.kill(pid, signal.SIGSTOP)

    with client_of(server) as client:
        body = chat("fake", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert "".join(deltas(reply.iter_lines(), 5, stop)) == "".join(LETTERS)
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_health_says_within_five_seconds_that_no_worker_is_there(serve, how):
    server = serve(fake=SLOW)
    with client_of(server) as client:
        for pid in worker_pids(server):
            os.kill(pid, how)
        struck = time.monotonic()
        until(lambda: client.get("/health").status_code == 503, "it is noticed")
        assert time.monotonic() - struck < 5
        until(lambda: client.get("/ready").status_code == 200, "and mended")
        reply = client.post("/v1/chat/completions", json=chat("fake"))
        assert reply.json()["choices"][0]["message"]["content"] == "".join(LETTERS)


def test_worker_that_is_killed_again_and_again_comes_back_each_time(serve):
    server = serve(fake=script_of("fine"))
    with client_of(server) as client:
        for restarts in range(1, 6):
            (pid,) = worker_pids(server)
            os.kill(pid, signal.SIGKILL)
            restarted = f"mantle_worker_restarts {restarts}.0"
            until(lambda wanted=restarted: wanted in client.get("/metrics").text, "it restarts")
            until(lambda: client.get("/ready").status_code == 200, "it is back")
            (model,) = client.get("/v1/models").json()["data"]
            assert model["id"] == "fake"
            reply = client.post("/v1/chat/completions", json=chat("fake"))
            assert reply.json()["choices"][0]["message"]["content"] == "fine"
    assert not zombies_of(server)


def test_request_that_kills_every_worker_gets_an_error_and_others_live(serve):
    deadly = script_of("a", "b", "c", fault=Fault(kind="die", after_output_tokens=0, times=None))
    server = serve(deadly=deadly, fake=script_of("fine"))
    with client_of(server) as client:
        reply = client.post("/v1/chat/completions", json=chat("deadly"))
        assert reply.status_code == 503
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        until(lambda: client.get("/ready").status_code == 200, "the worker comes back")
        fine = client.post("/v1/chat/completions", json=chat("fake"))
        assert fine.json()["choices"][0]["message"]["content"] == "fine"
    assert not zombies_of(server)


def test_anthropic_stream_that_loses_every_worker_ends_with_an_error_event(serve):
    server = serve(fake=SLOW)
    body = {**chat("fake"), "max_tokens": 100, "stream": True}
    events = []
    with client_of(server) as client, client.stream("POST", "/v1/messages", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("event: "):
                continue
            events.append(line[7:])
            if events[-1] == "content_block_delta":
                for pid in worker_pids(server):
                    os.kill(pid, signal.SIGKILL)
    assert events[0] == "message_start"
    assert events[-1] == "error"
    assert "message_stop" not in events
    assert "content_block_stop" not in events


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_stops_the_engine(serve, stream):
    server = serve(fake=script_of("a", step_ms=20.0, repeat=True))

    def gauge(name):
        lines = client.get("/metrics").text.splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(name))

    def ask_and_leave():
        headers = {"Authorization": f"Bearer {server.api_key}"}
        with httpx.Client(base_url=server.base_url, headers=headers, timeout=0.5) as leaver:
            body = chat("fake", stream=stream, max_tokens=4_000)
            with leaver.stream("POST", "/v1/chat/completions", json=body) as reply:
                until(lambda: gauge("mantle_running_requests") == 1, "it runs")
                assert stream, reply.read()  # not streaming: the time-out comes first

    with client_of(server) as client:
        with contextlib.suppress(httpx.TimeoutException):
            ask_and_leave()
        until(lambda: gauge("mantle_running_requests") == 0, "the slot is free again")
        before = gauge("mantle_engine_steps_total")
        assert max(gauge("mantle_engine_steps_total") for _ in range(5)) - before <= 2
    assert "status=499" in Path(f"{server.data_dir}/server.log").read_text()


def test_two_hundred_streams_eight_at_a_time_all_end_with_done(serve):
    server = serve(fake=script_of("a", "b"))
    failures = []

    def many():
        with client_of(server) as client:
            for _ in range(25):
                body = chat("fake", stream=True)
                with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                    if "".join(deltas(reply.iter_lines())) != "ab":
                        failures.append(reply)

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_shutdown_lets_a_stream_finish_and_refuses_new_requests(serve):
    server = serve(fake=SLOW)
    refused = []

    def stop():
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "shutting down" in log_path.read_text(), "it drains")
        with client_of(server) as other:
            refused.append(other.post("/v1/chat/completions", json=chat("fake")).status_code)

    log_path = Path(server.data_dir) / "server.log"
    with client_of(server) as client:
        body = chat("fake", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert "".join(deltas(reply.iter_lines(), 5, stop)) == "".join(LETTERS)
    assert refused == [503]
    assert server.process.wait(timeout=DEADLINE_S) == 0


def test_second_signal_ends_streams_with_an_error_frame(serve):
    server = serve(fake=script_of("a", step_ms=20.0, repeat=True))
    seen = []
    with client_of(server) as client:
        body = chat("fake", stream=True, max_tokens=4_000)
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in filter(None, reply.iter_lines()):
                seen.append(line)
                if len(seen) == 5:
                    server.process.send_signal(signal.SIGTERM)
                    time.sleep(0.3)
                    server.process.send_signal(signal.SIGTERM)
    assert '"error"' in seen[-2]
    assert seen[-1] == "data: [DONE]"
    assert server.process.wait(timeout=DEADLINE_S) == 0


def test_keys_and_models_survive_a_restart_and_workers_do_not_outlive_the_server(serve, tmp_path):
    server = serve(fake=script_of("fine"))
    workers = worker_pids(server)
    assert workers
    server.process.kill()
    server.process.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers), "no orphans")
    again = start_server(tmp_path, "--config", str(tmp_path / "mantle.yaml"))
    again.api_key = server.api_key
    try:
        with client_of(again) as client:
            reply = client.post("/v1/chat/completions", json=chat("fake"))
            assert reply.json()["choices"][0]["message"]["content"] == "fine"
    finally:
        again.stop()


def test_thousand_requests_at_once_are_all_answered(serve):
    server = serve(fake=script_of("a"))
    statuses = []

    async def flood():
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": f"Bearer {server.api_key}"}
        async with httpx.AsyncClient(
            base_url=server.base_url, headers=headers, limits=limits, timeout=60
        ) as client:
            replies = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat("fake")) for _ in range(1_000))
            )
            statuses.extend(reply.status_code for reply in replies)

    asyncio.run(flood())
    assert statuses == [200] * 1_000
