"""One served application for the tests of what it tells about itself."""

import os
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import URL

from service.wiring import running_app
from tests.api.processes import planning_processes, setting_names
from tests.api.support import FACTORY, listening, settings
from tests.conftest import Databases


@pytest.fixture(scope="package")
def others() -> set[int]:
    """Planning processes of other services that the tests run already."""
    return planning_processes(os.getpid())


@pytest.fixture(scope="package")
def client(databases: Databases, migrated_template: URL, others: set[int]) -> Iterator[httpx.Client]:
    """A client of a service with fake cost models and two planning processes."""
    url = databases.create(migrated_template)
    configured = settings(url.render_as_string(hide_password=False), planner_processes=2)
    with pytest.MonkeyPatch.context() as environment:
        for name in setting_names():
            environment.delenv(name)
        with running_app(configured, FACTORY) as app, listening(app) as served:
            yield served
    databases.drop(url)
