"""Which lane does a request queue in? The client's service tier, as far as its tenant may go.

Invariant: the lane follows from the tier, the tenant and what is left of what it bought; the reply
names the lane that served, so a client always learns when it got another one than it asked for.
"""

from mantle.core.errors import InvalidRequest, PermissionDenied
from mantle.core.lane import Lane
from mantle.core.tenant import Tenant

RESERVED_TIERS = frozenset({None, "auto", "scale", "reserved"})
"""Words (None: no word) that use bought capacity while there is some, as OpenAI's `auto` and
`scale` and Anthropic's `auto` do."""

SHARED_TIERS = frozenset({"default", "standard", "standard_only"})
"""Words that never use bought capacity: the Standard lane."""

NAMED_TIERS = {"priority": Lane.PRIORITY, "flex": Lane.FLEX, "batch": Lane.FLEX}


def wants_reserved(service_tier: str | None) -> bool:
    """True when the request should use what its tenant bought, if it bought any."""
    return service_tier in RESERVED_TIERS


def choose_lane(service_tier: str | None, *, tenant: Tenant) -> Lane:
    """The lane for a tier when no bought capacity serves it.

    Raises `InvalidRequest` for an unknown word, `PermissionDenied` for a named lane that the
    tenant may not use.
    """
    if service_tier in RESERVED_TIERS or service_tier in SHARED_TIERS:
        return _lowest_harm(tenant)
    lane = None if service_tier is None else NAMED_TIERS.get(service_tier)
    if lane is None:
        words = {word for word in RESERVED_TIERS if word is not None}
        known = ", ".join(sorted(words | SHARED_TIERS | NAMED_TIERS.keys()))
        raise InvalidRequest(
            f"unknown service tier; known are {known}", param="service_tier", code="invalid_value"
        )
    if lane not in tenant.lanes:
        raise PermissionDenied(
            f"this key may not use the {lane} tier",
            code="service_tier_not_allowed",
            hint="leave service_tier out, or ask for auto",
        )
    return lane


def _lowest_harm(tenant: Tenant) -> Lane:
    """Standard where allowed, else Flex, else whatever the tenant has."""
    for lane in (Lane.STANDARD, Lane.FLEX, Lane.PRIORITY):
        if lane in tenant.lanes:
            return lane
    raise PermissionDenied(
        "this key may use no lane",
        code="service_tier_not_allowed",
        hint="ask the operator for a lane",
    )
