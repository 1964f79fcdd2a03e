"""What is kept long enough goes, what something that stays needs does not, also while it is in use."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ColumnElement, Engine, Text, TextClause, func, text

from service.domain.callers import ANONYMOUS, WITHOUT_KEY
from service.domain.idempotency import KeptAnswer, KeyedCall
from service.domain.launches import Launch
from service.domain.observations import Observation
from service.domain.ports import RetentionStore, StoredPlan
from service.domain.profiles import ProfileTerms, TableProfile
from service.domain.retention import Kept, Retention, TrainedBench
from service.domain.tables import Optimizer, Table
from service.storage import retention
from service.storage.engine import build_engine
from service.storage.idempotency import IdempotencyRepository
from service.storage.launches import LaunchRepository
from service.storage.measurements import MeasurementRepository
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository
from service.storage.profiles import ProfileRepository
from service.storage.retention import RetentionRepository
from service.storage.rows import Row
from service.storage.workers import WorkerRepository
from service.usecases.retention import prune
from tests.storage.live_worker import live_worker
from tests.storage.locks import wait_for_a_lock
from tests.storage.test_measurements import communication_measurement, compute_measurement

KEEP = Retention(
    plans=timedelta(days=90),
    observations=timedelta(days=365),
    profiles=timedelta(days=90),
    measurements=timedelta(days=30),
)


def put(engine: Engine, plan_id: str, days: float = 0.0, previous: str | None = None) -> StoredPlan:
    """A plan that was last asked for so many days ago."""
    answer = {"plan_id": plan_id, "status": "complete", "saved": True}
    plan = StoredPlan(plan_id, "cpu-x", "auto", 1.0, {"previous_plan_id": previous}, answer)
    PlanRepository(engine).put(plan, WITHOUT_KEY)
    age(engine, "plans", "last_used_at", days, f"plan_id = '{plan_id}'")
    return plan


def launched(engine: Engine, plan_id: str, launch_id: str, days: float = 0.0) -> Launch:
    launch = Launch(ANONYMOUS, launch_id, "0")
    LaunchRepository(engine).keep(launch, "me", plan_id, {"plan_id": plan_id})
    age(engine, "launches", "last_used_at", days, f"launch_id = '{launch_id}'")
    return launch


def observe(engine: Engine, plan_id: str, days: float = 0.0, launch_id: str = "") -> None:
    """Leaves the use of the plan as it was."""
    with engine.connect() as connection:
        used = connection.scalar(text(f"SELECT last_used_at FROM plans WHERE plan_id = '{plan_id}'"))
    observation = Observation(launch_id, 0, 0, 1, 1.0, 1.0, None, None, None, {})
    assert ObservationRepository(engine).add(plan_id, [observation], WITHOUT_KEY) is not None
    age(engine, "observations", "observed_at", days, f"plan_id = '{plan_id}'")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE plans SET last_used_at = '{used}' WHERE plan_id = '{plan_id}'"))


def age(engine: Engine, table: str, column: str, days: float, which: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = now() - interval '{days} days' WHERE {which}"))


def left(engine: Engine, table: str = "plans", column: str = "plan_id") -> set[str]:
    with engine.connect() as connection:
        return set(connection.scalars(text(f"SELECT {column} FROM {table}")))


def pruned(engine: Engine, *trained: TrainedBench, keep: Retention = KEEP) -> dict[Kept, int]:
    """What was pruned, foretold by a dry run that changed nothing."""
    store: RetentionStore = RetentionRepository(engine)
    before = [left(engine, table, "xmin::text") for table in ("plans", "launches", "observations")]
    told = prune(store, keep, lambda: trained, dry_run=True)
    assert [left(engine, table, "xmin::text") for table in ("plans", "launches", "observations")] == before
    assert prune(store, keep, lambda: trained) == told
    assert set(prune(store, keep, lambda: trained).values()) == {0}
    return told


def test_an_empty_database_has_nothing_to_prune(engine: Engine) -> None:
    assert pruned(engine) == dict.fromkeys(Kept, 0)


def test_plans_that_nobody_asked_for_go(engine: Engine) -> None:
    put(engine, "used", 89.9)
    put(engine, "forgotten", 90.1)
    assert pruned(engine)[Kept.PLANS] == 1
    assert left(engine) == {"used"}


def test_a_plan_stays_with_its_launch_and_goes_with_it(engine: Engine) -> None:
    for days in (89, 91):
        put(engine, f"plan-{days}", 200)
        launched(engine, f"plan-{days}", f"launch-{days}", days)
    found = pruned(engine)
    assert (found[Kept.LAUNCHES], found[Kept.ANSWERS], found[Kept.PLANS]) == (1, 1, 1)
    assert left(engine) == {"plan-89"}
    assert left(engine, "launches", "launch_id") == {"launch-89"}


def test_a_plan_stays_with_its_observation_and_goes_with_it(engine: Engine) -> None:
    for days in (364, 366):
        put(engine, f"plan-{days}", 200)
        observe(engine, f"plan-{days}", days)
    found = pruned(engine)
    assert (found[Kept.OBSERVATIONS], found[Kept.ANSWERS], found[Kept.PLANS]) == (1, 1, 1)
    assert left(engine) == {"plan-364"}


def test_what_was_observed_of_a_launch_stays_when_the_launch_goes(engine: Engine) -> None:
    put(engine, "plan", 200)
    launched(engine, "plan", "night", 200)
    observe(engine, "plan", 100, "night")
    age(engine, "launches", "last_used_at", 200, "true")
    found = pruned(engine)
    assert (found[Kept.LAUNCHES], found[Kept.ANSWERS], found[Kept.PLANS]) == (1, 0, 0)
    (observed,) = ObservationRepository(engine).observed("cpu-x")
    assert observed.answer == {"plan_id": "plan"}


def test_a_launch_that_is_observed_still_counts_as_used(engine: Engine) -> None:
    put(engine, "plan", 200)
    launched(engine, "plan", "night", 200)
    observe(engine, "plan", 0, "night")
    assert pruned(engine)[Kept.LAUNCHES] == 0


def test_a_plan_stays_while_a_later_one_names_it_as_running_and_chains_go_whole(engine: Engine) -> None:
    put(engine, "a0", 300)
    put(engine, "a1", 200, "a0")
    put(engine, "a2", 1, "a1")
    for i in range(6):
        put(engine, f"b{i}", 300 - i, f"b{i - 1}" if i else None)
    assert pruned(engine)[Kept.PLANS] == 6
    assert left(engine) == {"a0", "a1", "a2"}


def test_claims_that_came_to_nothing_go_too(engine: Engine) -> None:
    LaunchRepository(engine).claim(Launch(ANONYMOUS, "died", "0"), "me")
    age(engine, "launches", "last_used_at", 91, "true")
    LaunchRepository(engine).claim(Launch(ANONYMOUS, "lives", "0"), "me")
    assert pruned(engine)[Kept.LAUNCHES] == 1
    assert left(engine, "launches", "launch_id") == {"lives"}


def test_more_than_a_transaction_takes_goes_all_the_same(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO plans (plan_id, hardware, algorithm, max_cost_ms, request, answer, last_used_at) SELECT"
                " 'p' || i, 'cpu-x', 'auto', 1, '{}', '{}', now() - interval '100 days' FROM generate_series(1, 1203) i"
            )
        )
    assert RetentionRepository(engine).prune(Kept.PLANS, KEEP, (), 100) == 100
    assert pruned(engine)[Kept.PLANS] == 1103


def bench(engine: Engine, version: str | None, days: float, campaign: str, hardware: str = "cpu-x") -> None:
    said = {"device": "x"} | ({} if version is None else {"bench": version})
    when = datetime.now(UTC) - timedelta(days=days)
    store = MeasurementRepository(engine)
    for index in range(2):
        made = {"hardware": hardware, "environment": said, "measured_at": when}
        store.add_compute(replace(compute_measurement(index, campaign=campaign), **made))  # type: ignore[arg-type]
        store.add_communication(replace(communication_measurement(index, campaign), **made))  # type: ignore[arg-type]


def test_old_measurements_of_an_older_bench_go_unless_a_version_was_trained_on_it(engine: Engine) -> None:
    bench(engine, None, 31, "first")
    bench(engine, "2", 31, "second")
    bench(engine, "2", 29, "second, of late")
    bench(engine, "10", 99, "newest")
    bench(engine, "1", 99, "newest of its hardware", "h200")
    trained = [TrainedBench("cpu-x", "compute", 1), TrainedBench("cpu-x", "communication", 2)]
    assert pruned(engine, *trained)[Kept.MEASUREMENTS] == 4
    stay = {"second, of late", "newest", "newest of its hardware"}
    assert left(engine, "compute_measurements", "campaign") == {"first"} | stay
    assert left(engine, "communication_measurements", "campaign") == {"second"} | stay
    assert len(left(engine, "measured_tables", "measurement_id")) == 8
    assert pruned(engine)[Kept.MEASUREMENTS] == 4
    assert left(engine, "compute_measurements", "campaign") == stay
    assert [m.campaign for m in MeasurementRepository(engine).compute("h200")] == ["newest of its hardware"] * 2


def test_nothing_is_deleted_where_it_cannot_be_told_what_versions_need(engine: Engine) -> None:
    put(engine, "forgotten", 100)

    def unreadable() -> list[TrainedBench]:
        raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        prune(RetentionRepository(engine), KEEP, unreadable)
    assert left(engine) == {"forgotten"}


def test_rows_that_somebody_holds_are_passed_over(engine: Engine) -> None:
    for plan_id in ("held", "free"):
        put(engine, plan_id, 100)
    with engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM plans WHERE plan_id = 'held' FOR KEY SHARE"))
        began = time.monotonic()
        assert prune(RetentionRepository(engine), KEEP, tuple)[Kept.PLANS] == 1
        # A wait for the lock would end after five.
        assert time.monotonic() - began < 4
    assert left(engine) == {"held"}


def test_an_answer_that_is_given_again_at_this_moment_stays(engine: Engine) -> None:
    put(engine, "plan")
    launched(engine, "plan", "old", 100)
    assert RetentionRepository(engine).prune(Kept.LAUNCHES, KEEP, (), 10) == 1
    launches, launch = LaunchRepository(engine), Launch(ANONYMOUS, "new", "0")
    with engine.connect() as other, ThreadPoolExecutor(1) as pool:
        # The launch comes as far as its own row, whose key another has just taken.
        other.execute(
            text(
                "INSERT INTO launches (key, launch_id, request_hash, claimed_by, claimed_until)"
                " VALUES (:key, 'new', '0', 'x', now())"
            ),
            {"key": ANONYMOUS},
        )
        kept = pool.submit(launches.keep, launch, "me", "plan", {"plan_id": "plan"})
        wait_for_a_lock(engine)
        assert RetentionRepository(engine).prune(Kept.ANSWERS, KEEP, (), 10) == 0
        other.rollback()
        assert kept.result(10) == {"plan_id": "plan"}


def test_an_answer_that_is_given_again_while_pruning_looks_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "plan")
    launched(engine, "plan", "old", 100)
    store = RetentionRepository(engine)
    assert store.prune(Kept.LAUNCHES, KEEP, (), 10) == 1
    look = retention._prunable

    def slow_look(kind: Kept, keep: Retention) -> tuple[type[Row], ColumnElement[bool]]:
        row, condition = look(kind, keep)
        return row, condition & func.pg_sleep(1).cast(Text).is_not(None)

    monkeypatch.setattr(retention, "_prunable", slow_look)
    sleeping = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    )
    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(store.prune, Kept.ANSWERS, KEEP, (), 10)
        while not in_database(engine, sleeping):
            time.sleep(0.01)
        launched(engine, "plan", "new")
        assert looked.result(20) == 0
    assert left(engine, "given_answers") == {"plan"}


def in_database(engine: Engine, query: TextClause) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(query) or 0)


AGES = st.sampled_from([1, 100, 400])


@given(
    plans=st.lists(st.tuples(AGES, st.integers(-4, 4)), min_size=1, max_size=6),
    launches=st.lists(st.tuples(st.integers(0, 5), AGES), max_size=4),
    observed=st.lists(st.tuples(st.integers(0, 5), AGES), max_size=4),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_stays_is_what_is_used_or_needed_whatever_there_is(
    engine: Engine,
    plans: list[tuple[int, int]],
    launches: list[tuple[int, int]],
    observed: list[tuple[int, int]],
) -> None:
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE plans, plan_owners, given_answers, launches, observations"))
    previous = {i: back for i, (_, back) in enumerate(plans) if 0 <= back < i}
    for i, (days, _) in enumerate(plans):
        put(engine, str(i), days, str(previous[i]) if i in previous else None)
    needed = {i for i, (days, _) in enumerate(plans) if days < 90}
    for n, (at, days) in enumerate(launches):
        launched(engine, str(at % len(plans)), f"l{n}", days)
        needed |= {at % len(plans)} if days < 90 else set()
    last = {at % len(plans): days for at, days in observed}
    for i, days in last.items():
        observe(engine, str(i), days)
        needed |= {i} if days < 365 else set()
    while more := {previous[i] for i in needed if i in previous} - needed:
        needed |= more
    pruned(engine)
    assert left(engine) == set(map(str, needed))


@pytest.fixture
def many(database_url: str) -> Iterator[Engine]:
    engine = build_engine(database_url, pool_size=8)
    yield engine
    engine.dispose()


def test_a_plan_that_its_last_owner_gave_up_goes_as_soon_as_nothing_needs_it(engine: Engine) -> None:
    for plan_id in ("observed", "kept"):
        put(engine, plan_id)
    observe(engine, "observed", days=300)
    put(engine, "next", previous="kept")
    for plan_id in ("observed", "kept"):
        PlanRepository(engine).delete(plan_id, WITHOUT_KEY)
    pruned(engine)
    assert left(engine) == {"observed", "kept", "next"}
    age(engine, "observations", "observed_at", 400, "true")
    PlanRepository(engine).delete("next", WITHOUT_KEY)
    assert pruned(engine)[Kept.PLANS] == 2
    assert left(engine) == set()


def test_launches_observations_and_plans_in_use_lose_nothing_while_all_is_pruned(
    many: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not used for a second and a half is made old and pruned, while others come to refer to it again."""
    # A use is noted at once, so that it is what keeps a plan, as it is where days and not seconds count.
    monkeypatch.setattr("service.storage.plans._GRAIN", timedelta(0))
    store, plans = RetentionRepository(many), PlanRepository(many)
    launches, observations = LaunchRepository(many), ObservationRepository(many)
    began = time.monotonic()
    over = began + 8

    def prune_all() -> Counter[Kept]:
        found: Counter[Kept] = Counter()
        while time.monotonic() < over:
            idle = [
                ("plans", "last_used_at", 100),
                ("launches", "last_used_at", 100),
                ("observations", "observed_at", 400),
            ]
            for table, column, days in idle:
                age(many, table, column, days, f"{column} < now() - interval '1500 ms'")
            found.update(prune(store, KEEP, tuple))
        return found

    def use(seed: int) -> int:
        rng, done = random.Random(seed), 0
        while time.monotonic() < over:
            # Each plan rests for three seconds and comes back.
            plan_id = str(int(time.monotonic() - began) % 4 * 3 + rng.randrange(3))
            plan = plans.get(plan_id, WITHOUT_KEY) or plans.put(
                StoredPlan(plan_id, "cpu-x", "auto", 1.0, {}, {"plan_id": plan_id}), WITHOUT_KEY
            )
            launch = Launch(ANONYMOUS, str(rng.randrange(2)), plan_id)
            given = launches.get(launch) or launches.keep(launch, "me", plan_id, plan.answer)
            assert given == plan.answer
            if rng.random() < 0.3:
                seen = Observation(launch.launch_id, seed, done, done + 1, 1.0, 1.0, None, None, None, {})
                assert observations.add(plan_id, [seen], WITHOUT_KEY) is not None
            done += 1
        return done

    with ThreadPoolExecutor(5) as pool:
        pruning = [pool.submit(prune_all) for _ in range(2)]
        using = [pool.submit(use, seed) for seed in range(3)]
        found = sum((task.result() for task in pruning), Counter())
        assert all(task.result() > 20 for task in using)
    assert all(found[kind] > 0 for kind in (Kept.OBSERVATIONS, Kept.LAUNCHES, Kept.ANSWERS, Kept.PLANS)), found


