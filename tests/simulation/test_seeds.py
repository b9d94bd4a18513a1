"""Do 2,000 random worlds keep every promise? A failing seed prints the command that replays it."""

import pytest

from mantle.testing.sim_cluster.run_seed import run_seed

SEEDS = 2_000
AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_is_kept(first):
    compared = parks = restored = refused = set_aside = 0
    for seed in range(first, first + AT_ONCE):
        watcher = run_seed(seed)
        compared += sum(w.compared for w in watcher.windows.values())
        parks += sum(life.parks for life in watcher.lives)
        restored += watcher.restored
        refused += watcher.refused
        set_aside += sum(life.is_set_aside for life in watcher.lives)
    assert compared > 50, "too little competition to say anything about fairness"
    assert parks > 50, "too little parking to say anything about resuming"
    assert restored > 50, "too few deaths of servers to say anything about recovery"
    assert refused > 5, "too few words of older epochs to say anything about the fence"
    assert set_aside > 2, "too little damage to say anything about quarantine"


def test_a_seed_gives_the_same_run_again():
    first, second = run_seed(11), run_seed(11)
    assert [life.ended_ms for life in first.lives] == [life.ended_ms for life in second.lives]
