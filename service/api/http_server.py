"""uvicorn's connections, which do not wait for ever."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which closes a connection where a request's head does not come to its end in time.

    uvicorn itself waits for ever for a head of which a byte comes now and then, so that a few thousand such clients
    take all the connections that a process may have. Bodies have a limit of their own, see ``body.receive_body``.
    """

    head_timeout_s = 10.0
    """Seconds from the connection, or from the answer before, to the end of a request's head."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first head."""
        super().connection_made(transport)
        self._wait_or_not()

    def data_received(self, data: bytes) -> None:
        """Takes bytes; those that end a head end the wait."""
        super().data_received(data)
        self._wait_or_not()

    def on_response_complete(self) -> None:
        """Begins to wait for the next head."""
        super().on_response_complete()
        self._wait_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        super().connection_lost(exc)
        self._wait_no_more()

    def _wait_or_not(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
