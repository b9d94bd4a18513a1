"""Which class does a request queue in? The order of the members is the order of service."""

from enum import StrEnum


class Lane(StrEnum):
    """The class a request queues in; smaller `rank` is served first."""

    RESERVED = "reserved"
    PRIORITY = "priority"
    STANDARD = "standard"
    FLEX = "flex"

    @property
    def rank(self) -> int:
        """Place in the order of service: 0 is first."""
        return _RANK[self]


_RANK = {lane: rank for rank, lane in enumerate(Lane)}