def asked_for(engine: Engine, rows: int, state: str, days: float, asked_days: float | None = None) -> str:
    """A profile that came to a state so many days ago; asked for by a request, if that has an age."""
    one = TableProfile("cpu-x", Table("t", rows, 64, 2.0), 512, Optimizer.SGD)
    live_worker(engine, "cpu-x")
    terms = ProfileTerms(100, 30, 60)
    if asked_days is None:
        ProfileRepository(engine).queue_new([one], "a", terms)
    else:
        request = ProfileRepository(engine).request([("t", one)], "a", terms)
        age(engine, "profile_requests", "last_asked_at", asked_days, f"id = '{request.request_id}'")
    with engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE profiles SET state = '{state}', rounds = 2, failures = 1, "
                f"finished_at = now() - interval '{days} days', expires_at = now() - interval '{days} days' "
                f"WHERE id = '{one.key}'"
            )
        )
    return one.key


def test_profiles_that_ended_long_ago_go_with_those_who_asked(engine: Engine) -> None:
    stay = {
        asked_for(engine, 1, "measured", 89),
        asked_for(engine, 2, "queued", 500),
        asked_for(engine, 3, "running", 500, 500),
        asked_for(engine, 4, "parked", 500, 89),
    }
    for rows, state in enumerate(("measured", "parked", "expired"), start=5):
        asked_for(engine, rows, state, 91)
        asked_for(engine, 10 * rows, state, 91, 91)
    before = WorkerRepository(engine, 30).queue_state()
    found = pruned(engine)
    assert (found[Kept.PROFILE_REQUESTS], found[Kept.PROFILES]) == (3, 6)
    assert left(engine, "profiles", "id") == stay
    # Counters do not fall.
    after = WorkerRepository(engine, 30).queue_state()
    assert (after.measured, after.failures) == (before.measured, before.failures) == ({"cpu-x": 20}, {"cpu-x": 10})


