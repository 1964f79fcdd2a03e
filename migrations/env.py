"""Runs migrations on the connection that ``service.storage.migrate`` hands over, inside its transaction."""

from alembic import context

from service.storage.rows import Row

context.configure(connection=context.config.attributes["connection"], target_metadata=Row.metadata)
with context.begin_transaction():
    context.run_migrations()
