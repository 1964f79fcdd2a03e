"""What changes the service is on record with the change itself, and what failed by itself."""

import pytest
from sqlalchemy import Engine, text

from service.domain.access import Action, AdminCall, KeyNotFound
from service.domain.errors import NothingToRollBackTo
from service.domain.versions import Version
from service.storage.audit import AuditTrail
from service.storage.engine import build_engine
from service.storage.promotions import PromotionRepository
from service.usecases import model_versions
from tests.api.fake_store import FakeStore

CALL = AdminCall("me", Action.PROMOTE, "fake/compute/1")


def _recorded(engine: Engine) -> list[tuple[str, str, str, str]]:
    found = AuditTrail(engine).newest(10)
    return [(each.call.action, each.call.subject, each.outcome, each.request_id) for each in reversed(found)]


def test_promotions_and_rollbacks_are_on_record_whatever_comes_of_them(engine: Engine) -> None:
    catalog, promotions = FakeStore(""), PromotionRepository(engine, AuditTrail(engine, lambda: "r"))
    version = Version("fake", "compute", 1)
    for _ in range(2):
        model_versions.promote(catalog, promotions, version, "me", "")
    with pytest.raises(NothingToRollBackTo):
        model_versions.rollback(catalog, promotions, version.of, "me", "")
    assert _recorded(engine) == [
        ("promote", "fake/compute/1", "done", "r"),
        ("promote", "fake/compute/1", "unchanged", "r"),
        ("roll_back", "fake/compute", "nothing_to_roll_back_to", "r"),
    ]
    # Those who only look or prune are not.
    with promotions.changing() as change:
        change.standing()
    assert len(_recorded(engine)) == 3


def test_what_is_not_on_record_did_not_happen(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE audit_log ADD CHECK (actor <> 'me')"))
    with pytest.raises(Exception, match="audit_log"):
        model_versions.promote(FakeStore(""), PromotionRepository(engine), Version("fake", "compute", 1), "me", "")
    assert PromotionRepository(engine).standing() == {}


def test_what_failed_is_on_record_and_undone(engine: Engine) -> None:
    def fails() -> None:
        with AuditTrail(engine).recorded(CALL) as change:
            change.connection.execute(text("CREATE TABLE half (x int)"))
            raise KeyNotFound("no")

    with pytest.raises(KeyNotFound):
        fails()
    assert _recorded(engine) == [("promote", "fake/compute/1", "key_not_found", "")]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('half')")) is None


def test_while_the_database_is_away_nothing_hides_that() -> None:
    engine = build_engine("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(Exception, match="not available"), AuditTrail(engine).recorded(CALL):
        raise AssertionError
