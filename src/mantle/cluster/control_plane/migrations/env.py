"""What Alembic runs for each migration; the connection (in a transaction) comes from `migrate`."""

from alembic import context

from mantle.cluster.control_plane.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
context.run_migrations()
