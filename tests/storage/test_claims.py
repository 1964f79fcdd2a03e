"""Who may write what of a profile, and that the sweep loses none."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text

from service.domain.measurements import NOISY, ComputeMeasurement
from service.domain.profiles import ProfileState, StoredProfile, TableProfile
from service.storage.claims import Claim, ClaimRepository, LostClaim, Retries, Swept
from service.storage.measurements import MeasurementRepository
from service.storage.profiles import ProfileRepository
from service.storage.workers import WorkerRepository
from tests.storage.live_worker import fetched, live_worker
from tests.storage.test_profiles import HARDWARE, TERMS, count, profile, run

RETRIES = Retries(tries=3, wait_s=10, expires_days=30, stalled_s=30)
PROFILE = profile()


@pytest.fixture
def claims(engine: Engine) -> ClaimRepository:
    live_worker(engine, HARDWARE)
    ProfileRepository(engine).queue_new([PROFILE], "a", TERMS)
    return ClaimRepository(engine, RETRIES)


def taken(engine: Engine, claims: ClaimRepository, worker: int | None = None) -> Claim:
    """What a worker claims that fetches the next job, whenever that is scheduled."""
    run(engine, "UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE status = 'todo'")
    worker = worker or live_worker(engine, HARDWARE)
    claim = claims.claim(PROFILE.key, fetched(engine, worker, HARDWARE), worker)
    assert claim is not None
    return claim


def measured(claim: Claim, **environment: str) -> Sequence[ComputeMeasurement]:
    asked: TableProfile = claim.profile
    return [
        ComputeMeasurement(
            f"profile-{claim.key}", claim.first_index + i, HARDWARE, (asked.table.sliced(width),), asked.batch_size,
            asked.optimizer, 1.0 + i, 2.0 + i, 0.1, 0.1, 9, {"bench": "1", **environment}, datetime.now(UTC),
        )
        for i, width in enumerate(asked.widths)
    ]  # fmt: skip


def found(engine: Engine) -> StoredProfile:
    stored = ProfileRepository(engine).get(PROFILE.key)
    assert stored is not None
    return stored


def test_a_claim_is_what_was_asked_and_its_results_are_stored_with_its_end(
    engine: Engine, claims: ClaimRepository
) -> None:
    claim = taken(engine, claims)
    assert claim.profile.key == PROFILE.key
    assert found(engine).state is ProfileState.RUNNING
    claims.record(claim, measured(claim, **{NOISY: "0.4"}), 77)
    done = found(engine)
    assert (done.state, done.attempts, done.rows_measured) == (ProfileState.MEASURED, 1, 77)
    assert [(one.width, one.forward_ms, one.noisy) for one in done.results] == [
        (64, 1.0, True), (32, 2.0, True), (16, 3.0, True),
    ]  # fmt: skip
    assert len(MeasurementRepository(engine).compute(HARDWARE)) == 3


def test_recording_again_after_an_unknown_outcome_changes_nothing(engine: Engine, claims: ClaimRepository) -> None:
    claim = taken(engine, claims)
    claims.record(claim, measured(claim), None)
    claims.record(claim, measured(claim), None)
    assert count(engine, "compute_measurements") == 3


def test_a_profile_is_claimed_once(engine: Engine, claims: ClaimRepository) -> None:
    claim = taken(engine, claims)
    assert claims.claim(PROFILE.key, claim.job, live_worker(engine, HARDWARE)) is None
    assert claims.claim(PROFILE.key, claim.job + 1, live_worker(engine, HARDWARE)) is None


def test_who_lost_the_claim_can_write_nothing(engine: Engine, claims: ClaimRepository) -> None:
    worker = live_worker(engine, HARDWARE)
    late = taken(engine, claims, worker)
    run(engine, f"UPDATE procrastinate_workers SET last_heartbeat = now() - interval '31 s' WHERE id = {worker}")
    assert claims.sweep() == Swept(queued=1, parked=0, expired=0)
    for attempt in range(2):
        with pytest.raises(LostClaim):
            claims.record(late, measured(late), None)
        with pytest.raises(LostClaim):
            claims.fail(late, "it failed")
        with pytest.raises(LostClaim):
            claims.give_back(late)
        assert count(engine, "compute_measurements") == 0
        if attempt == 0:
            second = taken(engine, claims)
    claims.record(second, measured(second), None)
    with pytest.raises(LostClaim):
        claims.record(late, measured(late), None)
    assert count(engine, "compute_measurements") == 3
    assert (found(engine).state, found(engine).attempts) == (ProfileState.MEASURED, 2)


def test_failures_are_tried_again_ever_later_and_then_parked(engine: Engine, claims: ClaimRepository) -> None:
    delays = []
    for _ in range(2):
        assert claims.fail(taken(engine, claims), "out of memory") is False
        with engine.connect() as connection:
            query = "SELECT extract(epoch FROM scheduled_at - now()) FROM procrastinate_jobs WHERE status = 'todo'"
            delays.append(float(connection.scalar(text(query)) or 0))
        assert (found(engine).state, found(engine).error) == (ProfileState.QUEUED, "out of memory")
    assert delays == [pytest.approx(10, abs=2), pytest.approx(40, abs=2)]
    assert claims.fail(taken(engine, claims), "out of memory") is True
    assert (found(engine).state, found(engine).attempts) == (ProfileState.PARKED, 3)
    assert count(engine, "procrastinate_jobs WHERE status = 'todo'") == 0


def test_what_is_given_back_was_not_tried(engine: Engine, claims: ClaimRepository) -> None:
    for _ in range(5):
        claims.give_back(taken(engine, claims))
    assert (found(engine).state, found(engine).attempts, found(engine).error) == (ProfileState.QUEUED, 0, None)


def test_a_second_round_is_stored_beside_the_first(engine: Engine, claims: ClaimRepository) -> None:
    claim = taken(engine, claims)
    claims.record(claim, measured(claim), None)
    run(engine, "UPDATE profiles SET expires_at = now() - interval '1 s'")
    ProfileRepository(engine).request([("t", PROFILE)], "a", TERMS)
    again = taken(engine, claims)
    assert again.first_index == 3
    claims.record(again, measured(again), None)
    assert MeasurementRepository(engine).measured_indices(f"profile-{PROFILE.key}") == set(range(6))
    assert len(found(engine).results) == 3


def test_a_worker_that_dies_again_and_again_gets_its_profile_parked(engine: Engine, claims: ClaimRepository) -> None:
    for _ in range(3):
        worker = live_worker(engine, HARDWARE)
        taken(engine, claims, worker)
        assert claims.sweep() == Swept(0, 0, 0)
        run(engine, f"DELETE FROM procrastinate_workers WHERE id = {worker}")
        swept = claims.sweep()
    assert swept == Swept(queued=0, parked=1, expired=0)
    assert found(engine).state is ProfileState.PARKED
    assert "ended or hung" in (found(engine).error or "")
    assert count(engine, "procrastinate_jobs") == 0


@pytest.mark.parametrize(
    "stranding",
    [
        "DELETE FROM procrastinate_jobs",
        "UPDATE procrastinate_jobs SET status = 'succeeded'",
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = NULL",
    ],
)
def test_a_waiting_profile_whose_job_is_gone_gets_another(
    engine: Engine, claims: ClaimRepository, stranding: str
) -> None:
    run(engine, stranding)
    assert claims.sweep() == Swept(queued=1, parked=0, expired=0)
    assert taken(engine, claims).profile.key == PROFILE.key
    assert found(engine).attempts == 1


def test_what_nobody_measures_in_time_expires(engine: Engine, claims: ClaimRepository) -> None:
    run(engine, "UPDATE profiles SET expires_at = now() - interval '1 s'")
    assert claims.sweep() == Swept(queued=0, parked=0, expired=1)
    assert found(engine).state is ProfileState.EXPIRED
    assert count(engine, "procrastinate_jobs") == 0


def test_a_sweeper_that_is_stopped_does_not_hold_up_others(engine: Engine, claims: ClaimRepository) -> None:
    run(engine, "DELETE FROM procrastinate_jobs")
    with engine.connect() as stopped:
        stopped.execute(text("SELECT FROM profiles FOR UPDATE"))
        assert claims.sweep() == Swept(0, 0, 0)
    assert claims.sweep() == Swept(queued=1, parked=0, expired=0)


def test_sweeps_at_the_same_time_give_each_profile_one_job(engine: Engine, claims: ClaimRepository) -> None:
    ProfileRepository(engine).queue_new([profile(rows) for rows in range(1, 11)], "a", TERMS)
    run(engine, "DELETE FROM procrastinate_jobs")
    sweeps = [threading.Thread(target=claims.sweep) for _ in range(8)]
    for sweep in sweeps:
        sweep.start()
    for sweep in sweeps:
        sweep.join()
    claims.sweep()
    current = "procrastinate_jobs WHERE id IN (SELECT claim FROM profiles WHERE state = 'queued')"
    assert count(engine, current) == 11


def test_the_queues_figures_are_those_of_the_tables(engine: Engine, claims: ClaimRepository) -> None:
    ProfileRepository(engine).queue_new([profile(1)], "a", TERMS)
    live_worker(engine, "cpu-gone", age_s=31)
    stalled = live_worker(engine, HARDWARE)
    claims.claim(PROFILE.key, fetched(engine, stalled, HARDWARE), stalled)
    run(engine, f"DELETE FROM procrastinate_workers WHERE id = {stalled}")
    run(engine, "UPDATE profiles SET queued_at = now() - interval '100 s', failures = 2, rounds = 1")
    state = WorkerRepository(engine, 30).queue_state()
    assert state.profiles == {(HARDWARE, "queued"): 1, (HARDWARE, "running"): 1}
    assert state.failures == {HARDWARE: 4, "cpu-gone": 0}
    assert state.measured == {HARDWARE: 2, "cpu-gone": 0}
    assert state.oldest_s[HARDWARE] == pytest.approx(100, abs=5)
    assert state.stalled == {HARDWARE: 1, "cpu-gone": 0}
    assert state.live_workers == {HARDWARE: 1, "cpu-gone": 0}


def test_dead_workers_are_noted_at_once_and_forgotten_after_days(engine: Engine) -> None:
    workers = WorkerRepository(engine, 30)
    live_worker(engine, "cpu-a", age_s=31)
    live_worker(engine, "cpu-b")
    workers.prune()
    assert workers.queue_state().live_workers == {"cpu-a": 0, "cpu-b": 1}
    assert count(engine, "procrastinate_workers") == 1
    run(engine, "UPDATE workers SET ended_at = ended_at - interval '8 days'")
    workers.prune()
    assert workers.queue_state().live_workers == {"cpu-b": 1}


def test_what_was_parked_is_news_for_a_day(engine: Engine, claims: ClaimRepository) -> None:
    workers = WorkerRepository(engine, 30)
    assert claims.fail(taken(engine, claims), "no such optimizer", final=True) is True
    assert workers.queue_state().parked_of_late == {HARDWARE: 1}
    run(engine, "UPDATE profiles SET finished_at = finished_at - interval '23 hours'")
    assert workers.queue_state().parked_of_late == {HARDWARE: 1}
    run(engine, "UPDATE profiles SET finished_at = finished_at - interval '1 hour'")
    state = workers.queue_state()
    assert (state.parked_of_late, state.profiles) == ({HARDWARE: 0}, {(HARDWARE, "parked"): 1})


def test_what_will_never_be_measured_is_parked_at_its_first_try(engine: Engine, claims: ClaimRepository) -> None:
    assert claims.fail(taken(engine, claims), "no such optimizer", final=True) is True
    assert (found(engine).state, found(engine).attempts) == (ProfileState.PARKED, 1)
    assert found(engine).error == "no such optimizer"
    assert count(engine, "procrastinate_jobs WHERE status = 'todo'") == 0


def test_a_profile_that_was_pruned_is_measured_beside_what_is_left_of_it(
    engine: Engine, claims: ClaimRepository
) -> None:
    claim = taken(engine, claims)
    claims.record(claim, measured(claim), None)
    run(engine, "DELETE FROM profiles")
    ProfileRepository(engine).request([("t", PROFILE)], "a", TERMS)
    again = taken(engine, claims)
    claims.record(again, measured(again), None)
    assert MeasurementRepository(engine).measured_indices(f"profile-{PROFILE.key}") == set(range(6))


@pytest.mark.parametrize(("environment", "again"), [({}, 0), ({NOISY: "0.4"}, 1)])
def test_what_was_measured_with_fewer_rows_is_not_queued_by_plans_once_it_expired_unless_it_was_noisy(
    engine: Engine, claims: ClaimRepository, environment: dict[str, str], again: int
) -> None:
    claim = taken(engine, claims)
    cut = [replace(one, tables=(replace(one.tables[0], num_embeddings=10),)) for one in measured(claim, **environment)]
    claims.record(claim, cut, 10)
    run(engine, "UPDATE profiles SET expires_at = now() - interval '1 s'")
    assert ProfileRepository(engine).queue_new([PROFILE], "a", TERMS) == again
