"""The client that a caller gives, or one that the environment describes."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwright_client.client import Client
from shardwright_client.errors import InvalidArgument


def check_client(client: object) -> None:
    """Sees that a client is one, or None.

    Raises:
        InvalidArgument: it is something else, such as an address or an AsyncClient.
    """
    if client is not None and not isinstance(client, Client):
        raise InvalidArgument(
            f"client must be a shardwright_client.Client, Client(url) say, is a {type(client).__name__}"
        )


@contextmanager
def opened(client: Client | None) -> Iterator[Client]:
    """The client; instead of None one for the time being, which the environment describes.

    Raises:
        InvalidArgument: the environment names no service.
    """
    if client is not None:
        yield client
        return
    with Client() as own:
        yield own
