"""How is the control plane stored? Its tables, the same on SQLite and PostgreSQL.

Invariant: these tables and the migrations agree (a test compares them). Keys are stored as SHA-256
only; `prefix` is what people recognise a key by. Every change adds one to `change_count` in the
same transaction, so that a server that polls it misses nothing.
"""

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

TENANTS: Final = sa.Table(
    "tenants",
    METADATA,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("lanes", sa.JSON, nullable=False),
    sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
    sa.Column("created_s", sa.BigInteger, nullable=False),
)

API_KEYS: Final = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("prefix", sa.String(16), nullable=False),
    sa.Column("created_s", sa.BigInteger, nullable=False),
    sa.Column("revoked_s", sa.BigInteger, nullable=True),
    sa.Index("api_keys_tenant", "tenant_id"),
)

CHANGE_COUNT: Final = sa.Table(
    "change_count",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

QUOTAS: Final = sa.Table(
    "quotas",
    METADATA,
    sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("model", sa.String(255), primary_key=True),
    sa.Column("input_tokens_per_min", sa.BigInteger, nullable=True),
    sa.Column("output_tokens_per_min", sa.BigInteger, nullable=True),
    sa.Column("concurrent_max", sa.BigInteger, nullable=True),
)

RESERVATIONS: Final = sa.Table(
    "reservations",
    METADATA,
    sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("model", sa.String(255), primary_key=True),
    sa.Column("input_tokens_per_min", sa.BigInteger, nullable=False),
    sa.Column("output_tokens_per_min", sa.BigInteger, nullable=False),
)

QUEUE_BOUNDS: Final = sa.Table(
    "queue_bounds",
    METADATA,
    sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("lane", sa.String(16), primary_key=True),
    sa.Column("requests_max", sa.BigInteger, nullable=True),
    sa.Column("tokens_max", sa.BigInteger, nullable=True),
)

MODEL_SPEEDS: Final = sa.Table(
    "model_speeds",
    METADATA,
    sa.Column("model", sa.String(255), primary_key=True),
    sa.Column("setup", sa.String(64), nullable=False),
    sa.Column("prefill_tokens_per_s", sa.Float, nullable=False),
    sa.Column("decode_tokens_per_s", sa.Float, nullable=False),
    sa.Column("measured_s", sa.BigInteger, nullable=False),
)

ADMIN_KEYS: Final = sa.Table(
    "admin_keys",
    METADATA,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("prefix", sa.String(16), nullable=False),
    sa.Column("created_s", sa.BigInteger, nullable=False),
    sa.Column("revoked_s", sa.BigInteger, nullable=True),
)
