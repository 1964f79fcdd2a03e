"""Connections to Postgres, and the one place where their failures become domain errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, exc, text
from sqlalchemy.engine import URL, make_url

from service.domain.errors import ShardwrightError, StorageUnavailable
from service.storage.impatient_connection import limit_waits

RETRY_AFTER_S = 2
"""Seconds after which a caller may try again when the database was away."""

_DRIVER = "postgresql+psycopg"
_CONNECT_TIMEOUT_S = 2
_POOL_TIMEOUT_S = 2.0
_TCP = {"tcp_user_timeout": 5_000, "keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
"""Milliseconds, seconds, seconds, probes after which a machine is taken for gone; by itself TCP takes 15 minutes."""

ANSWER_TIMEOUT_S = 6.0
"""After which a server is taken for frozen where somebody waits; one that works has ended the statement before."""

_PROMPT_STATEMENT_TIMEOUT_MS = 5_500
"""Longer than a wait for a lock, so that what is logged names the lock."""

_BOUND_IDLENESS = text("SET LOCAL idle_in_transaction_session_timeout = '10s'")

_OUTAGES = ("25006", "53", "57")
"""Beginnings of SQLSTATEs of a server that cannot serve now: a primary turned standby, no resources, a shutdown."""


class InvalidDatabaseUrl(ShardwrightError):
    """The database URL is not one of Postgres; the URL itself is left out, since it may hold a password."""

    kind = "invalid_database_url"


def database_url(text: str) -> URL:
    """Parses ``postgres://``, ``postgresql://`` or ``postgresql+psycopg://`` into a URL for psycopg 3.

    Raises:
        InvalidDatabaseUrl: it is malformed or of another database.
    """
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        # Without the cause: its message may quote parts of the URL.
        raise InvalidDatabaseUrl("the database URL cannot be parsed; postgresql://user@host/name is wanted") from None
    if url.drivername not in ("postgres", "postgresql", _DRIVER):
        raise InvalidDatabaseUrl("the database URL must begin with postgresql:// or postgresql+psycopg://")
    if "@" in (url.host or ""):
        raise InvalidDatabaseUrl("a special character in the database URL's password must be percent-encoded")
    return url.set(drivername=_DRIVER)


def build_engine(
    url: str | URL,
    *,
    application_name: str = "shardwright",
    statement_timeout_ms: int = 30_000,
    lock_timeout_ms: int = 5_000,
    pool_size: int = 5,
    answer_timeout_s: float | None = None,
) -> Engine:
    """An engine with a pool whose connections are checked before use; opens none yet.

    What the URL states of a connection goes before what is set here.

    Args:
        url: in any form that ``database_url`` takes.
        application_name: what ``pg_stat_activity`` shows.
        statement_timeout_ms: after which the server cancels a statement; 0 for never.
        lock_timeout_ms: after which the server cancels a wait for a lock; 0 for never.
        pool_size: connections kept; as many again may be open for a while.
        answer_timeout_s: after which a connection is given up whose server does not answer, though it may be at work;
            None for never.

    Raises:
        InvalidDatabaseUrl: the URL is malformed or of another database.
    """
    parsed = _parsed(url)
    engine = create_engine(
        parsed,
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=_POOL_TIMEOUT_S,
        hide_parameters=True,
        connect_args=_connect_args(parsed, application_name, statement_timeout_ms, lock_timeout_ms),
    )
    if answer_timeout_s is not None:
        limit_waits(engine, answer_timeout_s)
    return engine


def build_prompt_engine(url: str | URL) -> Engine:
    """An engine for a process whose callers wait: a statement ends within seconds, of a server that is frozen too.

    A server that works cancels what takes too long, before the connection would be given up.

    Raises:
        InvalidDatabaseUrl: the URL is malformed or of another database.
    """
    return build_engine(url, statement_timeout_ms=_PROMPT_STATEMENT_TIMEOUT_MS, answer_timeout_s=ANSWER_TIMEOUT_S)


def build_unpooled_engine(
    url: str | URL, *, application_name: str, statement_timeout_ms: int, lock_timeout_ms: int
) -> Engine:
    """An engine for rare work, migrations for one: each connection is opened for its use and closed after it.

    The arguments are those of ``build_engine``.
    """
    parsed = _parsed(url)
    return create_engine(
        parsed,
        poolclass=NullPool,
        hide_parameters=True,
        connect_args=_connect_args(parsed, application_name, statement_timeout_ms, lock_timeout_ms),
    )


def libpq_parameters(url: str | URL, application_name: str) -> tuple[str, dict[str, Any]]:
    """A URL for libpq and what connections get besides, for a pool that is not SQLAlchemy's.

    Time limits are those of ``build_engine``.

    Raises:
        InvalidDatabaseUrl: the URL is malformed or of another database.
    """
    parsed = _parsed(url)
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    return plain, _connect_args(parsed, application_name, statement_timeout_ms=30_000, lock_timeout_ms=5_000)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turns failures of the connection, the pool or the server inside the block into ``StorageUnavailable``.

    What the database says about a statement (a violated constraint, a missing table) passes through.

    Raises:
        StorageUnavailable: with ``data['retry_after_s']``.
    """
    try:
        yield
    except exc.TimeoutError as error:
        raise _unavailable("all connections are in use") from error
    except exc.DBAPIError as error:
        if _is_outage(error):
            raise _unavailable(_first_line(error)) from error
        raise


@contextmanager
def short_transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction that the server ends if nothing comes from this process for ten seconds.

    A process that is stopped in the middle of one, or whose machine is gone, must not keep locks that others need.

    Raises:
        StorageUnavailable: the database cannot be reached, or ended the transaction.
    """
    with storage_errors(), engine.begin() as connection:
        connection.execute(_BOUND_IDLENESS)
        yield connection


def _parsed(url: str | URL) -> URL:
    return url if isinstance(url, URL) else database_url(url)


def _connect_args(url: URL, application_name: str, statement_timeout_ms: int, lock_timeout_ms: int) -> dict[str, Any]:
    own = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": application_name, **_TCP}
    timeouts = f"-c statement_timeout={statement_timeout_ms} -c lock_timeout={lock_timeout_ms}"
    # Of two settings of one parameter the server takes the later one.
    options = " ".join([timeouts, *url.normalized_query.get("options", ())])
    return {name: value for name, value in own.items() if name not in url.query} | {"options": options}


def _is_outage(error: exc.DBAPIError) -> bool:
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated:
        return True
    return (getattr(error.orig, "sqlstate", None) or "").startswith(_OUTAGES)


def _unavailable(reason: str) -> StorageUnavailable:
    return StorageUnavailable(f"the database is not available: {reason}", retry_after_s=RETRY_AFTER_S)


def _first_line(error: exc.DBAPIError) -> str:
    lines = str(error.orig).splitlines()
    return lines[0] if lines else type(error.orig).__name__
