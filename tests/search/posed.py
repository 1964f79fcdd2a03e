"""Small planning problems, written out."""

from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology

GIB = 1 << 30


def posed(
    *tables: Table,
    limits: tuple[int, ...] = (GIB, GIB),
    optimizer: Optimizer = Optimizer.SGD,
    **constraints: object,
) -> Problem:
    return Problem(tables, Topology("fake", limits), 64, optimizer, Constraints(**constraints))  # type: ignore[arg-type]
