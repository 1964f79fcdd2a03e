"""These tests need torchrec; `make test-torchrec` installs it and runs them. Clients of a service, and of none."""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from shardwright_client import Client
from tests.client.conftest import RealService

NOWHERE = "http://127.0.0.1:9"

if find_spec("torchrec") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import shardwright_client.torchrec  # noqa: F401


@pytest.fixture
def client(real_service: RealService) -> Iterator[Client]:
    """A client of the service."""
    with Client(real_service.url) as asked:
        yield asked


@pytest.fixture
def away() -> Iterator[Client]:
    """A client of a service that is not there."""
    with Client(NOWHERE, timeout_s=0.5) as client:
        yield client
