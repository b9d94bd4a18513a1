"""How is a broken part put into the simulator, and how must that end?"""

from dataclasses import replace

import pytest

from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.invariant import InvariantBroken
from mantle.testing.sim_cluster.run_seed import REAL_PARTS, Parts, run_seed
from mantle.testing.sim_cluster.scenario import Scenario

SEEDS = range(150)


def with_scheduler(kind: type[Scheduler]) -> Parts:
    def make(scenario: Scenario) -> Scheduler:
        return kind(scenario.rules, weight_of=scenario.weights.__getitem__)

    return replace(REAL_PARTS, scheduler=make)


def assert_caught(parts: Parts, promise: str) -> None:
    """One of the seeds breaks this promise, and says how to see that again."""
    with pytest.raises(InvariantBroken, match=promise) as broken:
        _run_all(parts)
    assert "replay: python -m mantle.testing.sim_cluster --seed" in str(broken.value)


def _run_all(parts: Parts) -> None:
    for seed in SEEDS:
        run_seed(seed, parts=parts)
