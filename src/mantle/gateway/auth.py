"""Which API key does this request carry? Both headers are read on every route.

Invariant: a key is looked up through admission only and never logged.
"""

from mantle.admission.port import AdmissionPort
from mantle.core.errors import Unauthenticated
from mantle.core.tenant import Principal


def keys_of(headers: dict[str, str]) -> list[str]:
    """The keys sent, `Authorization: Bearer` before `x-api-key`."""
    keys = []
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        keys.append(token.strip())
    if headers.get("x-api-key", "").strip():
        keys.append(headers["x-api-key"].strip())
    return keys


def authenticate(admission: AdmissionPort, headers: dict[str, str]) -> Principal:
    """Who the request speaks for. Raises `Unauthenticated` when no key sent is valid."""
    keys = keys_of(headers)
    for key in keys[:-1]:
        try:
            return admission.authenticate(key)
        except Unauthenticated:
            continue
    return admission.authenticate(keys[-1] if keys else None)
