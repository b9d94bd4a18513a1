"""Quotas and reservations of tenants, and the keys of the admin API."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("input_tokens_per_min", sa.BigInteger, nullable=True),
        sa.Column("output_tokens_per_min", sa.BigInteger, nullable=True),
        sa.Column("concurrent_max", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "reservations",
        sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("input_tokens_per_min", sa.BigInteger, nullable=False),
        sa.Column("output_tokens_per_min", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "admin_keys",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created_s", sa.BigInteger, nullable=False),
        sa.Column("revoked_s", sa.BigInteger, nullable=True),
    )


def downgrade() -> None:
    for table in ("admin_keys", "reservations", "quotas"):
        op.drop_table(table)
