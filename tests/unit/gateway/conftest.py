"""Fixtures of the gateway's tests: one harness a test."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_fakes import Harness

from mantle.gateway.parts import GatewaySettings


@pytest.fixture
async def make_harness() -> AsyncIterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def make(**settings: object) -> Harness:
        harnesses.append(Harness(GatewaySettings(**settings)))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.executor.shutdown()


@pytest.fixture
def gateway(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness()
