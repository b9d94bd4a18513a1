"""Which lane does a request queue in? The client's service tier, as far as its tenant may go.

Invariant: the lane follows from the tier and the tenant alone, and the reply names the lane that
served, so a client always learns when it got another one than it asked for.
"""

from mantle.core.errors import InvalidRequest, PermissionDenied
from mantle.core.lane import Lane
from mantle.core.tenant import Tenant

AUTO_TIERS = frozenset({"auto", "default", "standard", "standard_only", "scale"})
"""Words (OpenAI's and Anthropic's) that leave the choice to us: the Standard lane."""

NAMED_TIERS = {
    "priority": Lane.PRIORITY,
    "flex": Lane.FLEX,
    "batch": Lane.FLEX,
    "reserved": Lane.RESERVED,
}


def choose_lane(service_tier: str | None, *, tenant: Tenant) -> Lane:
    """The lane for a tier. Raises `InvalidRequest` for an unknown word, `PermissionDenied` for a
    named lane that the tenant may not use. Reserved without a reservation is served as Standard.
    """
    if service_tier is None or service_tier in AUTO_TIERS:
        return _lowest_harm(tenant)
    lane = NAMED_TIERS.get(service_tier)
    if lane is None:
        known = ", ".join(sorted(AUTO_TIERS | NAMED_TIERS.keys()))
        raise InvalidRequest(
            f"unknown service tier; known are {known}", param="service_tier", code="invalid_value"
        )
    if lane is Lane.RESERVED:
        return _lowest_harm(tenant)
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
