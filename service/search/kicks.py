"""Out of a plan that no single change improves: a few random changes, from which the search goes down again."""

import numpy as np

from service.search.holdings import Holdings
from service.search.refine import Refinement

_REJOINED = 0.3
"""Share of the kicks that make a cut table whole, where there is one; each cut repeats work."""

_PARTS = 0.3
"""Share of the moves that take a part of a piece."""

_FROM_LATEST = 0.5
"""Share of the kicks that the device with most compute has part in, for sure."""

_MOST_MOVES = 3


def kick(plan: Refinement, generator: np.random.Generator) -> bool:
    """Changes a plan a little at random; False where what was drawn is not allowed."""
    if len(plan.holdings.held) == 1:
        return False
    cut = _cut_units(plan.holdings)
    if cut.size and generator.random() < _REJOINED:
        return _rejoin(plan, int(generator.choice(cut)), generator)
    return _shake(plan, generator)


def _cut_units(holdings: Holdings) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    counts = np.bincount([unit for held in holdings.held for unit in held])
    return np.flatnonzero(counts > 1)


def _rejoin(plan: Refinement, unit: int, generator: np.random.Generator) -> bool:
    """All columns of a unit to one of the devices that hold some, as far as that takes them."""
    columns = plan.holdings.columns(unit)
    target = int(generator.choice(list(columns)))
    moved = [_move(plan, unit, device, target, count) for device, count in columns.items() if device != target]
    return any(moved)


def _shake(plan: Refinement, generator: np.random.Generator) -> bool:
    """Pieces, or parts of them, of two or three devices to another of these."""
    holdings, devices = plan.holdings, len(plan.holdings.held)
    latest = generator.random() < _FROM_LATEST
    first = int(holdings.compute.argmax()) if latest else int(generator.integers(devices))
    others = generator.permutation([d for d in range(devices) if d != first])[: generator.integers(1, 3)]
    chosen = [first, *others.tolist()]
    moved = False
    for _ in range(generator.integers(1, _MOST_MOVES + 1)):
        source, target = generator.permutation(chosen)[:2].tolist()
        if holdings.held[source]:
            unit = int(generator.choice(list(holdings.held[source])))
            whole, *parts = holdings.catalogue.parts(holdings.held[source][unit])
            columns = int(generator.choice(parts)) if parts and generator.random() < _PARTS else whole
            moved |= _move(plan, unit, source, target, columns)
    return moved


def _move(plan: Refinement, unit: int, source: int, target: int, columns: int) -> bool:
    changes = plan.holdings.moved(unit, source, target, columns)
    if changes is None or not plan.accepts(plan.holdings, changes):
        return False
    plan.change(changes)
    return True
