"""How much can a model give, and is more than that sold? Measured speeds against reservations.

A model's speed is two numbers: prefill tokens per second of steps that prefill, and decode tokens
per second of steps that only decode, each the best over `SPEED_WINDOW_MS` of such steps. Both use
the same engine, so reservations need the share Σ input ÷ prefill + Σ output ÷ decode of it, which
must not exceed 1. Decoding done beside prefill counts for neither, so the sum is on the safe side.
Invariant: what is said to be sold out was measured; what was not measured is never refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mantle.core.errors import InvalidRequest
from mantle.core.ids import ModelId
from mantle.core.limits import SPEED_WINDOW_MS
from mantle.core.tenant import Reservation, Tenant


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of engine time; 0: not measured yet."""

    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0

    @property
    def is_measured(self) -> bool:
        return self.prefill_tokens_per_s > 0 and self.decode_tokens_per_s > 0

    def best(self, other: "Speed") -> "Speed":
        return Speed(
            max(self.prefill_tokens_per_s, other.prefill_tokens_per_s),
            max(self.decode_tokens_per_s, other.decode_tokens_per_s),
        )

    def share_of(self, bought: Sequence[Reservation]) -> float:
        """The share of a measured model's time that these reservations need together."""
        input_per_s = sum(r.input_tokens_per_min for r in bought) / 60
        output_per_s = sum(r.output_tokens_per_min for r in bought) / 60
        return input_per_s / self.prefill_tokens_per_s + output_per_s / self.decode_tokens_per_s


@dataclass(slots=True)
class _Window:
    """Steps of one kind, gathered until they have taken `SPEED_WINDOW_MS` together."""

    tokens: int = 0
    spent_ms: float = 0.0

    def add(self, tokens: int, step_ms: float) -> float:
        """Tokens per second of the window that this step completes; 0 while it is not full."""
        self.tokens += tokens
        self.spent_ms += step_ms
        if self.spent_ms < SPEED_WINDOW_MS:
            return 0.0
        rate = self.tokens * 1_000 / self.spent_ms
        self.tokens, self.spent_ms = 0, 0.0
        return rate


@dataclass(slots=True)
class SpeedMeter:
    """Learns speeds from engine steps; `best` ones only, so a quiet hour takes nothing back."""

    speeds: dict[ModelId, Speed] = field(default_factory=dict)
    _prefill: dict[ModelId, _Window] = field(default_factory=dict)
    _decode: dict[ModelId, _Window] = field(default_factory=dict)

    def engine_step(
        self, model_id: ModelId, step_ms: float, prefill_tokens: int, decode_tokens: int
    ) -> None:
        """Count one step; a step with neither kind of token (interrupted) is lost time of both."""
        if prefill_tokens:
            rate = self._prefill.setdefault(model_id, _Window()).add(prefill_tokens, step_ms)
            seen = Speed(prefill_tokens_per_s=rate)
        else:
            rate = self._decode.setdefault(model_id, _Window()).add(decode_tokens, step_ms)
            seen = Speed(decode_tokens_per_s=rate)
        if rate:
            self.speeds[model_id] = self.speeds.get(model_id, Speed()).best(seen)


def reservations_of(tenants: Iterable[Tenant], model_id: ModelId) -> list[Reservation]:
    """What all tenants together bought of a model."""
    found = (tenant.reservation(model_id) for tenant in tenants)
    return [bought for bought in found if bought is not None]


def reserved_models(tenants: Iterable[Tenant]) -> list[ModelId]:
    return sorted({bought.model_id for tenant in tenants for bought in tenant.reservations})


def oversold(
    tenants: Sequence[Tenant], speeds: Mapping[ModelId, Speed], model_id: ModelId
) -> str | None:
    """Why the reservations of a model do not fit what it can give; None: they do, or who knows."""
    speed = speeds.get(model_id, Speed())
    bought = reservations_of(tenants, model_id)
    if not speed.is_measured or speed.share_of(bought) <= 1:
        return None
    return (
        f"reservations of '{model_id}' add up to "
        f"{sum(r.input_tokens_per_min for r in bought)} input + "
        f"{sum(r.output_tokens_per_min for r in bought)} output tokens per minute; measured were "
        f"{speed.prefill_tokens_per_s * 60:.0f} input or {speed.decode_tokens_per_s * 60:.0f} "
        f"output tokens per minute, so they need {speed.share_of(bought):.0%} of the model"
    )


def unmeasured(tenant: Tenant, speeds: Mapping[ModelId, Speed]) -> list[str]:
    """A warning for each reservation of this tenant that could not be checked."""
    return [
        f"the speed of '{bought.model_id}' was not measured yet, so its reservation was not "
        "checked; it is measured while the server works, and `mantle config check` looks again"
        for bought in tenant.reservations
        if not speeds.get(bought.model_id, Speed()).is_measured
    ]


def refuse_oversold(
    before: Tenant | None,
    after: Tenant,
    others: Sequence[Tenant],
    speeds: Mapping[ModelId, Speed],
) -> None:
    """Raises `InvalidRequest` when a change buys more of a model than it can give.

    Only what grows is looked at: a tenant of an oversold model may still sell back, or change
    its weight.
    """
    for bought in after.reservations:
        had = None if before is None else before.reservation(bought.model_id)
        if had is not None and not _grows(had, bought):
            continue
        problem = oversold([*others, after], speeds, bought.model_id)
        if problem is not None:
            raise InvalidRequest(
                problem,
                param="reservations",
                code="invalid_value",
                hint="reserve less, or end another reservation",
            )


def _grows(had: Reservation, wants: Reservation) -> bool:
    return (
        wants.input_tokens_per_min > had.input_tokens_per_min
        or wants.output_tokens_per_min > had.output_tokens_per_min
    )
