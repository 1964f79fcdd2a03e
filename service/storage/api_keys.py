"""The repository of API keys."""

import secrets
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, func, insert, or_, select, update

from service.domain.access import Action, AdminCall, ApiKey, KeyNotFound, Keys, NewKey, new_secret, secret_hash
from service.domain.callers import Scope
from service.storage.access_rows import ApiKeyRow
from service.storage.audit import UNCHANGED, AuditTrail
from service.storage.engine import storage_errors

CHANNEL = "shardwright_api_keys"
"""Where every change is notified of, without a payload: whoever listens reads all keys."""

_GRAIN = timedelta(hours=1)


class ApiKeyRepository:
    """Keeps API keys in Postgres, without their secrets; the ``KeyStore`` of the domain."""

    def __init__(self, engine: Engine, trail: AuditTrail) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine
        self._trail = trail

    def all(self) -> Keys:
        """All keys by the hash of their secret, the oldest first.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            return keys(connection)

    def create(self, wanted: NewKey, by: str) -> tuple[ApiKey, str]:
        """Makes a key; its secret is told here and never again.

        Raises:
            StorageUnavailable: the database cannot be reached; there is no key.
        """
        key_id, secret = secrets.token_hex(8), new_secret()
        call = AdminCall(by, Action.CREATE_KEY, f"{wanted.name} ({key_id}: {', '.join(sorted(wanted.scopes))})")
        with self._trail.recorded(call) as change:
            made = insert(ApiKeyRow).values(_values(key_id, secret, wanted))
            change.connection.execute(made)
            _notify(change.connection)
            row = change.connection.execute(_select().where(ApiKeyRow.id == key_id)).one()
            return _key(row), secret

    def revoke(self, key_id: str, by: str) -> ApiKey:
        """Makes a key invalid for good; one that is revoked already stays as it is.

        Raises:
            KeyNotFound: there is none under this id.
            StorageUnavailable: the database cannot be reached; nothing changed.
        """
        with self._trail.recorded(AdminCall(by, Action.REVOKE_KEY, key_id)) as change:
            valid = ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None)
            revoked = update(ApiKeyRow).where(*valid).values(revoked_at=func.now()).returning(ApiKeyRow.id)
            if change.connection.scalar(revoked) is None:
                change.outcome = UNCHANGED
            _notify(change.connection)
            row = change.connection.execute(_select().where(ApiKeyRow.id == key_id)).one_or_none()
            if row is None:
                raise KeyNotFound(
                    f"no API key has the id {key_id!r}: `shardwright keys list` shows those that there are"
                )
            change.subject = f"{row.name} ({key_id})"
            return _key(row)

    def used(self, ids: Collection[str]) -> None:
        """Notes that keys are used, to the hour.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        stale = or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < func.now() - _GRAIN)
        noted = update(ApiKeyRow).where(ApiKeyRow.id.in_(ids), stale).values(last_used_at=func.now())
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(noted)


def keys(connection: Connection) -> Keys:
    """All keys, over a given connection."""
    return {row.hash: _key(row) for row in connection.execute(_select().order_by(ApiKeyRow.created_at, ApiKeyRow.id))}


def _select() -> Select[Any]:
    left = func.extract("epoch", ApiKeyRow.expires_at - func.now()).label("expires_in_s")
    return select(*ApiKeyRow.__table__.columns, left)


def _notify(connection: Connection) -> None:
    connection.execute(select(func.pg_notify(CHANNEL, "")))


def _values(key_id: str, secret: str, wanted: NewKey) -> Mapping[str, Any]:
    expires = None if wanted.valid_days is None else func.now() + timedelta(days=wanted.valid_days)
    return {
        "id": key_id,
        "name": wanted.name,
        "hash": secret_hash(secret.encode()),
        "scopes": sorted(wanted.scopes),
        "expires_at": expires,
        "requests_per_minute": wanted.requests_per_minute,
        "burst": wanted.burst,
    }


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        scopes=frozenset(map(Scope, row.scopes)),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        expires_in_s=None if row.expires_in_s is None else float(row.expires_in_s),
        last_used_at=row.last_used_at,
        requests_per_minute=row.requests_per_minute,
        burst=row.burst,
    )
