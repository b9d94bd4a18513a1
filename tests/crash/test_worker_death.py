"""Real worker processes: death, silence and stalls are noticed, and nobody is left behind."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from mantle.core.errors import ReplicaLost
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.core.script import Fault, Script
from mantle.engine.port import (
    Admit,
    Load,
    Loaded,
    LoadFault,
    OutputCollector,
    Park,
    Parked,
    Resume,
    SequenceSpec,
    Stepped,
    Unload,
    Unloaded,
    WorkerEvent,
)
from mantle.engine.worker_link import LinkLimits, SubprocessWorkerLink
from mantle.testing.scripts import load_spec, script_of, write_script

pytestmark = pytest.mark.process


@contextlib.asynccontextmanager
async def worker(**link_limits: float) -> AsyncIterator[SubprocessWorkerLink]:
    link = await SubprocessWorkerLink.start("w", link_limits=LinkLimits(**link_limits))
    try:
        yield link
    finally:
        await link.close()


def sequence(sequence_id: int, *, prompt: str = "hello", output: int = 1000) -> SequenceSpec:
    return SequenceSpec(sequence_id, list(prompt.encode()), output, SamplingParams(temperature=0.0))


async def gather_until(link: SubprocessWorkerLink, kind: type[WorkerEvent]) -> list[WorkerEvent]:
    events: list[WorkerEvent] = []
    while not any(isinstance(event, kind) for event in events):
        events += await link.receive()
    return events


async def load(
    link: SubprocessWorkerLink, folder: Path, script: Script, *, replica_id: str = "r"
) -> WorkerEvent:
    path = write_script(folder, script, name=replica_id)
    link.send([Load(replica_id, load_spec(path))])
    return (await gather_until(link, Loaded | LoadFault))[-1]  # type: ignore[arg-type]


async def read_to_the_end(
    link: SubprocessWorkerLink, collector: OutputCollector, sequence_id: int
) -> None:
    while sequence_id not in collector.finished:
        for event in await link.receive():
            assert isinstance(event, Stepped)
            collector.add(event.report)


async def read_to_the_loss(link: SubprocessWorkerLink, collector: OutputCollector) -> None:
    with contextlib.suppress(ReplicaLost):
        await read_to_the_end(link, collector, -1)


async def loss_of(link: SubprocessWorkerLink) -> ReplicaLost:
    while True:
        try:
            await link.receive()
        except ReplicaLost as fault:
            return fault


def stand_still(seconds: float) -> None:
    """The fault under test: our own event loop reads nothing for this long."""
    threading.Event().wait(seconds)


def is_reaped(link: SubprocessWorkerLink) -> bool:
    """Neither alive nor a zombie."""
    return not os.path.exists(f"/proc/{link.pid}")


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """True when the process (not a child of ours) ends in time."""
    try:
        process_fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([process_fd], [], [], timeout_s)
        return bool(ready)
    finally:
        os.close(process_fd)


async def test_sequence_runs_to_its_end_in_a_process(tmp_path: Path) -> None:
    async with worker() as link:
        assert isinstance(await load(link, tmp_path, script_of("AB", "CD")), Loaded)
        link.send([Admit("r", sequence(1))])
        collector = OutputCollector()
        await read_to_the_end(link, collector, 1)
        assert collector.tokens[1] == [256, 257]
        assert collector.finished[1] is FinishReason.END


async def test_kill_9_is_noticed_at_once_and_leaves_no_zombie(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A", repeat=True, step_ms=5))
        link.send([Admit("r", sequence(1))])
        await link.receive()
        os.kill(link.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        await loss_of(link)
        assert time.monotonic() - killed_s < 1.0
    assert link.exit_reason == "its end of the link closed; killed by signal 9"
    assert is_reaped(link)
    link.send([Unload("r")])  # no-op, no error
    with pytest.raises(ReplicaLost):
        await link.receive()


async def test_stopped_worker_is_noticed_by_its_silence_and_killed(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A"))
        os.kill(link.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        await loss_of(link)
        assert 0.5 < time.monotonic() - stopped_s < 5.0
        assert "silent" in (link.exit_reason or "")
    assert is_reaped(link)


async def test_step_that_never_returns_is_noticed(tmp_path: Path) -> None:
    async with worker(step_s_max=0.3) as link:
        await load(link, tmp_path, script_of("A", fault=Fault("stall")))
        link.send([Admit("r", sequence(1))])
        await loss_of(link)
        assert "engine step" in (link.exit_reason or "")


async def test_parent_that_stood_still_neither_blames_the_worker_nor_loses_events(
    tmp_path: Path,
) -> None:
    async with worker(silence_s_max=0.8) as link:
        await load(link, tmp_path, script_of("A", repeat=True))
        link.send([Admit("r", sequence(1, output=8000))])  # more frames than the socket holds
        await link.receive()
        stand_still(2.0)
        collector = OutputCollector()
        await read_to_the_end(link, collector, 1)
        assert len(collector.tokens[1]) >= 7000
        assert link.exit_reason is None


async def test_death_mid_step_gives_what_was_sent_before_it(tmp_path: Path) -> None:
    script = script_of(*"ABCDEFGH", fault=Fault("die", after_output_tokens=3))
    async with worker() as link:
        await load(link, tmp_path, script)
        link.send([Admit("r", sequence(1))])
        collector = OutputCollector()
        await read_to_the_loss(link, collector)
        assert collector.tokens[1] == list(b"ABC")
    assert (link.exit_reason or "").endswith("exit code 134")


async def test_load_fault_has_a_reason_and_the_worker_lives_on(tmp_path: Path) -> None:
    async with worker() as link:
        fault = await load(link, tmp_path, Script(fault=Fault("fail_load")))
        assert isinstance(fault, LoadFault)
        assert "loading fails" in fault.message
        assert isinstance(await load(link, tmp_path, script_of("A")), Loaded)


async def test_other_replicas_step_while_one_loads(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A", repeat=True, step_ms=2), replica_id="fast")
        slow = write_script(tmp_path, script_of("B", load_ms=400), name="slow")
        link.send([Admit("fast", sequence(1, output=5000)), Load("slow", load_spec(slow))])
        events = await gather_until(link, Loaded)
        stepped = [event for event in events if isinstance(event, Stepped)]
        assert len(stepped) > 10


async def test_two_replicas_take_turns(tmp_path: Path) -> None:
    async with worker() as link:
        for name in ("m", "n"):
            await load(link, tmp_path, script_of(name, repeat=True), replica_id=name)
        link.send([Admit("m", sequence(1, output=50)), Admit("n", sequence(2, output=50))])
        turns: list[str] = []
        while len(turns) < 100:
            turns += [event.replica_id for event in await link.receive()]
        assert turns == ["m", "n"] * 50


async def test_parked_sequence_goes_on_from_the_workers_own_copy(tmp_path: Path) -> None:
    script = script_of("A", repeat=True, kv_bytes_per_token=10_000)
    async with worker() as link:
        await load(link, tmp_path, script)
        link.send([Admit("r", sequence(1, prompt="x" * 2_000))])
        events = await link.receive()
        link.send([Park("r", 1)])
        events += await gather_until(link, Parked)
        [parked] = [event for event in events if isinstance(event, Parked)]
        outputs = [o for e in events if isinstance(e, Stepped) for o in e.report.outputs]
        shown = [token for output in outputs for token in output.token_ids]
        assert parked.kv_bytes == (2_000 + len(shown)) * 10_000
        again = msgspec.structs.replace(sequence(2, prompt="x" * 2_000), resume_tokens=shown)
        link.send([Resume("r", again, parked.sequence_id)])
        [event, *_] = await link.receive()
        assert isinstance(event, Stepped)
        [output] = event.report.outputs
        assert (output.first_index, output.cached_tokens) == (len(shown), 2_000)


async def test_unload_drops_residents_without_outputs(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A", repeat=True))
        link.send([Admit("r", sequence(1)), Unload("r")])
        assert await link.receive() == [Unloaded("r")]


async def test_close_ends_the_worker_gently_and_twice_is_harmless(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A"))
        waiting = asyncio.create_task(loss_of(link))
        await link.close()
        await link.close()
        assert link.exit_reason == "closed; exit code 0"
        assert "closed" in (await waiting).message


async def test_sigterm_ends_the_worker_after_its_step(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A"))
        os.kill(link.pid, signal.SIGINT)  # ignored
        os.kill(link.pid, signal.SIGTERM)
        await loss_of(link)
    assert link.exit_reason == "its end of the link closed; exit code 0"


async def test_garbage_on_the_link_loses_the_worker(tmp_path: Path) -> None:
    async with worker() as link:
        await load(link, tmp_path, script_of("A"))
        link.data_received(b"\xff\xff\xff\xff")
        assert "bad frame" in (await loss_of(link)).message
    assert is_reaped(link)


def test_link_lives_on_the_server_s_event_loop_too(tmp_path: Path) -> None:
    async def session() -> str | None:
        async with worker() as link:
            await load(link, tmp_path, script_of("A", repeat=True))
            link.send([Admit("r", sequence(1, output=8000))])
            await link.receive()
            stand_still(1.5)  # uvloop runs timers before it reads
            collector = OutputCollector()
            await read_to_the_end(link, collector, 1)
            assert link.exit_reason is None
        return link.exit_reason

    assert uvloop.run(session()) == "closed; exit code 0"


PARENT = """
    import asyncio, sys
    from mantle.engine.port import Admit, Load, SequenceSpec
    from mantle.core.sampling import SamplingParams
    from mantle.engine.worker_link import SubprocessWorkerLink
    from mantle.testing.scripts import load_spec
    from pathlib import Path

    async def main():
        link = await SubprocessWorkerLink.start("w")
        link.send([Load("r", load_spec(Path(sys.argv[1])))])
        await link.receive()
        link.send([Admit("r", SequenceSpec(1, [1], 10, SamplingParams()))])
        print(link.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("fault", [None, Fault("stall")])
def test_killed_parent_leaves_no_orphan(tmp_path: Path, fault: Fault | None) -> None:
    path = write_script(tmp_path, script_of("A", fault=fault))
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        parent.kill()
    assert wait_for_end(worker_pid, timeout_s=10.0), "the worker outlived its parent"
