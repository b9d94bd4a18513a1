"""How fast does a model decode on this machine? A short real run of one sequence.

Invariant: only decode steps are timed, never loading or the prompt.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from mantle.core.clock import Clock, SystemClock
from mantle.core.sampling import SamplingParams
from mantle.engine.port import Driver, EngineSettings, LoadSpec, SequenceSpec, StepBudget

PROMPT_TOKENS = 32
DECODE_TOKENS = 48
ROUNDS = 3
ROUND_MS_MAX = 1_000.0
"""A round on a slow or busy machine ends early: the figure is for a person who waits."""
_WINDOW_TOKENS = 256
_FIRST_PROMPT_ID = 20  # small ids of plain text in every vocabulary we know


def compare_speeds(
    paths: Sequence[Path],
    *,
    new_driver: Callable[[], Driver],
    driver_name: str = "llama_cpp",
    clock: Clock | None = None,
) -> list[float]:
    """Decode tokens/s of each file: the best of interleaved rounds.

    Other work on the machine only ever slows a round down, so the best one says most.
    """
    drivers: list[Driver] = []
    # One thread: several wait for each other as soon as the machine does anything else.
    settings = EngineSettings(slots=1, window_tokens=_WINDOW_TOKENS, threads=1, prefix_reuse=False)
    try:
        for path in paths:
            driver = new_driver()
            drivers.append(driver)
            driver.load(LoadSpec("measured", driver_name, str(path), settings))
        rounds = [
            [_decode_tokens_per_s(driver, turn, clock or SystemClock()) for driver in drivers]
            for turn in range(ROUNDS)
        ]
    finally:
        for driver in drivers:
            driver.close()
    return [max(column) for column in zip(*rounds, strict=True)]


def _decode_tokens_per_s(driver: Driver, sequence_id: int, clock: Clock) -> float:
    prompt = [_FIRST_PROMPT_ID + i for i in range(PROMPT_TOKENS)]
    greedy = SamplingParams(temperature=0.0)
    driver.admit(SequenceSpec(sequence_id, prompt, DECODE_TOKENS + 1, greedy, ignore_eos=True))
    budget = StepBudget(prefill_tokens_max=PROMPT_TOKENS)
    started_ms: float | None = None  # set by the first token, which ends the prefill
    decoded = 0
    while driver.has_work():
        report = driver.step(budget)
        new_tokens = sum(len(output.token_ids) for output in report.outputs)
        if started_ms is None:
            started_ms = clock.now_ms() if new_tokens else None
        else:
            decoded += new_tokens
            if clock.now_ms() - started_ms > ROUND_MS_MAX:
                driver.cancel(sequence_id)
    elapsed_ms = 0.0 if started_ms is None else clock.now_ms() - started_ms
    return decoded / elapsed_ms * 1e3 if elapsed_ms > 0 else 0.0
