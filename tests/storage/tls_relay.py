"""TLS in front of a Postgres server that has none, as its protocol asks for it, and certificates for it."""

import asyncio
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


def certificate(folder: Path, host: str) -> Path:
    """A certificate of a host that vouches for itself; its key is in the same file."""
    path, key = folder / f"{host}.pem", folder / f"{host}.key"
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    names = ["-addext", f"subjectAltName=DNS:{host}"]
    command = ["openssl", *request, *names, "-keyout", str(key), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path


@dataclass
class Relay:
    """Hands connections on to a server, over TLS where it has a certificate.

    Attributes:
        server: where they go.
        certificate: what it shows; None for no TLS.
        port: where it listens, on localhost.
        encrypted: names of the applications that connected over TLS.
        plain: and of those that did without.
    """

    server: URL
    certificate: Path | None
    port: int = 0
    encrypted: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)

    async def serve(self, started: threading.Event, over: threading.Event) -> None:
        """Listens until it is over."""
        async with await asyncio.start_server(self._connected, "127.0.0.1") as listener:
            self.port = listener.sockets[0].getsockname()[1]
            started.set()
            await asyncio.to_thread(over.wait)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            start = await self._negotiated(reader, writer)
            names = self.encrypted if writer.get_extra_info("ssl_object") else self.plain
            names.add(_application(start))
            above, below = await self._reached()
            with closing(below):
                below.write(start)
                await asyncio.gather(_handed_on(reader, below), _handed_on(above, writer))

    async def _negotiated(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The message that a session begins with, once both have agreed on TLS or on none."""
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                return head + await reader.readexactly(length - 8)
            wanted = code == _SSL_REQUEST and self.certificate is not None
            writer.write(b"S" if wanted else b"N")
            await writer.drain()
            if wanted and self.certificate:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(self.certificate)
                await writer.start_tls(context)

    async def _reached(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = str(self.server.query.get("host") or self.server.host or "localhost")
        port = int(str(self.server.query.get("port") or self.server.port or 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


def _application(start: bytes) -> str:
    words = start[8:].decode().split("\0")
    return dict(zip(words[::2], words[1::2], strict=False)).get("application_name", "")


async def _handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(65_536):
            writer.write(some)
            await writer.drain()
    writer.close()


@contextmanager
def relayed(server: URL, certificate: Path | None) -> Iterator[Relay]:
    """A relay that runs in a thread."""
    relay, started, over = Relay(server, certificate), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(relay.serve(started, over)))
    thread.start()
    try:
        assert started.wait(10)
        yield relay
    finally:
        over.set()
        thread.join()
