"""The shipped models and the search on public tasks and measurements, where those are on the machine."""

import pytest

from benchmarks import shared_data
from benchmarks.public_communication import evaluate_public as evaluate_exchanges
from benchmarks.public_compute import evaluate_public
from benchmarks.search_tasks import HEURISTICS, needs_cuts, predicted, task_problem
from service.domain.deadline import Deadline
from service.domain.memory import Memory
from service.domain.plan import Algorithm, tiling_faults
from service.registry.store import ModelStore
from service.settings import Settings
from service.training.communication_trainer import CommunicationTraining
from service.training.compute_trainer import ComputeTraining
from service.usecases.make_plan import make_plan

pytestmark = pytest.mark.skipif(not shared_data.present(), reason="the public data is not on this machine")


def test_neuroshard_is_never_above_the_best_greedy_on_the_first_20_tasks_and_those_that_need_cuts() -> None:
    pool = shared_data.pool()
    models = ModelStore(Settings().model_store).cost_models("cpu-fbgemm")
    problems = [task_problem(pool, task, devices=4) for task in shared_data.tasks("neuroshard_4gpu_maxdim128_seed0")]
    assert sum(map(needs_cuts, problems)) == 3
    for number, problem in enumerate(problems):
        if number >= 20 and not needs_cuts(problem):
            continue
        plan = make_plan(problem, models, Algorithm.NEUROSHARD, 0, Deadline())
        assert plan.max_cost_ms <= min(predicted(problem, a, models) for a in HEURISTICS), number
        assert not tiling_faults(problem.tables, 4, plan.shards)
        assert all(report.memory.total <= report.memory_limit_bytes for report in plan.devices)
        assert sum((r.memory for r in plan.devices), Memory()).weights == sum(t.weight_bytes for t in problem.tables)


def test_the_network_learns_public_measurements() -> None:
    found = evaluate_public("4proc", ComputeTraining(epochs=60))
    assert found.mape <= 0.12
    assert found.tau >= 0.94


def test_one_communication_model_learns_public_exchanges_of_4_and_8_processes() -> None:
    found = evaluate_exchanges(CommunicationTraining(epochs=30))
    for count in (4, 8):
        assert found[f"forward_{count}"].mape <= 0.14
        assert found[f"backward_{count}"].mape <= 0.12
