"""NeuroShard: a beam search over column cuts around a greedy grid search over width caps (MLSys 2023)."""

import numpy as np

from service.domain.deadline import Deadline
from service.search.beam import BeamSettings, beam_search
from service.search.catalogue import Integers, no_plan_in_time
from service.search.feasibility import Found, packed, place_by_memory
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.simulator import simulate
from service.search.workspace import Workspace

_PAPER = BeamSettings()


def neuroshard(workspace: Workspace, deadline: Deadline, settings: BeamSettings = _PAPER) -> Found:
    """The cheapest predicted plan of the beam search and of the four greedy heuristics, the first of equals.

    A heuristic that finds no placement counts with the one by memory alone that it then answers.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    baselines = _greedy_placements(workspace, deadline)
    beam = beam_search(workspace, deadline, settings)
    finished = not beam.cut_short
    candidates = ([beam.uncut.placement] if beam.uncut else []) + baselines
    if not candidates and beam.best is None:
        if not finished:
            raise no_plan_in_time()
        return place_by_memory(workspace, deadline)
    if finished and len(baselines) < len(WEIGHTS):
        packing = packed(workspace, deadline)
        finished = packing.proven or not deadline.passed()
        candidates += [np.array(packing.assignment)] if packing.assignment is not None else []
    found = [_cheapest(workspace, candidates)] if candidates else []
    if beam.best is not None and beam.best is not beam.uncut:
        cut = workspace.of_pieces(beam.best.pieces)
        found.append(_cheapest(cut, [beam.best.placement]))
    _, space, placement = min(found, key=lambda each: each[0])
    return Found(space, placement, cut_short=not finished)


def _cheapest(workspace: Workspace, placements: list[Integers]) -> tuple[int, Workspace, Integers]:
    """The plan cost, in ticks, and the placement of the first of the cheapest."""
    costs = simulate(workspace, np.stack(placements)).plan
    return int(costs.min()), workspace, placements[int(costs.argmin())]


def _greedy_placements(workspace: Workspace, deadline: Deadline) -> list[Integers]:
    placements = []
    for weight in WEIGHTS.values():
        if deadline.passed():
            break
        placement = greedy_placement(workspace, weight, deadline)
        if placement is not None:
            placements.append(placement)
    return placements
