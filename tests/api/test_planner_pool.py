"""The pool of planning processes: what becomes of requests when processes die, are stuck, or the pool stops."""

import logging
import os
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from service.api import planner_worker
from service.api.planner_pool import PlannerPool
from service.api.planner_process import PlannerProcess
from service.api.planner_worker import SourceSpec
from service.api.readiness import Check
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime, PlanCancelled, PlannerBusy, ShardwrightError
from service.domain.plan import Algorithm, Problem, Shard
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.domain.waiting import PATIENT, Asker, Waiting
from service.usecases.make_plan import PlanResult
from tests.api.processes import kill, mapped_files, planning_processes, thread_count, wait_for
from tests.api.support import FACTORY, GIB

VERSIONS = {"compute": "fake/compute/1", "communication": "fake/communication/1"}
PATIENCE_S = 30


class Count:
    """Goes up and down."""

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        self.value += 1

    def dec(self) -> None:
        self.value -= 1


class Pool(PlannerPool):
    """A pool whose counts can be read."""

    def __init__(self, processes: int, queue: int = 0, grace_s: float = 10.0, factory: str = FACTORY) -> None:
        self.running, self.waiting, self.deaths = Count(), Count(), Count()
        source = SourceSpec(factory, "")
        super().__init__(source, processes, queue, self.running, self.waiting, self.deaths, grace_s)


def problem(hardware: str, memory: int = GIB) -> Problem:
    return Problem((Table("t", 100, 8, 1.0),), Topology(hardware, (memory, memory)), 64, Optimizer.SGD)


def _plan(pool: PlannerPool, hardware: str, deadline: Deadline | None = None, waiting: Waiting = PATIENT) -> PlanResult:
    return pool.plan(problem(hardware), VERSIONS, Algorithm.DIM_GREEDY, 0, deadline or Deadline(), None, waiting)


def _begun(pool: Pool, threads: ThreadPoolExecutor, hardware: str, waiting: Waiting = PATIENT) -> Future[PlanResult]:
    plan = threads.submit(_plan, pool, hardware, waiting=waiting)
    wait_for(lambda: pool.running.value == 1)
    return plan


