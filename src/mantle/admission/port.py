"""What may the gateway ask of admission? Who is this key, let this ask in, and change a tenant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mantle.core.ids import ModelId
from mantle.core.sampling import SamplingParams
from mantle.core.tenant import Principal, Tenant
from mantle.core.tokens import TokenIds
from mantle.scheduler.port import Generation


@dataclass(frozen=True, slots=True, repr=False)
class Ask:
    """What a client asked, tokenised, wire formats gone. `n` branches share the prompt.

    `service_tier` is the client's word (None: not given), checked by the gateway against its wire
    format's own values and mapped to a lane here. `max_output_tokens` None means as far as the
    window goes; a larger value than what is left of the window is clamped. `prompt_param` names
    the field to blame when the prompt is too long.
    """

    model_id: ModelId
    prompt_tokens: TokenIds
    sampling: SamplingParams
    max_output_tokens: int | None
    n: int = 1
    service_tier: str | None = None
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    ignore_eos: bool = False
    grammar: str = ""
    deadline_ms: float | None = None
    prompt_param: str = "messages"

    def __repr__(self) -> str:
        return f"Ask({self.model_id}, prompt={len(self.prompt_tokens)} tokens, n={self.n})"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One of a tenant's own limits. `reset_ms`: from now until it should be wholly free again."""

    limit: int
    remaining: int
    reset_ms: float


@dataclass(frozen=True, slots=True)
class RateLimits:
    """A tenant's limits on one model; None: unlimited. `requests` counts concurrent ones."""

    requests: RateLimit | None
    input_tokens: RateLimit | None
    output_tokens: RateLimit | None


class AdmissionPort(Protocol):
    """Admission, as the gateway sees it."""

    def authenticate(self, api_key: str | None) -> Principal:
        """Who the key speaks for. Raises `Unauthenticated`."""
        ...

    def check_model(self, principal: Principal, model_id: ModelId) -> None:
        """Raises `UnknownModel` (also for archived ones) or `PermissionDenied`."""
        ...

    def enter(self, principal: Principal, ask: Ask) -> list[Generation]:
        """Accept all n branches or none.

        Returns: the caller reads (or cancels) each Generation. Raises any `Rejected` before
        anything was stored: `UnknownModel`, `PermissionDenied`, `PromptTooLong`, `QueueFull`,
        `QuotaExceeded`, `BeyondQuota`, `Unavailable`. A tenant short of output quota gets
        requests with a smaller `max_output_tokens`: they end with `FinishReason.LENGTH`.
        """
        ...

    def limits(self, principal: Principal, model_id: ModelId) -> RateLimits | None:
        """The tenant's own limits on a model, as they stand now; None when it has none."""
        ...


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as an operator sees it: `id` is the beginning of its hash, `prefix` of itself
    (empty when only its hash was ever known). Times are Unix seconds.
    """

    id: str
    prefix: str
    created_s: int
    revoked_s: int | None


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant as an operator sees it. `is_read_only`: it stands in the config file.

    `warnings`: what its last change left doubtful; only in the reply to that change.
    """

    tenant: Tenant
    keys: tuple[ApiKey, ...]
    created_s: int
    is_read_only: bool
    warnings: tuple[str, ...] = ()


class TenantAdmin(Protocol):
    """The operator's hands on tenants; what a method did is in force when it returns.

    All but `authenticate` may raise `Unavailable` (the database does not answer).
    """

    def authenticate(self, api_key: str | None) -> None:
        """Raises `NotFound` while there is no admin key, `Unauthenticated` for a wrong one."""
        ...

    async def tenants(self) -> list[TenantRecord]: ...

    async def find(self, tenant_id: str) -> TenantRecord:
        """Raises `NotFound`."""
        ...

    async def add(self, tenant: Tenant) -> TenantRecord:
        """Raises `InvalidRequest`, or `Conflict` when the id is taken."""
        ...

    async def change(self, tenant_id: str, edit: Callable[[Tenant], Tenant]) -> TenantRecord:
        """Replace a tenant by `edit` of it, in one step.

        Raises `NotFound`, `InvalidRequest`, or `Conflict` when it is read-only.
        """
        ...

    async def remove(self, tenant_id: str) -> None:
        """Raises `NotFound`, or `Conflict` when it is read-only."""
        ...

    async def add_key(self, tenant_id: str) -> tuple[ApiKey, str]:
        """A new key, and its text: the only time it is seen. Raises `NotFound` or `Conflict`."""
        ...

    async def revoke_key(self, tenant_id: str, key_id: str) -> None:
        """Raises `NotFound` (also for a key that is revoked already), or `Conflict`."""
        ...
