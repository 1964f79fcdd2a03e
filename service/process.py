"""A process that serves or works: where it listens, and how it is told to stop."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn

from service.domain.errors import ShardwrightError
from service.settings import Settings

_BACKLOG = 2_048


class AddressInUse(ShardwrightError):
    """The address to listen on cannot be had."""

    kind = "address_in_use"


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """A socket that listens, taken before anything slow or lasting is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's algorithm off only where it is told that this is TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise AddressInUse(f"cannot listen on {where}: {error.strerror or error}") from error
        yield listener


class Server(uvicorn.Server):
    """Tells of a signal at once, and serves on for a while, until proxies send it nothing more."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event, drain_s: float) -> None:
        """Prepares a server.

        Args:
            config: of uvicorn, which raises the signal again when requests are through.
            stopping: set by the first signal.
            drain_s: seconds between the first signal and the end of connections; 0 for none.
        """
        super().__init__(config)
        self._stopping = stopping
        self._drain_s = drain_s
        self._draining: threading.Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal: the first one tells, a second one while it drains ends that."""
        first = not self._stopping.is_set()
        self._stopping.set()
        if first and self._drain_s:
            self._draining = threading.Timer(self._drain_s, super().handle_exit, (sig, frame))
            self._draining.daemon = True
            self._draining.start()
            return
        if self._draining:
            # Else it would be one more Ctrl-C, at which uvicorn drops what runs.
            self._draining.cancel()
        super().handle_exit(sig, frame)


class StopRequest:
    """Notes SIGTERM and SIGINT, and tells the server where there is one.

    Nothing is interrupted: what has been started is stopped in order, and an interrupted start could leave a database
    behind. While it serves, uvicorn handles the signals; it raises them again when it is through.
    """

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self.server: uvicorn.Server | None = None

    @property
    def made(self) -> bool:
        """Whether a signal came."""
        return self.wanted.is_set()

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Handles a signal."""
        self.wanted.set()
        if self.server:
            self.server.should_exit = True


@contextlib.contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Has SIGTERM and SIGINT noted, and handled as before at the end."""
    stop = StopRequest()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
