"""Sentences that every compute cost model says of the same input."""

from collections.abc import Sequence

from service.domain.reuse import ReuseBasis, reuse_profile
from service.domain.tables import Table

_NAMED = 5


def reuse_assumptions(tables: Sequence[Table], batch_size: int) -> list[str]:
    """What was assumed of how often the tables' ids repeat at a global batch size."""
    by_basis: dict[ReuseBasis, list[str]] = {}
    for table in tables:
        by_basis.setdefault(reuse_profile(table, batch_size).basis, []).append(table.name)
    said = []
    if names := by_basis.get(ReuseBasis.ASSUMED):
        said.append(f"no reuse_histogram for {listed(names)}: ids assumed to follow a Zipf law over the rows")
    if names := by_basis.get(ReuseBasis.EXTRAPOLATED):
        said.append(f"reuse_histogram of {listed(names)} extrapolated from a smaller batch to {batch_size}")
    return said


def listed(names: Sequence[str]) -> str:
    """The names, those after the fifth only counted."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more tables"
