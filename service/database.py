"""The database of the settings: one that they name, or the embedded one, kept running."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from sqlalchemy import Engine

from service.domain.errors import ShardwrightError
from service.settings import Settings
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine, build_prompt_engine

_EMBEDDED_CHECK_S = 5.0

_log = logging.getLogger(__name__)


class NoDatabaseThere(ShardwrightError):
    """The folder of the embedded database holds none, and the command is not one that begins with an empty one."""

    kind = "no_database_there"


@contextlib.contextmanager
def database(
    settings: Settings, create: bool = False, restarted: Callable[[], None] = lambda: None, prompt: bool = False
) -> Iterator[Engine]:
    """An engine on the database of the settings, the embedded one started where they name none.

    Args:
        settings: of the service.
        create: whether an embedded one may be made where there is none.
        restarted: called whenever the embedded one was gone and runs again.
        prompt: whether callers or a stop wait for statements, which then end within seconds; see
            ``build_prompt_engine``.

    Raises:
        NoDatabaseThere: there is no embedded one yet, and none may be made.
        ShardwrightError: the embedded one does not start, or the URL is malformed.
    """
    with contextlib.ExitStack() as stack:
        server = EmbeddedPostgres(settings.data_dir)
        if not (settings.database_url or create or server.exists):
            raise NoDatabaseThere(
                f"there is no database in {settings.data_dir.absolute()}: give the folder that `shardwright serve` or "
                "`shardwright profile` had as --data-dir, or set DATABASE_URL; `shardwright db upgrade` makes a new one"
            )
        url = settings.database_url or stack.enter_context(_embedded(server, restarted))
        engine = build_prompt_engine(url) if prompt else build_engine(url)
        stack.callback(engine.dispose)
        yield engine


@contextlib.contextmanager
def _embedded(server: EmbeddedPostgres, restarted: Callable[[], None]) -> Iterator[str]:
    """The URL of the embedded server, which is started again if it is killed meanwhile."""
    url, over = server.start(), threading.Event()

    def watch() -> None:
        while not over.wait(_EMBEDDED_CHECK_S):
            launches = server.launches
            try:
                server.start()
                if server.launches > launches:
                    _log.warning("the embedded database was gone and runs again")
                    restarted()
            except ShardwrightError as error:
                _log.error("the embedded database does not start", extra={"fields": {"cause": error.detail}})

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield url
    finally:
        over.set()
        watcher.join()
        server.leave()
