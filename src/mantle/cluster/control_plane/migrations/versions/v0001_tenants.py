"""Tenants, the hashes of their API keys, and the counter that tells a server to read again."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(63), primary_key=True),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("lanes", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_s", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created_s", sa.BigInteger, nullable=False),
        sa.Column("revoked_s", sa.BigInteger, nullable=True),
    )
    op.create_index("api_keys_tenant", "api_keys", ["tenant_id"])
    change = op.create_table(
        "change_count",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(change, [{"id": 1, "value": 0}])


def downgrade() -> None:
    for table in ("change_count", "api_keys", "tenants"):
        op.drop_table(table)
