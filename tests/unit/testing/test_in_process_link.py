"""The worker without a process behaves as one: same events, same losses, time under control."""

import asyncio
from pathlib import Path

import pytest

from mantle.core.errors import ReplicaLost
from mantle.core.sampling import SamplingParams
from mantle.core.script import Fault, Script
from mantle.engine.port import Admit, Cancel, Load, Loaded, OutputCollector, SequenceSpec, Stepped
from mantle.testing.in_process_link import InProcessLink
from mantle.testing.scripts import load_spec, script_of, write_script
from mantle.testing.sim_clock import SimClock


async def link_of(folder: Path, script: Script, clock: SimClock | None = None) -> InProcessLink:
    link = InProcessLink.scripted(clock)
    link.send([Load("r", load_spec(write_script(folder, script)))])
    [event] = await link.receive()
    assert isinstance(event, Loaded)
    return link


def sequence(sequence_id: int = 1) -> SequenceSpec:
    return SequenceSpec(sequence_id, [1, 2], 1000, SamplingParams())


async def test_sequence_runs_to_its_end_on_simulated_time(tmp_path: Path) -> None:
    clock = SimClock()
    link = await link_of(tmp_path, script_of("AB", "C", step_ms=1_000), clock)
    link.send([Admit("r", sequence())])
    collector = OutputCollector()
    while 1 not in collector.finished:
        for event in await link.receive():
            assert isinstance(event, Stepped)
            collector.add(event.report)
    assert collector.tokens[1] == [256, 67]
    assert clock.now_ms() == 3_000
    await link.close()


async def test_held_link_takes_commands_but_does_not_step(tmp_path: Path) -> None:
    link = await link_of(tmp_path, script_of("A"))
    link.hold()
    link.send([Admit("r", sequence(1)), Admit("r", sequence(2)), Cancel("r", 1)])
    receiving = asyncio.create_task(link.receive())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not receiving.done()
    link.release()
    [event] = await receiving
    assert isinstance(event, Stepped)
    assert [one.sequence_id for one in event.report.outputs] == [2]
    await link.close()


async def test_kill_wakes_the_reader_with_the_loss(tmp_path: Path) -> None:
    link = await link_of(tmp_path, script_of("A"))
    receiving = asyncio.create_task(link.receive())
    await asyncio.sleep(0)
    link.kill()
    with pytest.raises(ReplicaLost, match="killed"):
        await receiving
    link.send([Admit("r", sequence())])
    with pytest.raises(ReplicaLost):
        await link.receive()


@pytest.mark.parametrize("kind", ["die", "stall"])
async def test_scripted_death_and_stall_lose_the_worker(tmp_path: Path, kind: str) -> None:
    fault = Fault(kind, after_output_tokens=1)  # type: ignore[arg-type]
    link = await link_of(tmp_path, script_of("A", "B", fault=fault))
    link.send([Admit("r", sequence())])
    assert isinstance((await link.receive())[0], Stepped)
    with pytest.raises(ReplicaLost):
        await link.receive()
    await link.close()
