"""DreamShard and AutoShard: a trained policy places the tables, whole and as NeuroShard's outer search cuts them."""

from dataclasses import replace

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Algorithm
from service.domain.policy import PlacementPolicy
from service.search.beam import BeamSettings, beam_search
from service.search.catalogue import no_plan_in_time
from service.search.feasibility import Found, place_by_memory
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.policy_placement import policy_placement
from service.search.simulator import simulate
from service.search.workspace import Workspace

_INSTEAD = Algorithm.SIZE_GREEDY

_POLICY_SHARE = 0.9
"""Part of the time that is the policy's; in the rest another algorithm can answer."""

_CUTS_SHARE = 0.5
"""Part of that still left, once the pieces as they are have been placed, in which cuts are looked for."""

_SAMPLES = (4, 64)
"""Fewest and most placements that are drawn beside the likeliest."""

_DRAWN_PIECES = 60_000
"""Pieces times devices over all of them, where neither end is reached: what takes a good second of one core."""


def learned(policy: PlacementPolicy, workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    """The cheapest predicted placement that the policy makes, of the pieces as they are and of them cut further.

    The papers place whole tables; how to cut them is NeuroShard's outer search's answer, all of whose ways of cutting
    are judged by its own inner search. Where the policy comes to a dead end, ``size_greedy`` places the pieces.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    share = deadline.share(_POLICY_SHARE)
    found = [_placed(policy, workspace, seed, share)]
    whole = not share.passed()
    if whole:
        beam = beam_search(workspace, share.share(_CUTS_SHARE), BeamSettings())
        whole = not beam.cut_short
        if beam.best is not None and beam.best is not beam.uncut:
            found.append(_placed(policy, workspace.of_pieces(beam.best.pieces), seed, share))
            whole = whole and not share.passed()
    made = [each for each in found if each is not None]
    if made:
        _, best = min(made, key=lambda each: each[0])
        return Found(best.workspace, best.placement, cut_short=not whole)
    return replace(stand_in(workspace, deadline), cut_short=not whole)


def stand_in(workspace: Workspace, deadline: Deadline) -> Found:
    """What answers where a policy comes to a dead end: ``size_greedy``'s placement, or one by memory alone.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    placement = greedy_placement(workspace, WEIGHTS[_INSTEAD], deadline)
    if placement is not None:
        return Found(workspace, placement, instead=_INSTEAD)
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
