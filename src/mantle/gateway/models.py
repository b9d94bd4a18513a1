"""`/v1/models`: one object that serves both OpenAI's and Anthropic's lists.

Invariant: a key sees only models that its tenant may use; archived ones are never listed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mantle.core.errors import UnknownModel
from mantle.core.tenant import Principal
from mantle.gateway.parts import GatewayParts
from mantle.pool.port import CatalogueEntry, ModelState

_LIFECYCLE: Final = {
    ModelState.ACTIVE: "active",
    ModelState.LEGACY: "deprecated",
    ModelState.ARCHIVED: "retired",
}


def find(parts: GatewayParts, principal: Principal, name: str) -> CatalogueEntry:
    """The entry that `name` means. Raises `UnknownModel` or `PermissionDenied`."""
    entry = parts.catalogue.find(name)
    if entry is None:
        shown = "".join(c for c in name[:100] if c.isprintable())
        raise UnknownModel(f"the model '{shown}' does not exist, or this key may not see it")
    parts.admission.check_model(principal, entry.id)
    return entry


def listing(parts: GatewayParts, principal: Principal) -> bytes:
    """All models that this key may use."""
    objects = [
        _model_object(entry, parts.pool.window_tokens(entry.id))
        for entry in parts.catalogue.entries()
        if entry.state is not ModelState.ARCHIVED and principal.tenant.may_use(entry.id)
    ]
    return _list_body(objects)


def one(parts: GatewayParts, principal: Principal, name: str) -> bytes:
    entry = find(parts, principal, name)
    return msgspec.json.encode(_model_object(entry, parts.pool.window_tokens(entry.id)))


def _list_body(objects: Sequence[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(
        {
            "object": "list",
            "data": objects,
            "has_more": False,
            "first_id": objects[0]["id"] if objects else None,
            "last_id": objects[-1]["id"] if objects else None,
        }
    )


def _model_object(entry: CatalogueEntry, window_tokens: int) -> dict[str, Any]:
    created = datetime.fromtimestamp(entry.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": entry.id,
        "object": "model",
        "created": entry.created_s,
        "owned_by": "mantle",
        "type": "model",
        "display_name": entry.display_name,
        "created_at": created,
        "lifecycle": _LIFECYCLE[entry.state],
        "capabilities": None,
        "max_input_tokens": window_tokens,
        "max_tokens": window_tokens,
    }
