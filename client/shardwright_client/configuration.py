"""Which service is asked, with which key and for how long."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import httpx

from shardwright_client.errors import InvalidArgument

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

URL_VARIABLE = "SHARDWRIGHT_URL"
KEY_VARIABLE = "SHARDWRIGHT_API_KEY"

TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a service is asked.

    Attributes:
        base_url: its address, without a slash at the end.
        api_key: None where it needs none.
        timeout_s: for all tries of a call together, besides the time that the service was given for a plan.
        connect_timeout_s: for a connection.
        read_timeout_s: for the next bytes of an answer, besides the time that the service was given for a plan.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "read_timeout_s"):
            check_seconds(name, getattr(self, name))

    def headers(self) -> dict[str, str]:
        """Of every request."""
        own = {"Accept": "application/json, application/problem+json", "User-Agent": user_agent()}
        return own if self.api_key is None else own | {"Authorization": f"Bearer {self.api_key}"}

    def url(self, path: str) -> str:
        """Where a path of the service is."""
        return self.base_url + path


def check_seconds(name: str, seconds: float) -> None:
    """Refuses a time that nothing can be waited for.

    Raises:
        InvalidArgument: it is not above 0, or has no end.
    """
    if not 0 < seconds < math.inf:
        raise InvalidArgument(f"{name} must be above 0 seconds and finite, is {seconds}")


def configured(
    base_url: str | None, api_key: str | None, timeout_s: float, connect_timeout_s: float, read_timeout_s: float
) -> Configuration:
    """The configuration; what is None is taken from the environment.

    Raises:
        InvalidArgument: no service is named, or the address or the key is none.
    """
    url = os.environ.get(URL_VARIABLE, "") if base_url is None else base_url
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    return Configuration(
        _checked_url(url.strip()), _checked_key(key.strip()), timeout_s, connect_timeout_s, read_timeout_s
    )


def http_client(make: Callable[[], Http]) -> Http:
    """A client of httpx, which takes proxies and certificates from the environment.

    Raises:
        InvalidArgument: it cannot use them.
    """
    try:
        return make()
    except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        raise InvalidArgument(
            "the environment's proxies (HTTP_PROXY and the like) or certificates (SSL_CERT_FILE, SSL_CERT_DIR) cannot "
            f"be used: {error}"
        ) from None


def check_open(client: httpx.Client | httpx.AsyncClient) -> None:
    """Refuses a client that was closed.

    Raises:
        InvalidArgument: it was.
    """
    if client.is_closed:
        raise InvalidArgument("the client is closed: make another, or ask before it is closed")


class Configured:
    """What both clients are made of; see ``Client``."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        self._configuration = configured(base_url, api_key, timeout_s, connect_timeout_s, read_timeout_s)

    @property
    def base_url(self) -> str:
        """The service's address."""
        return self._configuration.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"


def _checked_url(given: str) -> str:
    remedy = f"pass base_url or set {URL_VARIABLE}, for example to http://localhost:8000"
    if not given:
        raise InvalidArgument(f"no service is named: {remedy}")
    try:
        url = httpx.URL(given)
        url.raw_host.decode().encode("idna")  # as the resolver does, which refuses empty and long parts
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidArgument(f"the service's address cannot be read ({error}): {remedy}") from None
    if url.userinfo:
        raise InvalidArgument(
            f"the service's address must not have a user or password: give api_key, or {KEY_VARIABLE}"
        )
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise InvalidArgument(f"{given!r} is no address of a service: {remedy}")
    return str(url).rstrip("/")


def _checked_key(given: str) -> str | None:
    if not given.isascii() or not given.isprintable() or " " in given:
        raise InvalidArgument(f"the API key (api_key, or {KEY_VARIABLE}) has characters that no key has")
    return given or None


def user_agent() -> str:
    """The package and its version, where it is installed."""
    try:
        return f"shardwright-client/{version('shardwright-client')}"
    except PackageNotFoundError:
        return "shardwright-client"
