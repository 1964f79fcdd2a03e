"""One served application with fake cost models for the tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import URL

from service.wiring import running_app
from tests.api.keyed import Keyed, keyed
from tests.api.processes import setting_names
from tests.api.support import FACTORY, listening, settings
from tests.conftest import Databases


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name in setting_names():
            environment.delenv(name)
        yield


@pytest.fixture(scope="session")
def client(databases: Databases, migrated_template: URL) -> Iterator[httpx.Client]:
    """A client of a service that is shared by the whole run."""
    url = databases.create(migrated_template)
    configured = settings(url.render_as_string(hide_password=False), max_tables=100, max_body_bytes=100_000)
    with running_app(configured, FACTORY) as app, listening(app) as served:
        yield served
    databases.drop(url)


@pytest.fixture(scope="session")
def keyed_service(databases: Databases, migrated_template: URL) -> Iterator[Keyed]:
    """A service that requires keys, shared by the whole run."""
    url = databases.create(migrated_template)
    with keyed(url.render_as_string(hide_password=False)) as service:
        yield service
    databases.drop(url)
