"""Changes of API keys are told to every machine at once."""

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import Engine

from service.domain.access import NewKey
from service.domain.callers import Scope
from service.storage.api_keys import CHANNEL, ApiKeyRepository
from service.storage.audit import AuditTrail
from service.storage.engine import libpq_parameters


def test_who_listens_is_told_of_keys_that_are_made_and_revoked_and_not_of_their_use(engine: Engine) -> None:
    keys = ApiKeyRepository(engine, AuditTrail(engine))
    with psycopg.connect(libpq_parameters(engine.url, "listener")[0], autocommit=True) as listener:
        listener.execute(SQL("LISTEN {}").format(Identifier(CHANNEL)))

        def told(within_s: float = 2.0) -> int:
            return len(list(listener.notifies(timeout=within_s, stop_after=1)))

        made, _ = keys.create(NewKey("ann", frozenset({Scope.PLAN})), "me")
        assert told() == 1
        keys.used([made.id])
        assert told(0.2) == 0
        keys.revoke(made.id, "me")
        assert told() == 1
