"""Profiles as callers see them: queued once, within the quota, and only where somebody measures them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import Engine, text

from service.domain.callers import WITHOUT_KEY
from service.domain.measurements import ComputeMeasurement
from service.domain.profiles import NoWorker, ProfileQuotaExceeded, ProfileState, ProfileTerms, TableProfile
from service.domain.tables import Optimizer, ReuseHistogram, Table
from service.storage.engine import build_engine, libpq_parameters
from service.storage.measurements import MeasurementRepository
from service.storage.profiles import ProfileRepository
from tests.storage.live_worker import live_worker
from tests.storage.locks import wait_for_a_lock

TERMS = ProfileTerms(quota_per_day=30, expires_days=30, worker_alive_s=60)
HARDWARE = "cpu-x"


def profile(rows: int = 1000, **changes: object) -> TableProfile:
    found = TableProfile(HARDWARE, Table("t", rows, 64, 2.0), 512, Optimizer.SGD)
    return replace(found, **changes)  # type: ignore[arg-type]


def count(engine: Engine, what: str) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {what}")) or 0)


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


@pytest.fixture
def store(engine: Engine) -> ProfileRepository:
    live_worker(engine, HARDWARE)
    return ProfileRepository(engine)


def test_the_key_is_of_everything_but_the_name() -> None:
    histogram = ReuseHistogram(512, (1.0, *(0.0 for _ in range(16))))
    table = profile().table
    others = [
        profile(1001),
        profile(table=replace(table, embedding_dim=32)),
        profile(table=replace(table, pooling_factor=3.0)),
        profile(table=replace(table, reuse_histogram=histogram)),
        profile(batch_size=1024),
        profile(optimizer=Optimizer.ADAGRAD),
        profile(hardware="cpu-y"),
    ]
    assert len({profile().key, *(other.key for other in others)}) == 8
    assert profile(table=replace(table, name="another")).key == profile().key


@pytest.mark.parametrize(
    ("dim", "widths"), [(128, (128, 64, 32)), (8, (8, 4)), (4, (4,)), (12, (12,)), (24, (24, 12)), (48, (48, 24, 12))]
)
def test_widths_are_those_that_tables_can_be_cut_to(dim: int, widths: tuple[int, ...]) -> None:
    assert profile(table=replace(profile().table, embedding_dim=dim)).widths == widths


def test_fifty_requests_of_two_replicas_queue_each_table_once(engine: Engine, database_url: str) -> None:
    live_worker(engine, HARDWARE)
    replicas = [ProfileRepository(build_engine(database_url, pool_size=10)) for _ in range(2)]
    tables = [profile(rows) for rows in range(1, 21)]
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(replicas[i % 2].queue_new, tables, f"caller {i % 3}", TERMS) for i in range(50)]
        queued = [each.result() for each in asked]
    assert sum(queued) == 20
    assert count(engine, "profiles WHERE state = 'queued'") == 20
    assert count(engine, "procrastinate_jobs WHERE status = 'todo'") == 20
    for replica in replicas:
        replica._engine.dispose()


def test_nothing_is_queued_where_nobody_measures(engine: Engine) -> None:
    live_worker(engine, HARDWARE, age_s=61)
    live_worker(engine, "cpu-y")
    with pytest.raises(NoWorker, match="no live worker serves 'cpu-x'") as refused:
        ProfileRepository(engine).queue_new([profile()], "a", TERMS)
    assert refused.value.data["served"] == ["cpu-y"]
    assert count(engine, "profiles") == count(engine, "procrastinate_jobs") == 0


def test_what_is_known_needs_no_worker(store: ProfileRepository, engine: Engine) -> None:
    store.queue_new([profile()], "a", TERMS)
    run(engine, "DELETE FROM procrastinate_workers")
    assert store.queue_new([profile()], "b", TERMS) == 0
    assert len(store.request([("t", profile())], "b", TERMS).profiles) == 1


def test_requests_beyond_the_quota_are_refused_whole_and_plans_get_half_of_it(
    store: ProfileRepository, engine: Engine
) -> None:
    assert store.queue_new([profile(rows) for rows in range(1, 21)], "a", TERMS) == 15
    wanted = [(f"t{rows}", profile(rows)) for rows in range(10, 41)]
    with pytest.raises(ProfileQuotaExceeded, match="21 of the tables are new, and 15 of 30") as refused:
        store.request(wanted, "a", TERMS)
    assert 0 < refused.value.data["retry_after_s"] <= 86_401
    assert count(engine, "profiles") == 15
    assert count(engine, "profile_requests") == 0
    assert store.queue_new([one for _, one in wanted], "a", TERMS) == 0
    store.request([(f"t{rows}", profile(rows)) for rows in range(41, 56)], "a", TERMS)
    assert count(engine, "profiles") == 30
    with pytest.raises(ProfileQuotaExceeded, match="1 of the tables are new, and 0 of 30"):
        store.request([("t99", profile(99))], "a", TERMS)
    assert store.queue_new([profile(99)], "b", TERMS) == 1
    run(engine, "UPDATE profiles SET queued_at = queued_at - interval '1 day'")
    assert store.queue_new([profile(98)], "a", TERMS) == 1


def test_the_quota_holds_for_requests_at_the_same_time(store: ProfileRepository) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(store.queue_new, [profile(10 * i + j) for j in range(1, 9)], "a", TERMS) for i in range(8)]
        assert sum(each.result() for each in asked) == 15


def test_a_request_names_its_tables_in_order_and_asking_again_is_the_same_request(store: ProfileRepository) -> None:
    named = [("b", profile(2)), ("a", profile(1)), ("twin", profile(2))]
    first = store.request(named, "a", TERMS)
    assert [(name, found.key) for name, found in first.profiles] == [(name, one.key) for name, one in named]
    assert {found.state for _, found in first.profiles} == {ProfileState.QUEUED}
    assert store.request(named, "a", TERMS) == first == store.get_request(first.request_id, WITHOUT_KEY)
    assert store.request(named, "b", TERMS).request_id != first.request_id
    assert store.get_request("0" * 32, WITHOUT_KEY) is None


@pytest.mark.parametrize(
    ("state", "expired", "queued"),
    [
        ("measured", False, 0),
        ("measured", True, 1),
        ("parked", False, 0),
        ("parked", True, 1),
        ("expired", True, 1),
        ("running", True, 0),
    ],
)
def test_what_has_expired_may_be_measured_again(
    store: ProfileRepository, engine: Engine, state: str, expired: bool, queued: int
) -> None:
    store.queue_new([profile()], "a", TERMS)
    ago = "- interval '1 s'" if expired else "+ interval '1 h'"
    run(engine, f"UPDATE profiles SET state = '{state}', attempts = 3, error = 'e', expires_at = now() {ago}")
    assert store.queue_new([profile()], "b", TERMS) == queued
    found = store.get(profile().key)
    assert found is not None
    assert (found.state, found.attempts, found.error) == (("queued", 0, None) if queued else (state, 3, "e"))


def test_operators_queue_parked_profiles_again(store: ProfileRepository, engine: Engine) -> None:
    store.queue_new([profile(1), profile(2)], "a", TERMS)
    run(engine, f"UPDATE profiles SET state = 'parked', attempts = 3, error = 'e' WHERE id = '{profile(1).key}'")
    assert [found.key for found in store.profiles(state=ProfileState.PARKED)] == [profile(1).key]
    assert store.retry([profile(1).key, profile(2).key, "nothing"], TERMS) == [profile(1).key]
    assert [found.state for found in store.profiles(HARDWARE)] == [ProfileState.QUEUED] * 2
    assert store.profiles("cpu-y") == []
    assert count(engine, "procrastinate_jobs") == 3


def already(engine: Engine, one: TableProfile, **environment: str) -> None:
    """Has a campaign measure the table of a profile, alone."""
    measurement = ComputeMeasurement(
        "campaign", len(MeasurementRepository(engine).measured_indices("campaign")), HARDWARE, (one.table,),
        one.batch_size, one.optimizer, 1.0, 1.0, 0.1, 0.1, 9, {"bench": "1", **environment}, datetime.now(UTC),
    )  # fmt: skip
    assert MeasurementRepository(engine).add_compute(measurement)


def test_what_was_measured_in_any_campaign_is_not_queued_by_plans(store: ProfileRepository, engine: Engine) -> None:
    already(engine, profile(1), noisy="0.4")
    already(engine, profile(2))
    assert store.queue_new([profile(1), profile(2), profile(3)], "a", TERMS) == 2
    assert {found.key for found in store.profiles()} == {profile(1).key, profile(3).key}
    already(engine, profile(4), bench="2")
    assert store.queue_new([profile(2), profile(4)], "a", TERMS) == 1
    # Who asks for it by name gets it.
    store.request([("t", profile(4))], "a", TERMS)
    assert store.get(profile(4).key) is not None
    # Another device measured the hardware since: what the one before did says nothing of it.
    already(engine, profile(5), bench="2")
    already(engine, profile(6), bench="2", device="another")
    assert store.queue_new([profile(5), profile(6)], "a", TERMS) == 1


def test_callers_are_told_what_the_workers_measure_on(store: ProfileRepository, engine: Engine) -> None:
    live_worker(engine, "cpu-y", age_s=61)
    assert (store.devices(HARDWARE, TERMS), store.devices("cpu-y", TERMS)) == ({"cpu"}, set())


@pytest.mark.parametrize("again", ["retry", "queue_new"])
def test_several_profiles_are_locked_in_the_order_of_their_keys(
    store: ProfileRepository, engine: Engine, again: str
) -> None:
    by_key = sorted((profile(rows) for rows in range(1, 6)), key=lambda one: one.key)
    # They lie in the table the other way round, which is the order in which an unordered statement finds them.
    for one in reversed(by_key):
        store.queue_new([one], "a", TERMS)
        run(engine, f"UPDATE profiles SET state = 'parked', expires_at = now() WHERE id = '{one.key}'")
    calls = {
        "retry": lambda: store.retry([one.key for one in by_key], TERMS),
        "queue_new": lambda: store.queue_new(by_key, "b", TERMS),
    }
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            first.execute(text(f"SELECT FROM profiles WHERE id = '{by_key[0].key}' FOR UPDATE"))
            asked = pool.submit(calls[again])
            wait_for_a_lock(engine)
            with engine.begin() as other:
                free = other.execute(text("SELECT id FROM profiles FOR UPDATE SKIP LOCKED")).all()
        assert len(free) == len(by_key) - 1
        asked.result()
    assert count(engine, "profiles WHERE state = 'queued'") == len(by_key)


def test_what_is_queued_again_is_told_to_workers_as_what_is_new(store: ProfileRepository, engine: Engine) -> None:
    with psycopg.connect(libpq_parameters(engine.url, "listener")[0], autocommit=True) as listener:
        listener.execute(SQL("LISTEN {}").format(Identifier(f"procrastinate_queue_v1#profile-{HARDWARE}")))

        def told() -> int:
            return len(list(listener.notifies(timeout=2, stop_after=1)))

        store.queue_new([profile(1)], "a", TERMS)
        assert told() == 1
        run(engine, "UPDATE profiles SET state = 'parked'")
        store.retry([profile(1).key], TERMS)
        assert told() == 1
        run(engine, "UPDATE profiles SET state = 'parked', expires_at = now()")
        assert store.queue_new([profile(1)], "a", TERMS) == 1
        assert told() == 1
