"""How are tenants, their limits and their keys changed over HTTP? `/admin/v1/tenants`.

Invariant: a key's text leaves once, in the reply to its making.
"""

import dataclasses
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from mantle.admission.port import TenantAdmin
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Quota, Reservation, Tenant
from mantle.gateway.body import check_media_type, decode
from mantle.gateway.exchange import JSON, Exchange
from mantle.gateway.tenant_objects import key_object, tenant_object

BODY_BYTES_MAX: Final = 1 << 20


class QuotaBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quota; `model` `*` means each model without its own."""

    model: str
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrent_max: int | None = None


class ReservationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Capacity of one model."""

    model: str
    input_tokens_per_min: int
    output_tokens_per_min: int


class QueueBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its own bounds in one lane; null: as every tenant."""

    lane: Lane
    requests_max: int | None = None
    tokens_max: int | None = None


class TenantChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; a field that is left out stays, a list replaces the whole list."""

    weight: float | UnsetType = UNSET
    lanes: list[Lane] | UnsetType = UNSET
    models: list[str] | UnsetType | None = UNSET
    quotas: list[QuotaBody] | UnsetType = UNSET
    reservations: list[ReservationBody] | UnsetType = UNSET
    queues: list[QueueBody] | UnsetType = UNSET

    def apply(self, tenant: Tenant) -> Tenant:
        changes: dict[str, Any] = {}
        if self.weight is not UNSET:
            changes["weight"] = self.weight
        if self.lanes is not UNSET:
            changes["lanes"] = frozenset(self.lanes)
        if self.models is not UNSET:
            models = self.models
            changes["models"] = None if models is None else frozenset(map(ModelId, models))
        if self.quotas is not UNSET:
            changes["quotas"] = tuple(map(_quota, self.quotas))
        if self.reservations is not UNSET:
            changes["reservations"] = tuple(map(_reservation, self.reservations))
        if self.queues is not UNSET:
            changes["queues"] = tuple(map(_queue_bound, self.queues))
        return dataclasses.replace(tenant, **changes)


class NewTenant(TenantChanges, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tenant to make. `create_key`: its first key is in the reply."""

    id: str
    create_key: bool = True


_changes_decoder: Final = msgspec.json.Decoder(TenantChanges)
_new_decoder: Final = msgspec.json.Decoder(NewTenant)


# --- what the routes do -------------------------------------------------------------------------
async def _list(admin: TenantAdmin, exchange: Exchange) -> None:
    tenants = [tenant_object(record) for record in await admin.tenants()]
    await _reply(exchange, {"object": "list", "data": tenants})


async def _create(admin: TenantAdmin, exchange: Exchange) -> None:
    body = await _body(exchange, _new_decoder)
    record = await admin.add(body.apply(Tenant(TenantId(body.id))))
    api_key: str | None = None
    if body.create_key:
        _, api_key = await admin.add_key(body.id)
        with_key = await admin.find(body.id)
        record = dataclasses.replace(with_key, warnings=record.warnings)
    value = tenant_object(record)
    await _reply(exchange, value if api_key is None else {**value, "key": api_key}, status=201)


async def _get(admin: TenantAdmin, exchange: Exchange, tenant_id: str) -> None:
    await _reply(exchange, tenant_object(await admin.find(tenant_id)))


async def _change(admin: TenantAdmin, exchange: Exchange, tenant_id: str) -> None:
    changes = await _body(exchange, _changes_decoder)
    await _reply(exchange, tenant_object(await admin.change(tenant_id, changes.apply)))


async def _remove(admin: TenantAdmin, exchange: Exchange, tenant_id: str) -> None:
    await admin.remove(tenant_id)
    await _reply(exchange, {"object": "tenant.deleted", "id": tenant_id, "deleted": True})


async def _keys(admin: TenantAdmin, exchange: Exchange, tenant_id: str) -> None:
    keys = [key_object(key) for key in (await admin.find(tenant_id)).keys]
    await _reply(exchange, {"object": "list", "data": keys})


async def _add_key(admin: TenantAdmin, exchange: Exchange, tenant_id: str) -> None:
    key, text = await admin.add_key(tenant_id)
    await _reply(exchange, {**key_object(key), "key": text}, status=201)


async def _revoke_key(admin: TenantAdmin, exchange: Exchange, tenant_id: str, key_id: str) -> None:
    await admin.revoke_key(tenant_id, key_id)
    await _reply(exchange, {"object": "api_key.deleted", "id": key_id, "deleted": True})


Handler = Callable[..., Awaitable[None]]
_TENANT: Final = r"/admin/v1/tenants/([A-Za-z0-9._-]{1,63})"
ROUTES: Final[tuple[tuple[re.Pattern[str], dict[str, Handler]], ...]] = (
    (re.compile(r"/admin/v1/tenants"), {"GET": _list, "POST": _create}),
    (re.compile(_TENANT), {"GET": _get, "PATCH": _change, "DELETE": _remove}),
    (re.compile(_TENANT + "/keys"), {"GET": _keys, "POST": _add_key}),
    (re.compile(_TENANT + r"/keys/([0-9a-f]{1,64})"), {"DELETE": _revoke_key}),
)


# --- bodies -------------------------------------------------------------------------------------
async def _body(exchange: Exchange, decoder: msgspec.json.Decoder[Any]) -> Any:
    check_media_type(exchange.headers.get("content-type"))
    return decode(decoder, await exchange.body(bytes_max=BODY_BYTES_MAX))


async def _reply(exchange: Exchange, value: dict[str, Any], *, status: int = 200) -> None:
    headers = [(b"cache-control", b"no-store")]
    body = msgspec.json.encode(value)
    await exchange.respond(status, body, content_type=JSON, headers=headers)


def _quota(body: QuotaBody) -> Quota:
    return Quota(
        ModelId(body.model),
        body.input_tokens_per_min,
        body.output_tokens_per_min,
        body.concurrent_max,
    )


def _reservation(body: ReservationBody) -> Reservation:
    return Reservation(ModelId(body.model), body.input_tokens_per_min, body.output_tokens_per_min)


def _queue_bound(body: QueueBody) -> QueueBound:
    return QueueBound(body.lane, body.requests_max, body.tokens_max)
