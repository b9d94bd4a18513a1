"""How does a server live and end? It listens, drains on a signal, and closes in order.

Invariant: no stream ends silently: on the first SIGINT or SIGTERM live requests may finish for a
while; after that, or on a second signal, they end with an error their clients can see.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

import uvicorn

from mantle.cluster.wiring import Platform
from mantle.core.errors import JournalFault

log = logging.getLogger("mantle.cluster")

CLOSE_S_MAX = 5
"""Seconds for connections to close once every request has ended."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would end the process before we have closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_until_stopped(
    platform: Platform,
    listener: socket.socket,
    *,
    shutdown_s_max: float,
    beside: Sequence[Coroutine[Any, Any, None]] = (),
) -> None:
    """Serve on `listener` until a signal comes; `beside` runs as long as the server does.

    Raises `JournalFault` when the journal cannot be trusted any more: then nothing is drained,
    because nothing can be acknowledged.
    """
    server = _Server(
        uvicorn.Config(
            platform.app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S_MAX,
        )
    )
    stop = _on_signals()
    async with _running(platform, beside):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if await _stopped_in_order(platform, stop):
            log.info("shutting down: live requests may finish")
            await _drain(platform, stop, seconds_max=shutdown_s_max)
        else:
            await platform.dispatcher.close()
        server.should_exit = True
        await serving
    if platform.fail_stop.reason:
        raise JournalFault(platform.fail_stop.reason)


async def _stopped_in_order(platform: Platform, stop: asyncio.Queue[None]) -> bool:
    """Wait for a signal (true) or for something that the server cannot go on with."""
    signalled = asyncio.create_task(stop.get())
    failed = asyncio.create_task(platform.fail_stop.wait())
    await asyncio.wait({signalled, failed}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    failed.cancel()
    return not platform.fail_stop.reason


@contextlib.asynccontextmanager
async def _running(
    platform: Platform, beside: Sequence[Coroutine[Any, Any, None]]
) -> AsyncIterator[None]:
    try:
        await platform.start()
    except BaseException:
        for one in beside:
            one.close()  # they never began
        raise
    tasks = [asyncio.create_task(one) for one in beside]
    for task in tasks:
        task.add_done_callback(_tell_if_broken)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await platform.close()


def _tell_if_broken(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("changes on disk are no longer followed", exc_info=task.exception())


async def _drain(platform: Platform, stop: asyncio.Queue[None], *, seconds_max: float) -> None:
    """Let live requests finish; a second signal, or the time, ends them with an error frame."""
    platform.health.stopping = True
    draining = asyncio.create_task(platform.dispatcher.drain(seconds_max=seconds_max))
    again = asyncio.create_task(stop.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    draining.cancel()
    await platform.dispatcher.close()


def _on_signals() -> asyncio.Queue[None]:
    """One item for each SIGINT or SIGTERM from now on."""
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, None)
    return signals
