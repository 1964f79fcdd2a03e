"""The worker with the real operator, and what bounds its memory."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.domain.measurements import STANDS_FOR, comparable, table_part
from service.domain.profiles import ProfileState, TableProfile
from service.domain.tables import Optimizer, Table
from service.storage.measurements import MeasurementRepository
from service.storage.profiles import ProfileRepository
from tests.api.processes import clean_environment, wait_for
from tests.jobs.supervised import QUICK, ROOT, TERMS, is_done, worker_pids

HARDWARE = "cpu-fbgemm"

HUNGRY = """
from service.profiling.memory_limit import limit_own_memory
limit_own_memory(2**28)
kept = bytearray(2**28)
try:
    more = bytearray({more})
except MemoryError:
    raise SystemExit(7)
"""

SPREADS = """
from service.domain.measurements import NOISY
from service.domain.profiles import ProfileSettings
from service.profiling.table_profile import OperatorBench
from tests.jobs.test_operator import table_profile
for noisy_spread in (1e-9, 1e9):
    found = OperatorBench(ProfileSettings("cpu", 2**27, noisy_spread))(table_profile(1_000), 0)
    print(*(NOISY in one.environment for one in found.measurements))
"""


def table_profile(rows: int, optimizer: Optimizer = Optimizer.SGD) -> TableProfile:
    return TableProfile(HARDWARE, Table("t", rows, 64, 2.0), 128, optimizer)


def test_tables_are_measured_at_their_widths_with_rows_cut_to_memory(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    small, large, adam = table_profile(1_000), table_profile(4_000_000), table_profile(1_000, Optimizer.ADAM)
    hungry = replace(small, batch_size=2**24)
    profiles = ProfileRepository(engine)
    command = [sys.executable, "-m", "service", "worker", "--hardware", HARDWARE, "--memory-gib", "0.2"]
    environment = clean_environment(DATABASE_URL=database_url, **QUICK)
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
    try:
        wait_for(lambda: bool(worker_pids(engine)), 60)
        assert profiles.queue_new([small, large, adam, hungry], "someone", TERMS) == 4
        wait_for(lambda: is_done(engine), 120)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    done, cut, refused = (profiles.get(one.key) for one in (small, large, adam))
    assert done is not None
    assert cut is not None
    assert refused is not None
    assert (done.state, done.rows_measured) == (ProfileState.MEASURED, None)
    assert [result.width for result in done.results] == [64, 32, 16]
    assert all(result.forward_ms > 0 and result.backward_ms > 0 for result in done.results)
    assert cut.state is ProfileState.MEASURED
    assert 0.15 * 2**30 < (cut.rows_measured or 0) * 64 * 4 <= 0.2 * 2**30
    assert refused.state is ProfileState.PARKED
    assert "no adam" in (refused.error or "")
    too_much = profiles.get(hungry.key)
    assert too_much is not None
    assert too_much.state is ProfileState.PARKED
    assert "GiB however few rows are kept" in (too_much.error or "")
    _are_stored_as_measured(engine, small, large, cut.rows_measured)


def _are_stored_as_measured(engine: Engine, small: TableProfile, large: TableProfile, rows: int | None) -> None:
    stored = MeasurementRepository(engine).compute(HARDWARE)
    assert len(stored) == 6
    for row in stored:
        assert {"torch", "fbgemm_gpu", "device", "fingerprint", "host", "kernel"} <= row.environment.keys()
        assert row.chosen
        whole = row.campaign == f"profile-{small.key}"
        assert row.tables[0].num_embeddings == (1_000 if whole else rows)
        assert (STANDS_FOR in row.environment) is not whole
        if not whole:
            assert row.environment["rows"] == f"{rows} of 4000000"
            # Of use only where the cut table is judged as the whole one is.
            same = table_part(row.tables[0]) is table_part(large.table)
            assert row.split == (table_part(large.table) if same else None)
    assert len(comparable(stored)) <= 6


@pytest.mark.slow
def test_measurements_whose_repeats_disagree_say_so() -> None:
    # In a process of its own, whose memory the bench limits.
    told = subprocess.run([sys.executable, "-c", SPREADS], cwd=ROOT, check=True, capture_output=True, text=True)
    assert told.stdout.splitlines() == ["True True True", "False False False"]


@pytest.mark.parametrize(("more", "status"), [(2**29, 0), (2**31, 7)])
def test_what_takes_more_memory_than_allowed_fails_alone(more: int, status: int) -> None:
    ended = subprocess.run([sys.executable, "-c", HUNGRY.format(more=more)], cwd=ROOT, check=False)
    assert ended.returncode == status
