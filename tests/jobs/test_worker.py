"""Workers as processes: what they measure, what ends them, and that nothing is lost or done twice."""

from pathlib import Path

from sqlalchemy import Engine

from service.domain.profiles import ProfileState
from service.storage.profiles import ProfileRepository
from tests.api.processes import wait_for
from tests.jobs.made_up import CRASHES, REFUSED
from tests.jobs.supervised import (
    TERMS,
    begun,
    is_done,
    open_jobs,
    profile,
    states,
    stored,
    supervised,
    worker_pids,
)


def test_profiles_are_measured_and_what_fails_is_parked_with_its_reason(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    profiles = ProfileRepository(engine)
    with supervised(database_url, tmp_path) as running:
        wait_for(lambda: len(worker_pids(engine)) == 1)
        sound = [profile(rows, dim=64) for rows in range(100, 105)]
        crashing, refused = profile(CRASHES), profile(REFUSED)
        assert profiles.queue_new([*sound, crashing, refused], "someone", TERMS) == 7
        wait_for(lambda: is_done(engine), 60)
        assert running.stop() == 0
    for done in sound:
        found = profiles.get(done.key)
        assert found is not None
        assert (found.state, found.attempts, found.error) == (ProfileState.MEASURED, 1, None)
        assert [(result.width, result.forward_ms) for result in found.results] == [(64, 1.0), (32, 2.0), (16, 3.0)]
    for failed, reason in ((crashing, "SIGABRT"), (refused, "not to be measured")):
        found = profiles.get(failed.key)
        assert found is not None
        assert (found.state, found.attempts) == (ProfileState.PARKED, 3)
        assert reason in (found.error or "")
        assert begun(running.notes).count(failed.key) == 3
    assert states(engine) == {"measured": 5, "parked": 2}
    assert stored(engine) == {f"profile-{done.key}": 3 for done in sound}
    assert open_jobs(engine) == 0
    assert worker_pids(engine) == []
