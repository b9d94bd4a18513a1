"""Does a grammar's state follow from its tokens alone, and does it end where the grammar ends?"""

import numpy as np
import pytest
from llguidance import LLTokenizer

from mantle.core.errors import EngineFailed
from mantle.engine.grammar import GrammarEngine
from mantle.text.structured import from_choices, from_json_schema, from_regex

END = 256


class Bytes:
    """A vocabulary of 256 bytes and an end."""

    tokens = [bytes([value]) for value in range(256)] + [b"<end>"]
    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def engine():
    from llguidance import TokenizerWrapper

    return GrammarEngine(lambda: LLTokenizer(TokenizerWrapper(Bytes())))


def allowed(state):
    return {int(token_id) for token_id in np.flatnonzero(state.allowed())}


def test_allows_what_may_come_next_and_the_end_where_it_may_end(engine):
    state = engine.start(from_regex("ab?c+").source, [])
    assert allowed(state) == {ord("a")}
    assert state.accept(ord("a"))
    assert allowed(state) == {ord("b"), ord("c")}
    assert state.accept(ord("c"))
    assert allowed(state) == {ord("c"), END}
    assert not state.is_over


def test_is_over_when_nothing_may_follow(engine):
    state = engine.start(from_choices(["yes", "no"]).source, list(b"ye"))
    assert not state.is_over
    assert state.accept(ord("s"))
    assert state.is_over


def test_state_after_replay_is_the_state_after_generation(engine):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}}
    source = from_json_schema({**schema, "required": ["n"]}, lenient=False).source
    text = list(b'{"n": 4')
    walked = engine.start(source, [])
    for count, token_id in enumerate(text):
        replayed = engine.start(source, text[:count])
        assert allowed(replayed) == allowed(walked)
        assert walked.accept(token_id)
    assert allowed(walked) & {ord("}"), ord("6"), ord("9")} == {ord("}")}


def test_two_sequences_of_one_grammar_do_not_meet(engine):
    source = from_choices(["aa", "bb"]).source
    one, other = engine.start(source, []), engine.start(source, [])
    assert one.accept(ord("a"))
    assert other.accept(ord("b"))
    assert allowed(one) == {ord("a")}
    assert allowed(other) == {ord("b")}


def test_output_that_does_not_fit_is_an_error_of_this_sequence(engine):
    with pytest.raises(EngineFailed):
        engine.start(from_regex("a").source, [ord("b")])
    with pytest.raises(EngineFailed):
        engine.start("start: nobody", [])


def test_remembers_a_bounded_number_of_grammars(engine):
    for number in range(100):
        engine.start(from_regex(f"a{{{number + 1}}}").source, [])
    assert len(engine._compiled) == 64
