"""What does writing every token down cost? The same load with the journal strict, relaxed and off.

How to read it. Three `mantle serve` processes run beside each other with the same weights and 16
slots and differ only in `journal:`; only one is under load at a time, in interleaved rounds. The
load is that of throughput.py at 16 streams. `strict_ratio` and `relaxed_ratio` are tokens a second
with the journal over without, the median of the rounds' own ratios; `_iqr` their spread.
`itl_added_ms_p50` and `_p99` are the percentiles of all gaps between tokens, strict minus off.
`durable_tokens_per_s_512`: 512 streams of a scripted model (no arithmetic at all, so this is what
gateway, scheduler and journal can carry on these cores), strict; `_ratio_512` the same over off.
Client, gateway and engine share the machine's cores.
Goal: strict_ratio >= 0.97.
"""

import argparse
import contextlib
import itertools
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import load
import measure
from demo_weights import q4_0_weights
from mantle_server import RunningMantle, running_mantle

MODEL: Final = "bench"
POLICIES: Final[dict[str, dict[str, Any]]] = {
    "strict": {"policy": "strict"},
    "relaxed": {"policy": "relaxed"},
    "off": {"store": "none"},
}
STREAMS: Final = 16
SCRIPTED_STREAMS: Final = 512
TOKENS: Final = 128
SCRIPT: Final = '{"reply": ["word "], "repeat": true, "slots": 512, "step_ms": 5.0}'


def main() -> None:
    arguments = _arguments()
    engine = {"slots": STREAMS, "threads": arguments.threads, "window_tokens": 512}
    real = _measure(q4_0_weights(), engine, STREAMS, arguments)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bench.script.json"
        script.write_text(SCRIPT)
        slots = {"slots": 256, "window_tokens": 512}
        scripted = _measure(script, slots, SCRIPTED_STREAMS, arguments)
    strict, off = (_gaps_ms(real[name]) for name in ("strict", "off"))
    rates_512 = [one.output_tokens_per_s for one in scripted["strict"]]
    result: dict[str, Any] = {
        "strict_ratio": measure.median(_ratios(real, "strict")),
        "strict_ratio_iqr": measure.iqr(_ratios(real, "strict")),
        "relaxed_ratio": measure.median(_ratios(real, "relaxed")),
        "relaxed_ratio_iqr": measure.iqr(_ratios(real, "relaxed")),
        "itl_added_ms_p50": measure.percentile(strict, 50) - measure.percentile(off, 50),
        "itl_added_ms_p99": measure.percentile(strict, 99) - measure.percentile(off, 99),
        "durable_tokens_per_s_512": measure.median(rates_512),
        "strict_ratio_512": measure.median(_ratios(scripted, "strict")),
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "seed": arguments.seed,
    }
    measure.print_result(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=41)
    return parser.parse_args()


def _measure(
    weights: Path, engine: dict[str, Any], streams: int, arguments: argparse.Namespace
) -> dict[str, list[load.LoadResult]]:
    """Interleaved rounds of all policies, each on prompts of its own."""
    seeds = itertools.count(arguments.seed * 1_000_000)
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                running_mantle(MODEL, weights, engine=engine, journal=journal)
            )
            for name, journal in POLICIES.items()
        }
        for server in servers.values():
            _ask(server, streams, next(seeds))  # warm up
        asks = {
            name: partial(lambda server: _ask(server, streams, next(seeds)), server)
            for name, server in servers.items()
        }
        rounds = measure.interleaved(asks, arguments.rounds)
    for name, results in rounds.items():
        rates = [result.output_tokens_per_s for result in results]
        print(f"{streams} streams, {name}: {measure.median(rates):.0f} tokens/s", flush=True)
    return rounds


def _ask(server: RunningMantle, streams: int, seed: int) -> load.LoadResult:
    chooser = random.Random(seed)
    bodies = [
        {
            "model": MODEL,
            "prompt": [chooser.randrange(100, 256) for _ in range(TOKENS)],
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        for _ in range(streams)
    ]
    url = f"{server.url}/v1/completions"
    result = load.run_load(url, bodies, concurrency=streams, api_key=server.api_key)
    if result.failures:
        sys.exit(f"{len(result.failures)} requests failed, first: {result.failures[0]}")
    return result


def _ratios(rounds: dict[str, list[load.LoadResult]], name: str) -> list[float]:
    pairs = zip(rounds[name], rounds["off"], strict=True)
    return [ours.output_tokens_per_s / off.output_tokens_per_s for ours, off in pairs]


def _gaps_ms(results: list[load.LoadResult]) -> list[float]:
    return [
        (later - earlier) * 1_000
        for result in results
        for exchange in result.good
        for earlier, later in itertools.pairwise(exchange.token_times_s)
    ]


if __name__ == "__main__":
    main()
