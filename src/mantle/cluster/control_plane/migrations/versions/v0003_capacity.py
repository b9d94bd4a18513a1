"""Queue bounds of tenants, and how fast each model was measured to be."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "queue_bounds",
        sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("lane", sa.String(16), primary_key=True),
        sa.Column("requests_max", sa.BigInteger, nullable=True),
        sa.Column("tokens_max", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "model_speeds",
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("setup", sa.String(64), nullable=False),
        sa.Column("prefill_tokens_per_s", sa.Float, nullable=False),
        sa.Column("decode_tokens_per_s", sa.Float, nullable=False),
        sa.Column("measured_s", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in ("model_speeds", "queue_bounds"):
        op.drop_table(table)
