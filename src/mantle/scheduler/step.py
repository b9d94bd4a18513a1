"""What is written of one engine step, and what its readers see once that is committed?

Invariant: readers get their tokens, ends and failures in the order of the records, all after the
commit; a reader that has stopped meanwhile gets nothing more.
"""

from collections.abc import Callable

from mantle.core.errors import MantleError
from mantle.core.ids import RequestId
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import Usage
from mantle.engine.port import SequenceOutput
from mantle.journal.port import Finished, Record, Tokens, redacted
from mantle.scheduler.chunks import chunk_of
from mantle.scheduler.generation import LiveGeneration
from mantle.scheduler.outbox import Live
from mantle.scheduler.port import TokenChunk


class Step:
    """Records of one step, and the deliveries that wait for their commit.

    `leaving` are the requests whose slots it freed.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.leaving: list[RequestId] = []
        self._deliveries: list[Callable[[], None]] = []

    def tokens(self, live: Live, output: SequenceOutput) -> None:
        """New tokens of a sequence; the live request has them already."""
        chunk = chunk_of(output)
        generation, cached_tokens = live.generation, live.cached_tokens
        record = _tokens(live, chunk)
        keeps_content = generation.request.keeps_content
        self.records.append(record if keeps_content else redacted(record))
        self._deliveries.append(lambda: generation.put(chunk, cached_tokens))

    def completed(self, live: Live, finish: FinishReason) -> None:
        """The engine came to an end."""
        generation, usage = live.generation, live.usage
        request_id = generation.request.id
        self.records.append(Finished(request_id, Outcome.COMPLETED, finish, usage))
        self.leaving.append(request_id)
        self._deliveries.append(lambda: _end(generation, finish, usage))

    def failed(self, live: Live, error: MantleError) -> None:
        """The request is over for the worse."""
        generation = live.generation
        request_id = generation.request.id
        self.records.append(Finished(request_id, error.outcome, None, live.usage))
        self.leaving.append(request_id)
        self._deliveries.append(lambda: _fail(generation, error))

    def show(self) -> None:
        """All is durable: tell the readers."""
        for deliver in self._deliveries:
            deliver()


def _end(generation: LiveGeneration, finish: FinishReason, usage: Usage) -> None:
    if not generation.is_over:
        generation.end(finish, usage)


def _fail(generation: LiveGeneration, error: MantleError) -> None:
    if not generation.is_over:
        generation.fail(error)


def _tokens(live: Live, chunk: TokenChunk) -> Tokens:
    return Tokens(
        live.generation.request.id,
        live.epoch,
        chunk.first_index,
        list(chunk.token_ids),
        len(chunk.token_ids),
        None if chunk.logprobs is None else list(chunk.logprobs),
        None if chunk.prompt_logprobs is None else list(chunk.prompt_logprobs),
        live.cached_tokens if chunk.first_index == 0 else 0,
    )
