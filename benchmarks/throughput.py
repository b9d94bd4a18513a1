"""How many tokens a second does Mantle serve, beside llama.cpp's own server on the same weights?

How to read it. Both servers run the same Q4_0 file (made here from the demo weights) with the same
number of threads and 16 slots; llama-server is built from the source that Mantle's engine comes
from, with the same flags (`same_kernel_flags`). Each request has a prompt of its own, 128 random
token ids never sent before (so no prefix cache helps either side), and asks for exactly 128
tokens, greedily, streamed, end-of-turn ignored; a reply with
another count is a failure, and a failure ends the benchmark. N streams means that N requests are
always in flight until `--waves` times N are done. `tokens_per_s` counts output tokens over the
whole wall time, prefill included; it is the median of interleaved rounds, `_iqr` its spread.
`ratio` is the median of the rounds' own ratios. The top-level keys are for 16 streams.
Client, gateway and engine share the machine's cores on both sides.
Goal: ratio >= 1.0 at every count.
"""

import argparse
import contextlib
import itertools
import os
import random
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import load
import measure
from demo_weights import q4_0_weights
from mantle_server import running_mantle
from peers import llama_server
from peers.process import free_port

MODEL: Final = "bench"
STREAM_COUNTS: Final = (1, 4, 8, 16)
SLOTS: Final = 16
PROMPT_TOKENS: Final = 128
OUTPUT_TOKENS: Final = 128
# What only llama-server reads: no prompt cache, and the shortest sampler chain it has.
PEER_ONLY: Final[dict[str, Any]] = {"cache_prompt": False, "samplers": ["temperature"]}


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str
    api_key: str
    extra: dict[str, Any]


def main() -> None:
    arguments = _arguments()
    weights = q4_0_weights()
    with contextlib.ExitStack() as stack:
        servers = _start(stack, weights, arguments)
        for server in servers:
            _ask(server, _bodies(server, 4, seed=0), 4)  # warm up
        by_streams = {
            str(streams): _compare(servers, streams, arguments) for streams in arguments.streams
        }
    result: dict[str, Any] = dict(by_streams.get(str(SLOTS), {}))
    result |= {"by_streams": by_streams, "threads": arguments.threads, "seed": arguments.seed}
    result |= {"rounds": arguments.rounds, "waves": arguments.waves, "weights": weights.name}
    result |= llama_server.flags_report()
    measure.print_result(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waves", type=int, default=2, help="requests of each stream, a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAM_COUNTS))
    return parser.parse_args()


def _start(
    stack: contextlib.ExitStack, weights: Path, arguments: argparse.Namespace
) -> list[Server]:
    window = 512
    llama_server.build()
    peer_url = stack.enter_context(
        llama_server.running_llama_server(
            weights, slots=SLOTS, threads=arguments.threads, ctx=window, port=free_port()
        )
    )
    engine = {"slots": SLOTS, "threads": arguments.threads, "window_tokens": window}
    mantle = stack.enter_context(running_mantle(MODEL, weights, engine=engine))
    return [
        Server("mantle", mantle.url, mantle.api_key, {"ignore_eos": True}),
        Server("peer", peer_url, "none", {"ignore_eos": True, **PEER_ONLY}),
    ]


def _compare(servers: list[Server], streams: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One stream count: interleaved rounds, both servers on the same prompts, new ones each round.

    A prompt that came back would be found in Mantle's prefix cache, and the peer has its own off.
    """
    count = streams * arguments.waves
    seeds = {
        server.name: itertools.count(arguments.seed * 1_000_000 + streams * 1_000)
        for server in servers
    }

    def ask(server: Server) -> load.LoadResult:
        bodies = _bodies(server, count, seed=next(seeds[server.name]))
        return _ask(server, bodies, streams)

    asks = {server.name: partial(ask, server) for server in servers}
    rounds = measure.interleaved(asks, arguments.rounds)
    own = [result.output_tokens_per_s for result in rounds["mantle"]]
    peer = [result.output_tokens_per_s for result in rounds["peer"]]
    facts = {
        "tokens_per_s": measure.median(own),
        "peer_tokens_per_s": measure.median(peer),
        "ratio": measure.median(a / b for a, b in zip(own, peer, strict=True)),
        "tokens_per_s_iqr": measure.iqr(own),
        "peer_tokens_per_s_iqr": measure.iqr(peer),
        "ttft_ms_p50": _ttft_ms_p50(rounds["mantle"]),
        "peer_ttft_ms_p50": _ttft_ms_p50(rounds["peer"]),
    }
    print(f"{streams:3d} streams: {measure.rounded(facts, 2)}", flush=True)
    return facts


def _ttft_ms_p50(results: list[load.LoadResult]) -> float:
    return measure.median(exchange.ttft_ms for result in results for exchange in result.good)


def _bodies(server: Server, count: int, *, seed: int) -> list[dict[str, Any]]:
    chooser = random.Random(seed)
    common = {
        "model": MODEL,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    # Ids below 1,000 are special tokens and single characters; above, words and their pieces.
    prompts = [[chooser.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    return [{**common, "prompt": prompt} for prompt in prompts]


def _ask(server: Server, bodies: list[dict[str, Any]], streams: int) -> load.LoadResult:
    url = f"{server.url}/v1/completions"
    result = load.run_load(url, bodies, concurrency=streams, api_key=server.api_key)
    for exchange in result.good:
        counts = (exchange.prompt_tokens, exchange.output_tokens)
        if counts != (PROMPT_TOKENS, OUTPUT_TOKENS):
            exchange.error = f"expected {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, got {counts}"
    if result.failures:
        count = len(result.failures)
        sys.exit(f"{server.name}: {count} requests failed, first: {result.failures[0]}")
    return result


if __name__ == "__main__":
    main()
