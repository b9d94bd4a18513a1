"""Is what a client was told still there once the power is lost, at any moment? And do the tests see
it when it is not?

Each run writes through the real journal on a file system that forgets what was not synced. Its log
of operations holds every moment: the power is cut at each one that matters.
"""

import random

import pytest

from tests.crash.forgetful_disk import Disk
from tests.crash.forgetful_folder import write_image
from tests.crash.journal_child import Plan
from tests.crash.power_runs import (
    LARGE,
    checkpoints,
    edges,
    killed_child,
    losses,
    losses_at,
    run_child,
    told_at_moments,
)

pytestmark = pytest.mark.process


# --- the promise --------------------------------------------------------------------------------
def test_what_was_told_survives_a_power_loss_at_any_moment(mounted, tmp_path):
    folder = mounted()
    said = run_child(folder)
    assert len(said) > Plan().appends
    ops = folder.ops()
    assert losses_at(ops, edges(ops), tmp_path) == {}


def test_it_survives_a_power_loss_around_a_checkpoint(mounted, tmp_path):
    folder = mounted()
    run_child(folder, LARGE)
    ops = folder.ops()
    all_edges = edges(ops)
    assert len(checkpoints(ops)) >= 4, "two while it is made, one on the way, one at the end"
    near = {all_edges.index(at) + step for at in checkpoints(ops) for step in (-1, 0, 1, 2)}
    moments = [all_edges[index] for index in sorted(near) if index < len(all_edges)]
    moments += random.Random(7).sample(all_edges, 10)
    assert losses_at(ops, moments, tmp_path) == {}
    assert losses_at(ops, [at + 1 for at in moments[:-11]], tmp_path, seeds=True) == {}


def test_it_survives_too_when_the_disk_wrote_some_of_the_rest_by_itself(mounted, tmp_path):
    folder = mounted()
    run_child(folder)
    ops = folder.ops()
    moments = random.Random(7).sample(range(len(ops)), 150)
    assert losses_at(ops, moments, tmp_path, seeds=True) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_servers_go_on_after_one_power_loss_after_the_other(mounted, tmp_path, seed):
    """The whole thing, with real deaths and a real file system that comes back."""
    folder = mounted()
    chance, told = random.Random(seed), []
    for life in range(4):
        plan = Plan(seed=seed * 10 + life, first_ask=life * 10, appends=1_000)
        told += killed_child(folder, plan, chance.randint(5, 80))
        folder.cut_power(chance.choice([None, life]))
        write_image(Disk(folder.ops()), tmp_path / f"after_{life}")
        assert losses(tmp_path / f"after_{life}", told) == []
        folder.mount()
    assert {word.ask for word in told} >= {"ask_0", "ask_10", "ask_20", "ask_30"}


# --- controls: what must lose, or nothing above proves anything ---------------------------------
def test_control_synchronous_normal_loses_what_was_told(mounted, tmp_path):
    folder = mounted()
    run_child(folder, Plan(synchronous="NORMAL"))
    ops = folder.ops()
    assert losses_at(ops, sampled(ops, 40), tmp_path) != {}


def test_control_telling_before_the_commit_loses_at_most_what_relaxed_allows(mounted, tmp_path):
    """Each word says how many commits there were; two commits later it must be durable."""
    folder = mounted()
    run_child(folder, Plan(policy="relaxed", appends=400, pause_s=0.001))
    ops = folder.ops()
    told = told_at_moments(ops)
    lost_at = losses_at(ops, edges(ops), tmp_path)
    assert lost_at != {}
    for moment, lost in lost_at.items():
        commits = max(word.commits for word in told[moment])
        assert all(word.commits > commits - 2 for word in lost)


def sampled(ops, count) -> list[int]:
    return sorted(random.Random(7).sample(range(len(ops)), count))
