"""Small training tasks, priced by fakes, and small networks for them."""

import numpy as np

from service.domain.plan import Constraints, Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.workspace import Workspace
from service.training.autoshard_networks import AutoShardSizes
from service.training.autoshard_trainer import AutoShardTraining
from tests.fakes import fake_models
from tests.search import oracle

SMALL = AutoShardSizes(table_hidden=12, embedding=5, head_hidden=7, extra=3, logit_hidden=(9, 8, 6))


def config(**changes: object) -> AutoShardTraining:
    """Unrolls of 11 steps, which the episodes cross."""
    values = {"environment_steps": 8 * 33, "unroll": 11, "batch": 3, "cost_batch": 32, "buffer": 40, "sizes": SMALL}
    return AutoShardTraining(**(values | changes))  # type: ignore[arg-type]


def space(
    count: int, devices: int, seed: int = 0, limit: int = 1 << 40, models: CostModels | None = None, **rules: object
) -> Workspace:
    """A task of tables that differ in all they can."""
    generator = np.random.default_rng(seed)
    tables = tuple(
        Table(
            f"t{i}",
            int(generator.integers(100, 10**6)),
            4 * int(generator.integers(1, 17)),
            float(generator.integers(1, 60)),
        )
        for i in range(count)
    )
    constraints = Constraints(count_buffers=False, **rules)  # type: ignore[arg-type]
    problem = Problem(tables, Topology("fake", (limit,) * devices), 4096, Optimizer.SGD, constraints)
    return Workspace.of(problem, oracle.whole(problem), models or fake_models())


def mixed() -> list[Workspace]:
    """Tasks of other numbers of tables and devices, one with tables that are one piece, one where memory is short."""
    models = fake_models()
    tight = space(9, 2, 3, models=models)
    limit = int(tight.memory_bytes.sum() / 2 * 1.02)
    return [
        space(7, 3, 1, models=models),
        space(14, 2, 2, models=models, colocate=(("t3", "t9", "t0"),), pin={"t5": (1,)}),
        space(9, 2, 3, limit=limit, models=models),
        space(4, 5, 4, models=models),
    ]
