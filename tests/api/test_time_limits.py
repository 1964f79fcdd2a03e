"""When a plan's time limit begins, for those who are in a hurry and those who are not."""

from collections.abc import Sequence
from typing import Any

import pytest

from service.api.idle_processes import IdleProcesses
from service.api.planner_process import Died, PlannerProcess
from service.domain.deadline import Deadline
from service.domain.errors import PlannerBusy
from service.domain.plan import Algorithm
from service.domain.waiting import PATIENT, Asker, Waiting
from tests.api.here import Clock
from tests.api.test_planner_pool import VERSIONS, Pool, problem


class Unhurried(Asker):
    """Would rather wait for the turn."""

    def unhurried(self) -> bool:
        return True


@pytest.mark.parametrize(("waiting", "limit_s"), [(Unhurried(), 7.0), (PATIENT, 2.0)])
def test_only_who_is_in_no_hurry_is_given_the_wait_back_also_where_the_first_process_died(
    waiting: Waiting, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, dues = Clock(), list[float]()
    due = clock.now + limit_s

    def queued(idle: IdleProcesses, timeout: float | None, waiting: Waiting) -> PlannerProcess:
        # The first turn comes after five seconds, the second at once.
        clock.now += 0.0 if dues else 5.0
        process = idle.take()
        assert process is not None
        return process

    def died(process: PlannerProcess, call: object, args: Sequence[Any], timeout: float, waiting: Waiting) -> None:
        dues.append(args[4].at)
        raise Died

    with Pool(processes=1) as pool:
        monkeypatch.setattr(IdleProcesses, "wait", queued)
        monkeypatch.setattr(PlannerProcess, "call", died)
        deadline = Deadline(clock.now + 2.0, clock)
        with pytest.raises(PlannerBusy, match="died"):
            pool.plan(problem("fake"), VERSIONS, Algorithm.DIM_GREEDY, 0, deadline, None, waiting)
    assert dues == [due] * 2
