"""Who waits for a planning process that is free."""

import pytest

from service.api.idle_processes import IdleProcesses
from service.api.planner_process import PlannerProcess
from service.api.planner_worker import SourceSpec
from service.domain.errors import PlanCancelled
from service.domain.waiting import Asker


def test_a_process_that_comes_as_who_waits_for_it_leaves_is_free_for_others() -> None:
    idle, process = IdleProcesses(), PlannerProcess(SourceSpec("", ""))

    class LeavesAsItComes(Asker):
        def gone(self) -> bool:
            idle.put(process)
            return True

    with pytest.raises(PlanCancelled):
        idle.wait(None, LeavesAsItComes())
    assert idle.take() is process
    assert idle.take() is None
