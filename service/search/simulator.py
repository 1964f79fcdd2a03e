"""From placements to costs, for many placements at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.costs import DeviceCost
from service.domain.plan import Problem
from service.domain.ports import BACKWARD, FORWARD, CostModels, Embeddings, Floats
from service.domain.tables import Table
from service.search.catalogue import TICKS_PER_MS, Integers, Piece, ticks
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """Costs of one training step under N plans on D devices, in ticks; every part is [N, D]."""

    forward_compute: Integers
    backward_compute: Integers
    forward_wait: Integers
    forward_transfer: Integers
    backward_comm: Integers

    @property
    def plan(self) -> Integers:
        """Cost of each plan, the largest total of its devices; [N]."""
        total = self.forward_compute + self.backward_compute + self.backward_comm
        total = total + self.forward_wait + self.forward_transfer
        most: Integers = total.max(axis=1)
        return most

    def devices(self, plan: int) -> tuple[DeviceCost, ...]:
        """Costs of each device under one of the plans, milliseconds; D entries."""
        parts = (
            self.forward_compute,
            self.backward_compute,
            self.forward_wait,
            self.forward_transfer,
            self.backward_comm,
        )
        columns = np.stack([part[plan] for part in parts], axis=1) / TICKS_PER_MS
        return tuple(DeviceCost(*map(float, row)) for row in columns)


def simulate(workspace: Workspace, placements: Integers) -> StepCosts:
    """Prices N placements; pieces of a unit that are on one device are priced as the one piece that they become.

    Args:
        workspace: S pieces.
        placements: device of each piece; [N, S].
    """
    plan, device, piece = _merged(workspace, placements)
    catalogue, devices = workspace.catalogue, workspace.device_count
    group = plan * devices + device
    sums = _sums(catalogue.embeddings[piece], group, len(placements) * devices)
    widths = np.bincount(group, weights=catalogue.output_widths[piece], minlength=len(sums))
    shape = (len(placements), devices)
    return _step(
        workspace.models,
        sums.reshape(*shape, -1),
        widths.astype(np.float64).reshape(shape),
        workspace.problem.global_batch_size,
    )


def price(problem: Problem, models: CostModels, held: Sequence[Sequence[Table]]) -> tuple[DeviceCost, ...]:
    """Costs of D devices that hold these shards, as tables of their width; D entries."""
    tables = [table for here in held for table in here]
    embeddings = models.compute.encode(tables, problem.global_batch_size, problem.optimizer)
    group = np.repeat(np.arange(len(held)), [len(here) for here in held])
    widths = np.array([[float(sum(table.output_width for table in here)) for here in held]])
    sums = _sums(embeddings, group, len(held))
    return _step(models, sums[None], widths, problem.global_batch_size).devices(0)


def merged_pieces(workspace: Workspace, placement: Integers) -> list[tuple[Piece, int]]:
    """What each device holds of each unit under a placement [S]: pieces and their devices, by unit and device."""
    _, devices, pieces = _merged(workspace, placement[None])
    return [(workspace.catalogue.keys[piece], int(device)) for device, piece in zip(devices, pieces, strict=True)]


def _merged(workspace: Workspace, placements: Integers) -> tuple[Integers, Integers, Integers]:
    """Plan, device and position of the M pieces that N placements come to, by plan, unit and device; [M] each."""
    catalogue, devices = workspace.catalogue, workspace.device_count
    units, count = len(catalogue.rules.units), len(placements)
    plan = np.repeat(np.arange(count), placements.shape[1])
    group = (plan * units + np.tile(workspace.units, count)) * devices + placements.ravel()
    order = np.argsort(group, kind="stable")
    present, begins, sizes = np.unique(group[order], return_index=True, return_counts=True)
    pieces = np.tile(workspace.pieces, count)[order]
    found = pieces[begins]
    several = np.flatnonzero(sizes > 1)
    if several.size:
        widths = np.array([catalogue.keys[piece].width for piece in pieces])
        joined = np.add.reduceat(widths, begins)[several]
        unit_of = present[several] // devices % units
        found[several] = catalogue.positions([Piece(*map(int, key)) for key in zip(unit_of, joined, strict=True)])
    return present // (devices * units), present % devices, found


def _sums(embeddings: Embeddings, group: NDArray[np.int64], groups: int) -> Embeddings:
    """Sums of embeddings by group, added in double precision; [M, H] and [M] -> [groups, H]."""
    sums = np.zeros((groups, embeddings.shape[1]))
    order = np.argsort(group, kind="stable")
    present, begins = np.unique(group[order], return_index=True)
    sums[present] = np.add.reduceat(embeddings[order].astype(np.float64), begins, axis=0)
    return sums.astype(np.float32)


def _step(models: CostModels, sums: Embeddings, widths: Floats, batch_size: int) -> StepCosts:
    """Costs of N plans by what their devices hold; [N, D, H] and [N, D]."""
    compute = ticks(models.compute.head(sums))
    forward, backward = compute[..., FORWARD], compute[..., BACKWARD]
    exchanged = exchange_ticks(models, forward + backward, widths, batch_size)
    return StepCosts(forward, backward, exchanged.wait, exchanged.transfer, exchanged.backward)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeTicks:
    """What the exchanges of N plans on D devices cost, in ticks; every part is [N, D]."""

    wait: Integers
    transfer: Integers
    backward: Integers


def exchange_ticks(models: CostModels, compute: Integers, widths: Floats, batch_size: int) -> ExchangeTicks:
    """The exchanges of devices with this compute, in ticks, and these output widths; [N, D] each.

    A device starts its forward exchange when its compute and its backward exchange are done. One device alone
    exchanges nothing.
    """
    if widths.shape[-1] == 1:
        nothing = np.zeros(widths.shape, dtype=np.int64)
        return ExchangeTicks(nothing, nothing, nothing)
    backward = ticks(models.communication.backward(widths, batch_size))
    start = compute + backward
    wait = start.max(axis=-1, keepdims=True) - start
    transfer = ticks(models.communication.forward_transfer(widths, wait / TICKS_PER_MS, batch_size))
    return ExchangeTicks(wait, transfer, backward)
