"""Postgres: the embedded server, the engine, rows, repositories and migrations."""
