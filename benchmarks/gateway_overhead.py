"""What does Mantle's gateway add to a request, beside LiteLLM's proxy, when the work is nothing?

How to read it. Three contestants answer the same chat request (one user message, 8 tokens out):
- *direct*: a bare ASGI mock that answers at once (peers/mock_openai.py), asked without a proxy;
- *mantle*: `mantle serve` with the scripted engine, zero work: gateway, tokenising, admission,
  scheduler and a real worker process. It stands for the mock *and* the proxy at once;
- *litellm*: LiteLLM's proxy (one worker, static key, logging off) in front of that mock.
`added_ms_p50` = p50(contestant) - p50(direct); `added_ms_p99` = p99(contestant) - p50(direct), so
the tail of the machine counts against the contestant. Both at concurrency 1. `requests_per_s` is
at concurrency 64. Keys that begin with `stream_` are the same for streamed replies; `litellm_`
keys are LiteLLM's. All processes of a contestant are pinned to the last core; client and mock run
on core 0. Rounds are interleaved. A failed request of Mantle or the mock fails the benchmark; one
of LiteLLM is left out of its numbers and counted in `failed_count`.
Goals: added p50 <= 1.5 ms and p99 <= 4 ms; requests_per_s at least 5 times LiteLLM's.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import load
import measure
from mantle_server import running_mantle
from peers import litellm_proxy, mock_openai
from peers.process import free_port, pinned_to

OUTPUT_TOKENS: Final = 8
CONCURRENCIES: Final = (1, 16, 64)
PLAIN: Final = {
    "model": mock_openai.MODEL,
    "messages": [{"role": "user", "content": "Say eight words, please."}],
    "max_tokens": OUTPUT_TOKENS,
}
STREAMED: Final = PLAIN | {"stream": True, "stream_options": {"include_usage": True}}
SHAPES: Final = {"": PLAIN, "stream_": STREAMED}


@dataclass(slots=True)
class Sample:
    """All rounds of one contestant at one concurrency with one shape of reply."""

    total_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, result: load.LoadResult) -> None:
        for exchange in result.good:
            if exchange.output_tokens != OUTPUT_TOKENS:
                exchange.error = f"expected {OUTPUT_TOKENS} tokens, got {exchange.output_tokens}"
        self.failures += result.failures
        self.total_ms += [exchange.total_ms for exchange in result.good]
        self.ttft_ms += [exchange.ttft_ms for exchange in result.good]
        self.requests_per_s.append(result.requests_per_s)


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    url: str
    api_key: str
    requests: int  # a round

    def ask(self, body: dict[str, Any], concurrency: int) -> load.LoadResult:
        bodies = [body] * max(self.requests, concurrency * 2)
        url = f"{self.url}/v1/chat/completions"
        return load.run_load(url, bodies, concurrency=concurrency, api_key=self.api_key)


def main() -> None:
    arguments = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    with contextlib.ExitStack() as stack:
        contestants = _start(stack, arguments)
        for contestant in contestants:  # warm up: lazy imports, caches, connections
            for body in SHAPES.values():
                _ask_all(contestant, body, 16)
        samples = _measure(contestants, arguments.rounds)
    result = _result(samples)
    result |= {"litellm_version": litellm_proxy.install(), "rounds": arguments.rounds}
    measure.print_result(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400, help="a round, of mantle and direct")
    parser.add_argument("--litellm-requests", type=int, default=100, help="a round; 0: leave out")
    return parser.parse_args()


def _start(stack: contextlib.ExitStack, arguments: argparse.Namespace) -> list[Contestant]:
    last_core = (os.cpu_count() or 1) - 1
    pinned = pinned_to(last_core)
    mock_url = stack.enter_context(mock_openai.running_mock(free_port(), prefix=pinned_to(0)))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mantle-script-")))
    script_path = folder / "mock.script.json"
    script_path.write_text(_script())
    mantle = stack.enter_context(
        running_mantle(mock_openai.MODEL, script_path, engine={"slots": 64}, prefix=pinned)
    )
    contestants = [
        Contestant("direct", mock_url, "none", arguments.requests),
        Contestant("mantle", mantle.url, mantle.api_key, arguments.requests),
    ]
    if arguments.litellm_requests:
        litellm_url = stack.enter_context(
            litellm_proxy.running_litellm(
                mock_url, model=mock_openai.MODEL, port=free_port(), prefix=pinned
            )
        )
        key, requests = litellm_proxy.API_KEY, arguments.litellm_requests
        contestants.append(Contestant("litellm", litellm_url, key, requests))
    return contestants


def _script() -> str:
    """An engine that says the mock's word for ever, in no time."""
    return f'{{"reply": ["{mock_openai.WORD}"], "repeat": true}}'


Key = tuple[str, str, int]  # contestant, shape, concurrency


def _measure(contestants: list[Contestant], rounds: int) -> dict[Key, Sample]:
    samples: dict[Key, Sample] = {}
    for shape, body in SHAPES.items():
        for concurrency in CONCURRENCIES:
            asks: dict[str, Callable[[], load.LoadResult]] = {
                contestant.name: partial(_ask_all, contestant, body, concurrency)
                for contestant in contestants
            }
            for name, results in measure.interleaved(asks, rounds).items():
                sample = samples[name, shape, concurrency] = Sample()
                for result in results:
                    sample.add(result)
                if sample.failures and name != "litellm":
                    sys.exit(f"{len(sample.failures)} requests failed: {sample.failures[0]}")
                p50 = measure.percentile(sample.total_ms, 50)
                rate = measure.median(sample.requests_per_s)
                text = f"p50 {p50:.2f} ms, {rate:.0f} requests/s"
                print(f"{shape}{name} at {concurrency}: {text}", flush=True)
    return samples


def _ask_all(contestant: Contestant, body: dict[str, Any], concurrency: int) -> load.LoadResult:
    return contestant.ask(body, concurrency)


def _result(samples: dict[Key, Sample]) -> dict[str, Any]:
    result: dict[str, Any] = {"output_tokens": OUTPUT_TOKENS, "by_concurrency": {}}
    for (name, shape, concurrency), sample in samples.items():
        direct_p50 = measure.percentile(samples["direct", shape, concurrency].total_ms, 50)
        facts = {
            "total_ms_p50": measure.percentile(sample.total_ms, 50),
            "added_ms_p50": measure.percentile(sample.total_ms, 50) - direct_p50,
            "added_ms_p99": measure.percentile(sample.total_ms, 99) - direct_p50,
            "ttft_ms_p50": measure.percentile(sample.ttft_ms, 50),
            "requests_per_s": measure.median(sample.requests_per_s),
            "requests_per_s_iqr": measure.iqr(sample.requests_per_s),
            "failed_count": len(sample.failures),
        }
        result["by_concurrency"].setdefault(str(concurrency), {})[shape + name] = facts
        prefix = {"mantle": shape, "litellm": f"{shape}litellm_"}.get(name)
        if prefix is not None and concurrency == 1:
            result[f"{prefix}added_ms_p50"] = facts["added_ms_p50"]
            result[f"{prefix}added_ms_p99"] = facts["added_ms_p99"]
        if prefix is not None and concurrency == max(CONCURRENCIES):
            result[f"{prefix}requests_per_s"] = facts["requests_per_s"]
    for shape in SHAPES:
        if f"{shape}litellm_requests_per_s" in result:
            peer = result[f"{shape}litellm_requests_per_s"]
            result[f"{shape}requests_ratio"] = result[f"{shape}requests_per_s"] / peer
    return result


if __name__ == "__main__":
    main()
