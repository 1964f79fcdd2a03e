"""The devices of plans, measured: predicted compute beside the operator's, for NeuroShard's and the greedy plans.

Each device's tables run alone on one thread, one device after the other. Run it alone on the machine:
python -m benchmarks.planned_devices [task ...]
"""

import sys
from dataclasses import replace

import numpy as np

from benchmarks import shared_data
from benchmarks.search_tasks import HEURISTICS, task_problem
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Problem, tables_on_devices
from service.domain.ports import CostModels
from service.profiling.compute_bench import BenchSettings, ComputeBench
from service.registry.store import ModelStore
from service.usecases.make_plan import PlanResult, make_plan

BATCH_SIZE = 8_192
TASKS = (1, 5, 9, 12)
_MEMORY_BYTES = 6 * 2**30


def planned(problem: Problem, models: CostModels) -> dict[Algorithm, PlanResult]:
    """The plan of every algorithm that finds one."""
    plans = {}
    for algorithm in (Algorithm.NEUROSHARD, *HEURISTICS):
        try:
            plans[algorithm] = make_plan(problem, models, algorithm, 0, Deadline())
        except Infeasible:
            continue
    return plans


def measured_compute(problem: Problem, plan: PlanResult, bench: ComputeBench) -> list[float]:
    """Measured forward and backward compute of each device, milliseconds."""
    times = []
    for device, tables in enumerate(tables_on_devices(problem, plan.shards)):
        if tables:
            timing = bench.measure(tables, BATCH_SIZE, problem.optimizer, np.random.default_rng(device))
            times.append(timing.forward.median_ms + timing.backward.median_ms)
        else:
            times.append(0.0)
    return times


def main() -> None:
    """Prints the slowest device of every plan, predicted and measured, and the error over all devices."""
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    pool, tasks = shared_data.pool(), shared_data.tasks("neuroshard_4gpu_maxdim128_seed0")
    models = ModelStore("model_store").cost_models("cpu-fbgemm")
    bench = ComputeBench(BenchSettings(memory_bytes=_MEMORY_BYTES))
    errors: list[float] = []
    against: list[float] = []
    for number in [int(a) for a in sys.argv[1:]] or TASKS:
        problem = replace(task_problem(pool, tasks[number], devices=4), global_batch_size=BATCH_SIZE)
        slowest = {}
        for algorithm, plan in planned(problem, models).items():
            predicted = [d.cost.forward_compute + d.cost.backward_compute for d in plan.devices]
            measured = measured_compute(problem, plan, bench)
            errors += [p / m - 1 for p, m in zip(predicted, measured, strict=True) if m]
            slowest[algorithm] = max(measured)
            print(
                f"task {number} {algorithm.value}: slowest device predicted {max(predicted):.1f} ms, "
                f"measured {max(measured):.1f} ms",
                flush=True,
            )
        against.append(slowest[Algorithm.NEUROSHARD] / min(slowest[a] for a in HEURISTICS if a in slowest))
    print(
        f"planned devices: MAPE {np.abs(errors).mean():.1%}, bias {np.mean(errors):+.1%} ({len(errors)} devices); "
        f"measured slowest device, neuroshard / best greedy: {np.mean(against):.3f} on average"
    )


if __name__ == "__main__":
    main()
