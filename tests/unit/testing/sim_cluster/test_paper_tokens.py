"""Does a lost, doubled or changed paper token show by its value?"""

import pytest

from mantle.core.ids import RequestId
from mantle.testing.sim_cluster.paper_tokens import tokens_of

R = RequestId("r1")


def test_any_cut_of_the_output_gives_the_same_tokens():
    whole = tokens_of(R, 0, 50)
    assert tokens_of(R, 0, 20) + tokens_of(R, 20, 30) == whole


def test_every_position_has_a_token_of_its_own():
    assert len(set(tokens_of(R, 0, 1_000))) == 1_000


def test_requests_say_different_things():
    assert tokens_of(R, 0, 20) != tokens_of(RequestId("r2"), 0, 20)


def test_output_beyond_the_text_fails():
    with pytest.raises(AssertionError):
        tokens_of(R, 1 << 17, 1)
