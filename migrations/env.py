"""Runs migrations on the connection that ``service.storage.migrate`` hands over, inside its transaction."""

from alembic import context

from service.storage.schema import METADATA, declared_here

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, include_name=declared_here
)
with context.begin_transaction():
    context.run_migrations()
