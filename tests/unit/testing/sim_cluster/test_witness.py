"""Does the witness raise at each lie about a request that it knows, and at no truth?"""

import msgspec
import pytest

from mantle.core.epoch import FIRST_EPOCH
from mantle.core.ids import ModelId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import Usage
from mantle.journal.record import Accepted, Asked, Choice, Dispatched, Finished, Tokens
from mantle.testing.sim_cluster.invariant import InvariantBroken
from mantle.testing.sim_cluster.paper_request import Ask, Life
from mantle.testing.sim_cluster.paper_store import PaperStore
from mantle.testing.sim_cluster.paper_tokens import tokens_of
from mantle.testing.sim_cluster.witness import Witness

ID = RequestId("r1")


def a_life(*, output_tokens=4, keeps_content=True):
    ask = Ask(
        0.0, TenantId("a"), ModelId("m"), Lane.STANDARD, 3, output_tokens, 8,
        keeps_content=keeps_content,
    )  # fmt: skip
    return Life(ask.request(ID), output_tokens, "a1")


def tokens(first_index, count):
    return Tokens(ID, FIRST_EPOCH, first_index, tokens_of(ID, first_index, count), count)


def an_end(outcome=Outcome.COMPLETED, used=4):
    return Finished(ID, outcome, FinishReason.END, Usage(3, 0, used))


class World:
    """One request that its client was told of, running in its first epoch."""

    def __init__(self, **fields):
        self.witness, self.life = Witness(), a_life(**fields)
        self.store = PaperStore(self.witness.committed)
        self.witness.arrived(self.life)
        asked = Asked("a1", TenantId("a"), "", b"", 0, (Choice(ID),))
        self.write(Accepted(self.life.request, 3), asked)
        self.write(Dispatched(ID, FIRST_EPOCH, ReplicaId("m#1")))

    def write(self, *records):
        self.store.commit(records)

    def show(self, first_index, count):
        self.witness.shown(self.life, first_index, tokens_of(ID, first_index, count))
        self.life.shown_tokens += count


def test_the_truth_passes():
    world = World()
    world.write(tokens(0, 2), tokens(2, 2))
    world.show(0, 3)
    world.show(3, 1)
    world.write(an_end())
    world.witness.told(world.life, Outcome.COMPLETED)
    world.life.outcome, world.life.outlived_a_server = Outcome.COMPLETED, True
    world.witness.check_end(world.store)


def test_who_leaves_pays_for_what_was_shown():
    world = World()
    world.write(tokens(0, 3))
    world.show(0, 2)
    world.write(an_end(Outcome.CANCELLED, used=2))


@pytest.mark.parametrize("used", [1, 4])
def test_who_leaves_pays_for_no_less_and_for_nothing_that_is_not_there(used):
    world = World()
    world.write(tokens(0, 3))
    world.show(0, 2)
    with pytest.raises(InvariantBroken, match="usage of"):
        world.write(an_end(Outcome.CANCELLED, used=used))


def test_gap_in_what_is_shown():
    world = World()
    world.write(tokens(0, 4))
    with pytest.raises(InvariantBroken, match="token 1 was shown after 0"):
        world.show(1, 1)


def test_token_that_is_shown_twice():
    world = World()
    world.write(tokens(0, 4))
    world.show(0, 2)
    with pytest.raises(InvariantBroken, match="token 1 was shown after 2"):
        world.show(1, 1)


def test_token_that_changed_on_its_way_to_the_client():
    world = World()
    world.write(tokens(0, 4))
    with pytest.raises(InvariantBroken, match="saw a changed token"):
        world.witness.shown(world.life, 0, tokens_of(ID, 1, 1))


def test_content_of_a_request_that_keeps_none():
    world = World(keeps_content=False)
    world.write(msgspec.structs.replace(tokens(0, 2), token_ids=[]))
    with pytest.raises(InvariantBroken, match="keeps nothing"):
        world.write(tokens(2, 1))


def test_record_of_a_request_that_was_set_aside():
    world = World()
    world.life.is_set_aside = True
    with pytest.raises(InvariantBroken, match="set aside, but is written of"):
        world.write(tokens(0, 1))


def test_request_without_an_end():
    world = World()
    world.life.outlived_a_server = True
    with pytest.raises(InvariantBroken, match="has no end"):
        world.witness.check_end(world.store)
    world.life.outlived_a_server = False
    with pytest.raises(InvariantBroken, match="has no end"):
        world.witness.check_end(world.store)


def test_client_that_saw_another_end():
    world = World()
    world.write(tokens(0, 4), an_end())
    world.life.outlived_a_server, world.life.outcome = True, Outcome.FAILED
    with pytest.raises(InvariantBroken, match="the client saw failed"):
        world.witness.check_end(world.store)


def test_completion_that_is_not_whole():
    world = World()
    world.write(tokens(0, 3), an_end(used=3))
    world.life.outlived_a_server, world.life.outcome = True, Outcome.COMPLETED
    with pytest.raises(InvariantBroken, match="completed with 3 of 4"):
        world.witness.check_end(world.store)


def test_request_that_is_over_but_goes_on():
    world = World()
    world.write(tokens(0, 4), an_end())
    with pytest.raises(InvariantBroken, match="is over, but goes on"):
        world.witness.resumed(world.life, world.store.history(ID))
