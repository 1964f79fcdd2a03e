"""Sentences that are said of the same input whatever the cost model."""

from collections.abc import Sequence
from math import inf

from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.reuse import ReuseBasis, reuse_profile
from service.domain.tables import Table
from service.domain.topology import Topology

_NAMED = 5
_GB = 10**9


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


def memory_assumptions(topology: Topology) -> list[str]:
    """That a device is taken to have more memory than its data sheet prints, where it is."""
    sheet, most = DATA_SHEETS.get(topology.hardware), max(topology.memory_bytes, default=0)
    if sheet is None or most <= sheet.memory_gb.value * _GB:
        return []
    return [
        f"memory_bytes is up to {most} ({most / _GB:.1f} GB), but the data sheet of the {sheet.product} has "
        f"{sheet.memory_gb.value:g} GB: a plan that fills it does not fit such a device"
    ]


def novelty_assumptions(tables: Sequence[Table], novelty: Sequence[float]) -> list[str]:
    """Which tables, as they are cut, are unlike those measured, worst first.

    Where none were measured, the model says so itself.
    """
    unlike = sorted(
        ((score, table.name) for table, score in zip(tables, novelty, strict=True) if 1.0 < score < inf),
        key=lambda found: -found[0],
    )
    if not unlike:
        return []
    names = listed([f"{name} ({score:.1f})" for score, name in unlike])
    return [
        f"unlike the measured tables, novelty over 1: {names}; intervals are wider for it: measure such tables with "
        "`shardwright profile --tables FILE`"
    ]


def listed(names: Sequence[str]) -> str:
    """The names, those after the fifth only counted."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more tables"
