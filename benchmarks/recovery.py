"""How soon does a stream go on after a kill -9, and is it whole? Worker, server, everything.

How to read it. 16 sampled streams of the demo model run at once under `numerics: exact`. At some
random moment a worker, the server process ("gateway"), or all processes die by kill -9; a dead
server is started again at once on the same folder, as a service manager would. Clients come back by
`Last-Event-ID`. `…_kill_next_token_ms_p50/_p99`: over all cut streams, from the kill to the end of
the longest pause after it. `model_load_ms_p50`: what the loads took by the server's own log;
`worker_kill_beyond_load_ms_p99` is without that of the same round, the others are with it.
`tokens_lost`, `tokens_doubled`: what clients saw against the reply that the journal gives
afterwards; `billed_wrongly`: streams whose usage is not the number of those tokens. `texts_equal`:
share of cut streams whose text is that of the undisturbed run (all 16 at once, no kill);
`texts_equal_fast` the same under `numerics: fast`, where only the prefix is promised.
`exact_speed_ratio`: tokens/s at 16 streams, exact over fast, median of interleaved rounds.
Goals: worker beyond load <= 1000 ms, gateway <= 3000 ms, lost = doubled = 0, texts_equal = 1.
"""

import argparse
import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx

import load
import measure
from demo_weights import demo_weights
from mantle_server import RunningMantle, running_mantle
from mortal_server import MortalServer, Victim
from watched_stream import WatchedStream, lost_and_doubled, next_token_ms

MODEL: Final = "bench"
STREAMS: Final = 16
TOKENS: Final = 96
KILL_AFTER_TOKENS: Final = (6, 40)
"""Of the slowest stream; a random number between these."""


@dataclass(slots=True)
class Tally:
    """What all kills of one kind came to."""

    next_token_ms: list[float] = field(default_factory=list)
    beyond_load_ms: list[float] = field(default_factory=list)
    loads_ms: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    billed_wrongly: int = 0
    equal: int = 0
    cut: int = 0