@contextmanager
def _no_more_files() -> Iterator[None]:
    """Nothing that needs a new file descriptor works, pipes among it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_waiting_for_a_process_counts_against_the_time_limit() -> None:
    with ThreadPoolExecutor(1) as threads, Pool(processes=1, queue=1) as pool:
        running = _begun(pool, threads, "slow")
        began = time.monotonic()
        # Planning never began: the caller may come again, nothing is wrong with the request.
        with pytest.raises(PlannerBusy) as caught:
            _plan(pool, "fake", Deadline.after(0.1))
        assert caught.value.data["retry_after_s"] > 0
        assert time.monotonic() - began < 0.5
        running.result(PATIENCE_S)


def test_a_killed_planning_process_is_replaced_and_its_request_made_again(caplog: pytest.LogCaptureFixture) -> None:
    before = planning_processes(os.getpid())
    with ThreadPoolExecutor(1) as threads, Pool(processes=1) as pool:
        (first,) = planning_processes(os.getpid()) - before
        plan = _begun(pool, threads, "slow")
        kill(first)
        assert plan.result(PATIENCE_S).shards
        (second,) = planning_processes(os.getpid()) - before
        assert second != first
        assert pool.deaths.value == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.__dict__["fields"] == {"exit_code": -signal.SIGKILL}


def test_a_request_whose_processes_keep_dying_is_given_up_on() -> None:
    before = planning_processes(os.getpid())
    with ThreadPoolExecutor(1) as threads, Pool(processes=1) as pool:
        plan = _begun(pool, threads, "stuck")
        give_up = time.monotonic() + PATIENCE_S
        while not plan.done() and time.monotonic() < give_up:
            for pid in planning_processes(os.getpid()) - before:
                kill(pid)
            time.sleep(0.05)
        with pytest.raises(PlannerBusy):
            plan.result(PATIENCE_S)
        assert _plan(pool, "fake").shards


def test_processes_that_died_while_idle_cost_no_attempts() -> None:
    before = planning_processes(os.getpid())
    with Pool(processes=3) as pool:
        for pid in planning_processes(os.getpid()) - before:
            kill(pid)
        assert _plan(pool, "fake").shards
        assert pool.deaths.value == 1


def test_a_stuck_process_is_replaced_and_its_request_not_made_again() -> None:
    before = planning_processes(os.getpid())
    with Pool(processes=1, grace_s=0.3) as pool:
        first = planning_processes(os.getpid()) - before
        began = time.monotonic()
        with pytest.raises(NoPlanInTime):
            _plan(pool, "stuck", Deadline.after(0.3))
        assert time.monotonic() - began < 5
        assert pool.deaths.value == 1
        assert (planning_processes(os.getpid()) - before).isdisjoint(first)
        assert _plan(pool, "fake").shards


def test_a_plan_that_nobody_waits_for_ends_and_its_process_goes_on() -> None:
    before, asker = planning_processes(os.getpid()), Asker()
    tables = tuple(Table(f"t{i}", 1_000 + 77 * i, 64 + 4 * (i % 9), 1.0 + i % 13) for i in range(60))
    large = Problem(tables, Topology("fake", (GIB,) * 8), 4_096, Optimizer.SGD)
    with ThreadPoolExecutor(1) as threads, Pool(processes=1) as pool:
        first = planning_processes(os.getpid()) - before
        plan = threads.submit(pool.plan, large, VERSIONS, Algorithm.AUTO, 0, Deadline.after(60), None, asker)
        wait_for(lambda: pool.running.value == 1)
        time.sleep(0.2)
        began = time.monotonic()
        asker.leave()
        with pytest.raises(PlanCancelled):
            plan.result(PATIENCE_S)
        assert time.monotonic() - began < 0.5
        # What was told to end is not told again, nor taken for the next one.
        assert _plan(pool, "fake").shards
        assert planning_processes(os.getpid()) - before == first
        assert pool.deaths.value == 0


def test_a_process_that_does_not_come_to_an_end_is_replaced_and_not_counted_as_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, asker = planning_processes(os.getpid()), Asker()
    with ThreadPoolExecutor(1) as threads, Pool(processes=1) as pool:
        first = planning_processes(os.getpid()) - before
        plan = _begun(pool, threads, "stuck", asker)
        began = time.monotonic()
        asker.leave()
        with pytest.raises(PlanCancelled):
            plan.result(PATIENCE_S)
        assert time.monotonic() - began < 5
        assert (planning_processes(os.getpid()) - before).isdisjoint(first)
        assert _plan(pool, "fake").shards
        assert pool.deaths.value == 0
    assert not caplog.records


@pytest.mark.slow
def test_who_leaves_soon_does_not_end_a_process_that_is_still_loading() -> None:
    before, asker = planning_processes(os.getpid()), Asker()
    with ThreadPoolExecutor(1) as threads, Pool(1, factory="tests.api.fake_store:LateStore") as pool:
        kill(*planning_processes(os.getpid()) - before)
        plan = _begun(pool, threads, "fake", asker)
        wait_for(lambda: bool(planning_processes(os.getpid()) - before))
        second = planning_processes(os.getpid()) - before
        asker.leave()
        assert isinstance(plan.exception(PATIENCE_S), PlanCancelled | None)
        assert planning_processes(os.getpid()) - before == second
        assert _plan(pool, "fake").shards


def test_who_leaves_the_line_gives_up_its_place_at_once() -> None:
    first, second = Asker(), Asker()
    with ThreadPoolExecutor(3) as threads, Pool(processes=1, queue=1) as pool:
        plan = _begun(pool, threads, "stuck", first)
        waits = threads.submit(_plan, pool, "fake", waiting=second)
        wait_for(lambda: pool.waiting.value == 1)
        with pytest.raises(PlannerBusy):
            _plan(pool, "fake")
        second.leave()
        with pytest.raises(PlanCancelled):
            waits.result(1)
        next_one = threads.submit(_plan, pool, "fake")
        wait_for(lambda: pool.waiting.value == 1)
        first.leave()
        assert next_one.result(PATIENCE_S).shards
        assert isinstance(plan.exception(PATIENCE_S), PlanCancelled)


def test_a_process_that_cannot_be_started_is_started_for_a_later_request() -> None:
    before = planning_processes(os.getpid())
    with Pool(processes=1) as pool:
        (pid,) = planning_processes(os.getpid()) - before
        kill(pid)
        with _no_more_files():
            for _ in range(2):
                with pytest.raises(PlannerBusy, match="cannot be started"):
                    _plan(pool, "fake")
            assert pool.check() == Check(False, "0 of 1 planning processes")
        assert _plan(pool, "fake").shards
        assert pool.check() == Check(True)
        assert pool.deaths.value == 1


def test_readiness_starts_what_died_while_idle() -> None:
    before = planning_processes(os.getpid())
    with Pool(processes=2) as pool:
        first, _ = planning_processes(os.getpid()) - before
        kill(first)
        with _no_more_files():
            assert pool.check() == Check(True, "1 of 2 planning processes")
        assert pool.check() == Check(True)
        assert len(planning_processes(os.getpid()) - before) == 2


def test_a_pool_that_stops_refuses_those_that_it_works_for_and_those_that_wait() -> None:
    pool = Pool(processes=1, queue=3)
    with ThreadPoolExecutor(4) as threads:
        with pool:
            requests: list[Future[object]] = [threads.submit(_plan, pool, "stuck")]
            wait_for(lambda: pool.running.value == 1)
            shards = (Shard("t", 0, 8, 0),)
            requests += [threads.submit(pool.estimate, problem("fake"), VERSIONS, shards, Deadline()) for _ in range(3)]
            wait_for(lambda: pool.waiting.value == 3)
        for refused in requests:
            with pytest.raises(PlannerBusy, match="stopping"):
                refused.result(PATIENCE_S)
    assert pool.deaths.value == 0


def test_a_planning_process_is_deaf_to_ctrl_c_from_its_first_instruction() -> None:
    before = planning_processes(os.getpid())
    process = PlannerProcess(SourceSpec(FACTORY, ""))
    process.start()
    try:
        (pid,) = planning_processes(os.getpid()) - before
        give_up = time.monotonic() + 1.0
        while time.monotonic() < give_up:
            os.kill(pid, signal.SIGINT)
            time.sleep(0.01)
        process.call(planner_worker.ready, (), PATIENCE_S, PATIENT)
    finally:
        process.end()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_that_does_not_start_is_one_of_the_services_errors(capfd: pytest.CaptureFixture[str]) -> None:
    source = SourceSpec("tests.api.fake_store:NoSuchStore", "")
    pool = PlannerPool(source, 1, 0, Count(), Count(), Count())
    with pytest.raises(ShardwrightError, match="did not start"), pool:
        pass
    assert "NoSuchStore" in capfd.readouterr().err


def test_errors_of_a_planning_process_keep_their_data() -> None:
    with Pool(processes=1) as pool, pytest.raises(Infeasible) as caught:
        pool.plan(problem("fake", memory=1), VERSIONS, Algorithm.DIM_GREEDY, 0, Deadline(), None, PATIENT)
    assert caught.value.data["reason"] == "total_memory"


def test_planning_processes_load_neither_torch_nor_the_api_and_use_one_blas_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = planning_processes(os.getpid())
    with Pool(processes=1) as pool:
        _plan(pool, "fake")
        (process,) = planning_processes(os.getpid()) - before
        mapped = mapped_files(process)
        assert "numpy" in mapped
        assert not [name for name in ("torch", "pydantic_core", "psycopg") if name in mapped]
        # The main thread, and the one that follows the parent.
        assert thread_count(process) <= 2
