"""DreamShard and AutoShard: a trained policy places the tables, whole and as NeuroShard's outer search cuts them."""

from dataclasses import replace

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Algorithm
from service.domain.policy import PlacementPolicy
from service.search.beam import BeamSettings, beam_search
from service.search.catalogue import Integers, no_plan_in_time
from service.search.feasibility import Found, place_by_memory
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.policy_placement import policy_placement
from service.search.simulator import simulate
from service.search.workspace import Workspace

_INSTEAD = Algorithm.SIZE_GREEDY

_AGAIN = 1.5
"""Time that placing the cut pieces takes, relative to placing them as they were."""

_SAMPLES = (4, 64)
"""Fewest and most placements that are drawn beside the likeliest."""

_DRAWN_PIECES = 120_000
"""Pieces times devices over all of them, where neither end is reached: about half a second of one core."""


def learned(policy: PlacementPolicy, workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    """The cheapest predicted placement that the policy makes, of the pieces as they are and of them cut further.

    The papers place whole tables; how to cut them is NeuroShard's outer search's answer, all of whose ways of cutting
    are judged by its own inner search. Where the policy comes to a dead end, or to none in time, ``size_greedy`` places
    the pieces.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    # At first, for it takes next to nothing, and the policy may leave no time.
    greedy = greedy_placement(workspace, WEIGHTS[_INSTEAD], deadline)
    began = deadline.clock()
    found = [_placed(policy, workspace, seed, deadline)]
    whole = not deadline.passed()
    if whole:
        reserve = _AGAIN * (deadline.clock() - began)
        beam = beam_search(workspace, deadline.sooner(reserve), BeamSettings())
        whole = not beam.cut_short
        if beam.best is not None and beam.best is not beam.uncut:
            found.append(_placed(policy, workspace.of_pieces(beam.best.pieces), seed, deadline))
            whole = whole and not deadline.passed()
    made = [each for each in found if each is not None]
    if made:
        _, best = min(made, key=lambda each: each[0])
        return Found(best.workspace, best.placement, cut_short=not whole)
    return replace(_or_by_memory(workspace, greedy, deadline), cut_short=not whole)


def stand_in(workspace: Workspace, deadline: Deadline) -> Found:
    """What answers where a policy comes to a dead end: ``size_greedy``'s placement, or one by memory alone.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    return _or_by_memory(workspace, greedy_placement(workspace, WEIGHTS[_INSTEAD], deadline), deadline)


def _or_by_memory(workspace: Workspace, greedy: Integers | None, deadline: Deadline) -> Found:
    if greedy is not None:
        return Found(workspace, greedy, instead=_INSTEAD)
    if deadline.passed():
        raise no_plan_in_time()
    return place_by_memory(workspace, deadline)


def _placed(policy: PlacementPolicy, workspace: Workspace, seed: int, deadline: Deadline) -> tuple[int, Found] | None:
    """The policy's placement of a workspace's pieces and its cost, in ticks; None where it finds none in time."""
    fewest, most = _SAMPLES
    drawn = int(np.clip(_DRAWN_PIECES // (len(workspace.pieces) * workspace.device_count), fewest, most))
    placement = policy_placement(workspace, policy, drawn, seed, deadline)
    if placement is None:
        return None
    return int(simulate(workspace, placement[None]).plan[0]), Found(workspace, placement)
