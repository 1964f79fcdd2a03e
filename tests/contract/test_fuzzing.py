"""The service keeps to its OpenAPI document, whatever is asked; ``make fuzz`` asks far more."""

from collections.abc import Iterator

import pytest
from sqlalchemy import URL

from tests.conftest import Databases
from tests.contract.fuzzing import Target, fuzz, target


@pytest.fixture(scope="module")
def service(databases: Databases, migrated_template: URL) -> Iterator[Target]:
    url = databases.create(migrated_template)
    with target(url.render_as_string(hide_password=False)) as served:
        yield served
    databases.drop(url)


def test_every_operation_keeps_to_the_document(service: Target) -> None:
    found = fuzz(service.url, service.admin, examples=10, seed=1)
    assert found.failures == 0, found.output
    assert found.cases > 1_000


@pytest.mark.slow
def test_callers_without_a_key_get_documented_answers(service: Target) -> None:
    found = fuzz(service.url, {}, examples=2, seed=1)
    assert found.failures == 0, found.output
    assert found.cases > 500
