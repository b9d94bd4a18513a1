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
    Forget,
    Load,
    LoadSpec,
    Park,
    Parked,
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
    Park("r", 7),
    Resume("r", SPEC, 3),
    Forget("r", 3),
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


def test_events_of_one_step_share_a_frame() -> None:
    stepped = Stepped("r", StepReport([SequenceOutput(1, 0, [5])]))
    events = [stepped, Parked("r", 2, kv_bytes=10), Unloaded("r")]
    assert frames.event_reader().feed(frames.encode_events(events)) == events


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