def main() -> None:
    arguments = _arguments()
    exact = {
        victim: asyncio.run(_kills("exact", victim, arguments.rounds, arguments))
        for victim in Victim
    }
    fast = asyncio.run(_kills("fast", Victim.GATEWAY, arguments.fast_rounds, arguments))
    ratios = _speed_ratios(arguments)
    tallies = [*exact.values(), fast]
    result: dict[str, Any] = {}
    for victim, tally in exact.items():
        for percent in (50, 99):
            value = measure.percentile(tally.next_token_ms, percent)
            result[f"{victim}_kill_next_token_ms_p{percent}"] = value
    worker = exact[Victim.WORKER]
    result |= {
        "worker_kill_beyond_load_ms_p99": measure.percentile(worker.beyond_load_ms, 99),
        "model_load_ms_p50": measure.median([ms for one in tallies for ms in one.loads_ms]),
        "tokens_lost": sum(one.lost for one in tallies),
        "tokens_doubled": sum(one.doubled for one in tallies),
        "billed_wrongly": sum(one.billed_wrongly for one in tallies),
        "texts_equal": _share(exact.values()),
        "texts_equal_fast": _share([fast]),
        "exact_speed_ratio": measure.median(ratios),
        "exact_speed_ratio_iqr": measure.iqr(ratios),
        "cut_streams": {victim: tally.cut for victim, tally in exact.items()},
        "rounds": arguments.rounds,
        "fast_rounds": arguments.fast_rounds,
        "streams": STREAMS,
        "seed": arguments.seed,
    }
    measure.print_result(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills of each kind, exact")
    parser.add_argument("--fast-rounds", type=int, default=10, help="kills under fast")
    parser.add_argument("--speed-rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


# --- kills --------------------------------------------------------------------------------------
async def _kills(
    numerics: str, victim: Victim, rounds: int, arguments: argparse.Namespace
) -> Tally:
    chooser = random.Random(f"{arguments.seed} {numerics} {victim}")
    engine = {
        "slots": STREAMS,
        "threads": arguments.threads,
        "window_tokens": 512,
        "numerics": numerics,
    }
    server = MortalServer(MODEL, demo_weights(), engine)
    tally = Tally()
    limits = httpx.Limits(max_connections=2 * STREAMS)
    client = httpx.AsyncClient(
        base_url=server.url, headers=server.headers, timeout=30, limits=limits
    )
    try:
        server.start()
        await asyncio.to_thread(server.wait_ready)
        truth = _streams()
        await asyncio.gather(*(stream.run(client) for stream in truth))
        for number in range(rounds):
            await _round(server, victim, client, truth, chooser, tally)
            await asyncio.to_thread(server.wait_ready)
            print(f"{numerics}, {victim}: {number + 1} of {rounds} kills", file=sys.stderr)
    finally:
        await client.aclose()
        server.remove()
    return tally


async def _round(
    server: MortalServer,
    victim: Victim,
    client: httpx.AsyncClient,
    truth: Sequence[WatchedStream],
    chooser: random.Random,
    tally: Tally,
) -> None:
    streams = _streams()
    running = [asyncio.create_task(stream.run(client)) for stream in streams]
    enough = chooser.randint(*KILL_AFTER_TOKENS)
    while min(len(stream.tokens) for stream in streams) < enough:
        if any(task.done() for task in running):
            break
        await asyncio.sleep(0.005)
    loads = len(server.load_times_ms())
    killed_s = time.perf_counter()
    await asyncio.to_thread(server.kill, victim)
    await asyncio.gather(*running)
    load_ms = max(server.load_times_ms()[loads:], default=0.0)
    tally.loads_ms.append(load_ms)
    for stream, undisturbed in zip(streams, truth, strict=True):
        replay = await stream.replay(client)
        lost, doubled = lost_and_doubled(stream.tokens, replay.tokens)
        tally.lost, tally.doubled = tally.lost + lost, tally.doubled + doubled
        tally.billed_wrongly += stream.billed_tokens != len(replay.tokens)
        pause_ms = next_token_ms(stream, killed_s)
        if pause_ms is None:
            continue
        tally.cut += 1
        tally.next_token_ms.append(pause_ms)
        tally.beyond_load_ms.append(pause_ms - load_ms)
        tally.equal += stream.text == undisturbed.text


def _streams() -> list[WatchedStream]:
    """The same asks in every round."""
    subjects = ("a lighthouse", "a fox", "the sea", "an old clock")
    return [
        WatchedStream(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"Tell me about {subjects[number % 4]}."}],
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "temperature": 0.8,
                "seed": number,
                "logprobs": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for number in range(STREAMS)
    ]


def _share(tallies: Any) -> float:
    tallies = list(tallies)
    return float(sum(one.equal for one in tallies) / max(1, sum(one.cut for one in tallies)))


# --- speed --------------------------------------------------------------------------------------
def _speed_ratios(arguments: argparse.Namespace) -> list[float]:
    """Exact over fast, one ratio a round."""
    seeds = itertools.count(arguments.seed * 1_000_000)
    engine = {"slots": STREAMS, "threads": arguments.threads, "window_tokens": 512}
    with ExitStack() as stack:
        servers = {
            numerics: stack.enter_context(
                running_mantle(MODEL, demo_weights(), engine={**engine, "numerics": numerics})
            )
            for numerics in ("exact", "fast")
        }
        for server in servers.values():
            _tokens_per_s(server, next(seeds))  # warm up
        asks = {
            name: partial(lambda server: _tokens_per_s(server, next(seeds)), server)
            for name, server in servers.items()
        }
        rounds = measure.interleaved(asks, arguments.speed_rounds)
    return [ours / theirs for ours, theirs in zip(rounds["exact"], rounds["fast"], strict=True)]


def _tokens_per_s(server: RunningMantle, seed: int) -> float:
    chooser = random.Random(seed)
    bodies = [
        {
            "model": MODEL,
            "prompt": [chooser.randrange(100, 256) for _ in range(64)],
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        for _ in range(STREAMS)
    ]
    url = f"{server.url}/v1/completions"
    result = load.run_load(url, bodies, concurrency=STREAMS, api_key=server.api_key)
    if result.failures:
        sys.exit(f"{len(result.failures)} requests failed, first: {result.failures[0]}")
    return result.output_tokens_per_s


if __name__ == "__main__":
    main()