def test_asking_again_keeps_a_request(engine: Engine) -> None:
    for _ in range(2):
        asked_for(engine, 1, "measured", 500, 500)
    one = TableProfile("cpu-x", Table("t", 1, 64, 2.0), 512, Optimizer.SGD)
    ProfileRepository(engine).request([("t", one)], "a", ProfileTerms(100, 30, 60))
    assert pruned(engine)[Kept.PROFILE_REQUESTS] == 0


def test_idempotency_keys_go_after_a_day(engine: Engine) -> None:
    store = IdempotencyRepository(engine, 60)
    for key, hours in (("new", 23), ("old", 25)):
        call = KeyedCall("a", key, "hash", "claim")
        assert store.begin(call) is None
        store.keep(call, KeptAnswer(200, None, "{}"))
        with engine.begin() as connection:
            aged = "UPDATE idempotency_keys SET created_at = now() - make_interval(hours => :hours) WHERE key = :key"
            connection.execute(text(aged), {"hours": hours, "key": key})
    assert RetentionRepository(engine).prunable(KEEP, ())[Kept.IDEMPOTENCY_KEYS] == 1
    assert pruned(engine)[Kept.IDEMPOTENCY_KEYS] == 1
    assert left(engine, "idempotency_keys", "key") == {"new"}


def test_a_bench_without_a_number_is_left_alone(engine: Engine) -> None:
    MeasurementRepository(engine).add_compute(replace(compute_measurement(0), environment={"bench": "odd"}))
    assert pruned(engine)[Kept.MEASUREMENTS] == 0
