"""Alembic migrations of the database; ``service.storage.migrate`` runs them."""
