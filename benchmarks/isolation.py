"""What does a noisy neighbour do to a quiet tenant? On the real model, beside its peers.

How to read it. A victim sends one short request a second (32 prompt tokens, 16 out, streamed); a
neighbour sends (a) 50 or (b) 200 long requests at once (200 prompt tokens, 256 out), or (c) keeps
32 long requests in flight (steady overload; prompts of 200 to 400 tokens). `*_ratio` of a scenario
is the victim's p99 time to first token with the neighbour divided by its p99 alone, measured just
before on the same server; `victim_itl_p99_ratio` likewise for the gaps between its tokens. The
top-level keys are the worst over the scenarios and neighbour lanes. For Mantle the victim's lane is
Priority or Standard and the neighbour's Standard or Flex. llama-server has no tenants and no
lanes; LiteLLM in front of it adds keys but no fairness. `aggregate_tokens_per_s_ratio`: in (c),
tokens a second of both together with isolation, divided by those of the same load sent by one
tenant in one lane, which is first in, first out. Client, gateway and engine share the cores.
Goals: Standard <= 1.5, Priority <= 1.25, aggregate >= 0.95.
"""

import argparse
import asyncio
import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import load
import measure
from demo_weights import q4_0_weights
from mantle_server import running_mantle
from peers import litellm_proxy, llama_server
from peers.process import free_port

MODEL: Final = "bench"
SLOTS: Final = 16
WINDOW: Final = 1024
VICTIM_KEY: Final = "sk-victim-00000000000000000000000000"
NOISY_KEY: Final = "sk-noisy-000000000000000000000000000"
SCENARIOS: Final = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server, and how the victim and the neighbour present themselves to it."""

    name: str
    url: str
    victim_key: str
    noisy_key: str
    victim_extra: dict[str, Any] = field(default_factory=dict)
    noisy_extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Watched:
    """What the victim saw, and what the server did in that time."""

    ttft_ms: list[float]
    gaps_ms: list[float]
    failures: int
    tokens_per_s: float


def main() -> None:
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        contestants = _contestants(stack, arguments)
        results = {one.name: _measure(one, arguments) for one in contestants}
    measure.print_result(_summary(results) | {"seconds": arguments.seconds, "by_server": results})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="victim requests a measurement")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=SCENARIOS)
    parser.add_argument("--no-peers", action="store_true", help="Mantle alone")
    return parser.parse_args()


def _contestants(
    stack: contextlib.ExitStack, arguments: argparse.Namespace
) -> Iterator[Contestant]:
    weights = q4_0_weights()
    engine = {"slots": SLOTS, "threads": arguments.threads, "window_tokens": WINDOW}
    with running_mantle(MODEL, weights, engine=engine, api_keys=(VICTIM_KEY, NOISY_KEY)) as mantle:
        for victim in ("priority", "default"):
            for noisy in ("default", "flex"):
                yield Contestant(
                    f"mantle {victim}|{noisy}",
                    mantle.url,
                    VICTIM_KEY,
                    NOISY_KEY,
                    {"service_tier": victim, "ignore_eos": True},
                    {"service_tier": noisy, "ignore_eos": True},
                )
        same = {"ignore_eos": True}
        yield Contestant("mantle fifo", mantle.url, NOISY_KEY, NOISY_KEY, same, same)
    if arguments.no_peers:
        return
    llama_server.build()
    extra = {"ignore_eos": True, "cache_prompt": False}
    with llama_server.running_llama_server(
        weights, slots=SLOTS, threads=arguments.threads, ctx=WINDOW, port=free_port()
    ) as url:
        yield Contestant("llama-server", url, "none", "none", extra, extra)
        with litellm_proxy.running_litellm(f"{url}/v1", MODEL) as proxy:
            yield Contestant(
                "litellm", proxy.url, proxy.api_key, proxy.api_key, *({"extra_body": extra},) * 2
            )


def _measure(contestant: Contestant, arguments: argparse.Namespace) -> dict[str, Any]:
    """The victim alone, then with each kind of neighbour."""
    return asyncio.run(_measure_all(contestant, arguments))


async def _measure_all(contestant: Contestant, arguments: argparse.Namespace) -> dict[str, Any]:
    chooser = random.Random(arguments.seed)
    await load.one(f"{contestant.url}/v1/completions", _victim_body(contestant, chooser),
                   api_key=contestant.victim_key)  # fmt: skip
    alone = await _watch(contestant, chooser, arguments.seconds, [])
    facts: dict[str, Any] = {"alone_ttft_ms_p99": _p99(alone.ttft_ms)}
    for scenario in arguments.scenarios:
        async with _neighbour(contestant, scenario, chooser) as streams:
            await asyncio.sleep(3.0)  # the burst is in
            watched = await _watch(contestant, chooser, arguments.seconds, streams)
        await asyncio.sleep(1.0)
        facts[scenario] = {
            "ttft_ratio": _p99(watched.ttft_ms) / _p99(alone.ttft_ms),
            "ttft_ms_p50": measure.median(watched.ttft_ms),
            "ttft_ms_p99": _p99(watched.ttft_ms),
            "itl_p99_ratio": _p99(watched.gaps_ms) / _p99(alone.gaps_ms),
            "tokens_per_s": watched.tokens_per_s,
            "victim_failures": watched.failures,
        }
        print(f"{contestant.name} {scenario}: {measure.rounded(facts[scenario], 2)}", flush=True)
    return facts


async def _watch(
    contestant: Contestant, chooser: random.Random, seconds: int, streams: list[load.Stream]
) -> Watched:
    """One victim request a second, on its own clock whatever becomes of the earlier ones."""
    url = f"{contestant.url}/v1/completions"
    started_s = time.perf_counter()
    asked = []
    for number in range(seconds):
        await asyncio.sleep(max(0.0, started_s + number - time.perf_counter()))
        body = _victim_body(contestant, chooser)
        asked.append(asyncio.create_task(load.one(url, body, api_key=contestant.victim_key)))
    replies = await asyncio.gather(*asked)
    ended_s = time.perf_counter()
    good = [reply for reply in replies if reply.error is None]
    tokens = sum(stream.events_between(started_s, ended_s) for stream in streams)
    tokens += sum(reply.output_tokens for reply in good)
    gaps = [
        (later - earlier) * 1e3
        for reply in good
        for earlier, later in zip(reply.token_times_s, reply.token_times_s[1:], strict=False)
    ]
    failed = len(replies) - len(good)
    return Watched(
        [reply.ttft_ms for reply in good] + [load.REPLY_S_MAX * 1e3] * failed,
        gaps,
        failed,
        tokens / (ended_s - started_s),
    )


@contextlib.asynccontextmanager
async def _neighbour(contestant: Contestant, scenario: str, chooser: random.Random) -> Any:
    """The neighbour's load; `streams` grows as it goes on."""
    url = f"{contestant.url}/v1/completions"
    streams: list[load.Stream] = []

    async def ask(prompt_tokens: int) -> None:
        body = _body(chooser, prompt_tokens, 256, contestant.noisy_extra)
        streams.append(load.Stream(url, body, api_key=contestant.noisy_key))
        await streams[-1].run()

    async def keep_asking() -> None:
        while True:
            await ask(chooser.choice((200, 300, 400)))

    if scenario == "c":
        tasks = [asyncio.create_task(keep_asking()) for _ in range(32)]
    else:
        count = {"a": 50, "b": 200}[scenario]
        tasks = [asyncio.create_task(ask(200)) for _ in range(count)]
    try:
        yield streams
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _victim_body(contestant: Contestant, chooser: random.Random) -> dict[str, Any]:
    return _body(chooser, 32, 16, contestant.victim_extra)


