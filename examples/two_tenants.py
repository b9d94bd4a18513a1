"""Two customers share one server: a noisy one in the Flex lane, a quiet one in Priority.

Starts Mantle on a free port with two tenants, sends a burst from one and a short question from
the other with the official SDKs, and prints both streams as they come, the lane that served each,
and how long each waited. Run it with `.venv/bin/python examples/two_tenants.py`.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anthropic
import openai

MODEL = "smollm2-135m-instruct"
BURST = 24


def start_server(folder: Path) -> tuple[subprocess.Popen[str], str, dict[str, str]]:
    """Two tenants, one server; returns the process, its address and the tenants' keys."""
    mantle = [sys.executable, "-m", "mantle.cli.main"]
    keys = {}
    for tenant in ("noisy", "quiet"):
        command = [*mantle, "tenants", "add", tenant, "--data-dir", str(folder)]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        keys[tenant] = made.stdout.strip()
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(
        [*mantle, "serve", "--port", "0", "--data-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"listens on (\S+)", line):
            return server, found.group(1), keys
    raise SystemExit(f"the server did not start; see {folder / 'server.log'}")


async def until_ready(client: openai.AsyncOpenAI) -> None:
    """The first request waits for the model to load; later ones are measured without that."""
    await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
    )


async def noisy_request(client: openai.AsyncOpenAI, number: int, show: bool) -> tuple[str, float]:
    """One of the burst, through the OpenAI SDK; returns lane and seconds to the first token."""
    started = time.monotonic()
    first_s, tier = 0.0, "?"
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Tell me story number {number}."}],
        max_tokens=48,
        stream=True,
        service_tier="flex",
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        tier = chunk.service_tier or tier
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.monotonic() - started
            if show:
                print(f"\033[33m{chunk.choices[0].delta.content}\033[0m", end="", flush=True)
    return tier, first_s


async def quiet_request(client: anthropic.AsyncAnthropic) -> tuple[str, float]:
    """The quiet customer's question, through the Anthropic SDK."""
    started = time.monotonic()
    first_s = 0.0
    async with client.messages.stream(
        model=MODEL,
        max_tokens=24,
        messages=[{"role": "user", "content": "Say something kind."}],
        extra_body={"service_tier": "priority"},
    ) as stream:
        async for text in stream.text_stream:
            first_s = first_s or time.monotonic() - started
            print(f"\033[36m{text}\033[0m", end="", flush=True)
        message = await stream.get_final_message()
    return message.usage.service_tier or "?", first_s


async def show_both(base_url: str, keys: dict[str, str]) -> None:
    noisy = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=keys["noisy"])
    quiet = anthropic.AsyncAnthropic(base_url=base_url, api_key=keys["quiet"])
    await until_ready(noisy)
    print(f"noisy sends {BURST} requests at once (yellow: its first), then quiet asks (blue):\n")
    burst = [asyncio.create_task(noisy_request(noisy, n, show=n == 0)) for n in range(BURST)]
    await asyncio.sleep(1.0)
    quiet_tier, quiet_s = await quiet_request(quiet)
    noisy_results = await asyncio.gather(*burst)
    waits = sorted(first_s for _, first_s in noisy_results)
    print("\n\ntenant  lane       first token after")
    print(f"quiet   {quiet_tier:9}  {quiet_s:.2f} s")
    print(
        f"noisy   {noisy_results[0][0]:9}  {waits[0]:.2f} s (first) … "
        f"{waits[len(waits) // 2]:.2f} s (median) … {waits[-1]:.2f} s (last of {BURST})"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server, base_url, keys = start_server(Path(folder))
        try:
            asyncio.run(show_both(base_url, keys))
        finally:
            server.terminate()
            server.wait(timeout=30)


if __name__ == "__main__":
    main()
