"""Frames: whole or refused, however the stream is cut."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mantle.core.limits import FRAME_BYTES_MAX
from mantle.core.sampling import SamplingParams
from mantle.engine import frames
from mantle.engine.port import (
    Admit,
    Cancel,
    Command,
    EngineSettings,
    Load,
    LoadSpec,
    Park,
    Parked,
    ParkedSequence,
    Resume,
    SequenceOutput,
    SequenceSpec,
    Stepped,
    StepReport,
    Unload,
    Unloaded,
)

SPEC = SequenceSpec(7, [1, 2], 5, SamplingParams(seed=2**64 - 1, logit_bias=((3, -1.5),)), [9])
COMMANDS: list[Command] = [
    Load("r", LoadSpec("m", "scripted", "/x", EngineSettings())),
    Admit("r", SPEC),
    Cancel("r", 7),
    Park("r", 7, keep_kv=True),
    Resume("r", SPEC, ParkedSequence(7, [9], b"\x00\xff")),
    Unload("r"),
]


@given(st.lists(st.integers(min_value=1, max_value=60)))
def test_commands_survive_any_cut_of_the_stream(sizes: list[int]) -> None:
    stream = frames.encode_commands(COMMANDS) + frames.encode_commands([]) * 2
    stream += frames.encode_commands(COMMANDS[1:])
    reader = frames.command_reader()
    got: list[Command] = []
    for size in sizes:
        chunk, stream = stream[:size], stream[size:]
        got += reader.feed(chunk)
    got += reader.feed(stream)
    assert got == COMMANDS + COMMANDS[1:]


def test_events_of_one_step_share_a_frame_and_parked_ones_have_their_own() -> None:
    stepped = Stepped("r", StepReport([SequenceOutput(1, 0, [5])]))
    parked = Parked("r", ParkedSequence(2, [6], b"kv"))
    assert len(frames.encode_events([stepped, stepped])) == 1
    several = frames.encode_events([stepped, parked, Unloaded("r")])
    assert len(several) == 3
    assert frames.event_reader().feed(b"".join(several)) == [stepped, parked, Unloaded("r")]


def test_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    header = (FRAME_BYTES_MAX + 1).to_bytes(frames.HEADER_BYTES, "big")
    with pytest.raises(frames.BadFrame, match="over the limit"):
        frames.event_reader().feed(header)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgspec.msgpack.encode([{"type": "Admit"}]), b"\x01"]
)
def test_body_of_another_shape_is_refused_without_quoting_it(body: bytes) -> None:
    frame = len(body).to_bytes(frames.HEADER_BYTES, "big") + body
    with pytest.raises(frames.BadFrame, match=f"a body of {len(body)} bytes"):
        frames.command_reader().feed(frame)
