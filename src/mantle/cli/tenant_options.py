"""How does an operator say what a tenant may? The options that `add` and `set` share.

Invariant: one call changes one quota or one reservation, so that `--input-tpm` has one meaning,
and the bounds of one queue.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Quota, Reservation, Tenant

Command = Callable[..., Any]

_OPTIONS = (
    click.option("--weight", type=float, help="Share against others. Default: 1."),
    click.option(
        "--lane",
        "lanes",
        multiple=True,
        type=click.Choice([Lane.PRIORITY.value, Lane.STANDARD.value, Lane.FLEX.value]),
        help="A lane it may use; repeat for several. Default: all.",
    ),
    click.option("--model", "models", multiple=True, help="A model it may use. Default: all."),
    click.option("--quota", metavar="MODEL", help="Limit its use of a model ('*': of each other)."),
    click.option("--reserve", metavar="MODEL", help="Capacity of a model that it bought."),
    click.option("--input-tpm", type=int, help="Input tokens per minute of --quota or --reserve."),
    click.option("--output-tpm", type=int, help="Output tokens per minute of either."),
    click.option("--concurrent", type=int, help="Requests at once, of --quota."),
    click.option(
        "--queue",
        type=click.Choice([lane.value for lane in Lane]),
        help="A lane in which its queue has bounds of its own.",
    ),
    click.option("--queue-requests", type=int, help="Requests that may wait there."),
    click.option("--queue-tokens", type=int, help="Tokens that may wait there."),
)


def tenant_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclasses.dataclass(frozen=True, slots=True)
class TenantWish:
    """What the options say; what they leave out stays as it is."""

    weight: float | None
    lanes: tuple[str, ...]
    models: tuple[str, ...]
    quota: str | None
    reserve: str | None
    input_tpm: int | None
    output_tpm: int | None
    concurrent: int | None
    queue: str | None
    queue_requests: int | None
    queue_tokens: int | None

    def apply(self, tenant: Tenant) -> Tenant:
        """The tenant as wished. Raises `click.UsageError` for options that do not fit together."""
        self._check()
        changes: dict[str, Any] = {}
        if self.weight is not None:
            changes["weight"] = self.weight
        if self.lanes:
            changes["lanes"] = frozenset(map(Lane, self.lanes))
        if self.models:
            changes["models"] = frozenset(map(ModelId, self.models))
        if self.quota is not None:
            quota = Quota(ModelId(self.quota), self.input_tpm, self.output_tpm, self.concurrent)
            changes["quotas"] = (*without(tenant.quotas, self.quota), quota)
        if self.reserve is not None:
            assert self.input_tpm is not None, "checked"
            assert self.output_tpm is not None, "checked"
            bought = Reservation(ModelId(self.reserve), self.input_tpm, self.output_tpm)
            changes["reservations"] = (*without(tenant.reservations, self.reserve), bought)
        if self.queue is not None:
            lane = Lane(self.queue)
            bound = QueueBound(lane, self.queue_requests, self.queue_tokens)
            changes["queues"] = (*without_lane(tenant.queues, lane), bound)
        return dataclasses.replace(tenant, **changes)

    def _check(self) -> None:
        limits = (self.input_tpm, self.output_tpm, self.concurrent)
        if self.quota is not None and self.reserve is not None:
            raise click.UsageError("give --quota and --reserve in two calls")
        if self.quota is None and self.reserve is None and any(v is not None for v in limits):
            raise click.UsageError("say which model is meant: --quota MODEL or --reserve MODEL")
        if self.quota is not None and all(v is None for v in limits):
            raise click.UsageError("--quota needs --input-tpm, --output-tpm or --concurrent")
        if self.reserve is not None and (self.input_tpm is None or self.output_tpm is None):
            raise click.UsageError("--reserve needs both --input-tpm and --output-tpm")
        if self.reserve is not None and self.concurrent is not None:
            raise click.UsageError("--concurrent belongs to --quota")
        bounds = (self.queue_requests, self.queue_tokens)
        if (self.queue is None) != all(v is None for v in bounds):
            raise click.UsageError("--queue goes with --queue-requests, --queue-tokens or both")


def without_lane(bounds: tuple[QueueBound, ...], lane: Lane) -> tuple[QueueBound, ...]:
    """The bounds but those of this lane."""
    return tuple(bound for bound in bounds if bound.lane is not lane)


def without(
    limits: tuple[Quota, ...] | tuple[Reservation, ...], model: str
) -> tuple[Quota | Reservation, ...]:
    """The limits but the one of this model."""
    return tuple(limit for limit in limits if limit.model_id != model)
