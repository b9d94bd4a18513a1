"""From what the engine said to what the reader sees: values only, nothing is decided."""

from mantle.core.tokens import TokenLogprob
from mantle.engine.port import LogprobEntry, SequenceOutput
from mantle.scheduler.port import TokenChunk


def chunk_of(output: SequenceOutput) -> TokenChunk:
    """One step's output of one sequence."""
    return TokenChunk(
        output.first_index,
        tuple(output.token_ids),
        None if output.logprobs is None else _logprobs(output.logprobs),
        None if output.prompt_logprobs is None else _logprobs(output.prompt_logprobs),
    )


def _logprobs(entries: list[LogprobEntry]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(e.token_id, e.logprob, tuple(e.top)) for e in entries)
