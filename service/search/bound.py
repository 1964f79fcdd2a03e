"""A lower bound on the cost of every plan of a problem."""

import math

from service.domain.plan import Problem
from service.domain.ports import CostModels


def lower_bound_ms(problem: Problem, models: CostModels) -> float:
    """Milliseconds that no plan's cost is below, where the compute model never prices more columns lower.

    Some device holds at least an even share of each table's columns.
    """
    devices = problem.topology.device_count
    shares = [table.sliced(math.ceil(table.embedding_dim / devices)) for table in problem.tables]
    embeddings = models.compute.encode(shares, problem.global_batch_size, problem.optimizer)
    return float(models.compute.head(embeddings).sum(axis=-1).max())
