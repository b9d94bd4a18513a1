"""How does a tenant look as JSON? In the admin API and in `mantle tenants … --json`.

Invariant: a key's text is never part of it; only the reply to its making has it beside.
"""

from typing import Any

from mantle.admission.port import ApiKey, TenantRecord


def tenant_object(record: TenantRecord) -> dict[str, Any]:
    tenant = record.tenant
    return {
        "object": "tenant",
        "id": tenant.id,
        "weight": tenant.weight,
        "lanes": sorted(tenant.lanes, key=lambda lane: lane.rank),
        "models": None if tenant.models is None else sorted(tenant.models),
        "quotas": [
            {
                "model": quota.model_id,
                "input_tokens_per_min": quota.input_tokens_per_min,
                "output_tokens_per_min": quota.output_tokens_per_min,
                "concurrent_max": quota.concurrent_max,
            }
            for quota in tenant.quotas
        ],
        "reservations": [
            {
                "model": bought.model_id,
                "input_tokens_per_min": bought.input_tokens_per_min,
                "output_tokens_per_min": bought.output_tokens_per_min,
            }
            for bought in tenant.reservations
        ],
        "queues": [
            {
                "lane": bound.lane.value,
                "requests_max": bound.requests_max,
                "tokens_max": bound.tokens_max,
            }
            for bound in tenant.queues
        ],
        "keys": [key_object(key) for key in record.keys],
        "created_at": record.created_s,
        "read_only": record.is_read_only,
        **({"warnings": list(record.warnings)} if record.warnings else {}),
    }


def key_object(key: ApiKey) -> dict[str, Any]:
    return {
        "object": "api_key",
        "id": key.id,
        "prefix": key.prefix,
        "created_at": key.created_s,
        "revoked_at": key.revoked_s,
    }