def _body(
    chooser: random.Random, prompt_tokens: int, output_tokens: int, extra: dict[str, Any]
) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": [chooser.randrange(1000, 40000) for _ in range(prompt_tokens)],
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


def _p99(values: list[float]) -> float:
    return measure.percentile(values, 99)


def _summary(results: dict[str, Any]) -> dict[str, Any]:
    def worst(prefix: str, key: str) -> float | None:
        found = [
            scenario[key]
            for name, facts in results.items()
            if name.startswith(prefix)
            for scenario in facts.values()
            if isinstance(scenario, dict)
        ]
        return max(found) if found else None

    summary: dict[str, Any] = {
        "victim_p99_ttft_ratio_standard": worst("mantle default|", "ttft_ratio"),
        "victim_p99_ttft_ratio_priority": worst("mantle priority|", "ttft_ratio"),
        "victim_itl_p99_ratio": worst("mantle default|", "itl_p99_ratio"),
        "llama_server_p99_ttft_ratio": worst("llama-server", "ttft_ratio"),
        "litellm_p99_ttft_ratio": worst("litellm", "ttft_ratio"),
    }
    fifo = results.get("mantle fifo", {}).get("c")
    isolated = results.get("mantle default|default", {}).get("c")
    if fifo and isolated:
        ratio = isolated["tokens_per_s"] / fifo["tokens_per_s"]
        summary["aggregate_tokens_per_s_ratio"] = ratio
    return summary


if __name__ == "__main__":
    main()
