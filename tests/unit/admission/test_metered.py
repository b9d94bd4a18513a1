"""Is a hold settled once, whatever becomes of the request and whatever its reader does?"""

import pytest

from mantle.admission.metered import MeteredGeneration
from mantle.admission.quota import Quotas
from mantle.core.errors import ReplicaLost
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.tenant import Quota, Tenant
from mantle.core.tokens import Usage
from mantle.scheduler.port import Ended, Phases, QueueView, TokenChunk
from mantle.testing.requests import a_request
from mantle.testing.sim_clock import SimClock

WHO = Tenant(TenantId("t"), quotas=(Quota(ModelId("m"), 100, 100, 9),))


class ScriptedGeneration:
    """Gives three tokens one by one, then ends or fails."""

    def __init__(self, *, error=None, fails_after=3, waits=False):
        self.request = a_request(prompt_tokens=10, max_output_tokens=50)
        self.ended = None
        self.waits = waits
        self._made = 0
        self._error = error
        self._fails_after = fails_after

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self._error is not None and self._made == self._fails_after:
            raise self._error
        if self._made == 3:
            self._end(FinishReason.END)
            raise StopAsyncIteration
        self._made += 1
        return TokenChunk(self._made - 1, (7,))

    def queue_view(self):
        return QueueView(0, 1.0) if self.waits else None

    def usage_so_far(self):
        return Usage(10, 4, self._made)

    def phases_so_far(self):
        return Phases(0, 0, 0)

    def cancel(self):
        if self.ended is None:
            self._end(FinishReason.END)

    def stop_at(self, output_tokens):
        self._made = output_tokens
        self._end(FinishReason.STOP_STRING)

    def _end(self, finish):
        self.ended = Ended(finish, self.usage_so_far(), self.phases_so_far(), Lane.STANDARD)


@pytest.fixture
def quotas():
    return Quotas(SimClock())


def metered(quotas, inner):
    (hold,) = quotas.reserve(WHO, ModelId("m"), input_tokens=10, max_output_tokens=50)
    return MeteredGeneration(inner, hold)


def taken(quotas):
    limits = quotas.limits(WHO, ModelId("m"))
    return (
        100 - limits.input_tokens.remaining,
        100 - limits.output_tokens.remaining,
        9 - limits.requests.remaining,
    )


async def test_read_to_the_end_it_costs_what_was_used(quotas):
    generation = metered(quotas, ScriptedGeneration())
    assert taken(quotas) == (10, 50, 1)
    assert [chunk.first_index async for chunk in generation] == [0, 1, 2]
    assert generation.ended.finish is FinishReason.END
    assert taken(quotas) == (6, 3, 0)
    generation.cancel()
    assert taken(quotas) == (6, 3, 0)


async def test_failure_before_the_first_token_is_free(quotas):
    generation = metered(quotas, ScriptedGeneration(error=ReplicaLost("gone"), fails_after=0))
    with pytest.raises(ReplicaLost):
        await anext(generation)
    assert taken(quotas) == (0, 0, 0)


async def test_failure_midway_costs_what_came(quotas):
    generation = metered(quotas, ScriptedGeneration(error=ReplicaLost("gone"), fails_after=2))
    with pytest.raises(ReplicaLost):
        [chunk async for chunk in generation]
    generation.cancel()
    assert taken(quotas) == (6, 2, 0)


async def test_cancel_while_waiting_is_free(quotas):
    generation = metered(quotas, ScriptedGeneration(waits=True))
    generation.cancel()
    generation.cancel()
    assert taken(quotas) == (0, 0, 0)


async def test_cancel_while_the_prompt_is_computed_costs_the_prompt(quotas):
    metered(quotas, ScriptedGeneration()).cancel()
    assert taken(quotas) == (6, 0, 0)


async def test_stop_string_costs_the_tokens_up_to_it(quotas):
    generation = metered(quotas, ScriptedGeneration())
    await anext(generation)
    generation.stop_at(1)
    assert generation.ended.finish is FinishReason.STOP_STRING
    assert taken(quotas) == (6, 1, 0)
    generation.cancel()
    assert taken(quotas) == (6, 1, 0)
