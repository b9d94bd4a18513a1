"""What are things called? Typed names, so that a tenant is never passed where a model is meant."""

import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
ModelId = NewType("ModelId", str)
ReplicaId = NewType("ReplicaId", str)
WorkerId = NewType("WorkerId", str)


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 24 random hexadecimal digits (96 bits)."""
    return prefix + secrets.token_hex(12)
