"""From placements to costs, for many placements at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.costs import DeviceCost
from service.domain.plan import Shard
from service.domain.ports import BACKWARD, FORWARD, CostModels, Embeddings, Floats
from service.search.workspace import TICKS_PER_MS, Flags, Integers, Workspace, ticks


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
    """Prices N placements; slices of a table that merge on a device are priced as the one shard they become.

    Args:
        workspace: S slices.
        placements: device of each slice; [N, S].
    """
    sums = _device_sums(workspace, placements)
    compute = ticks(workspace.models.compute.head(sums))
    forward, backward = compute[..., FORWARD], compute[..., BACKWARD]
    widths = _widths(workspace, placements)
    exchanged = exchange_ticks(workspace.models, forward + backward, widths, workspace.problem.global_batch_size)
    return StepCosts(forward, backward, exchanged.wait, exchanged.transfer, exchanged.backward)


def shards_of(workspace: Workspace, placement: Integers) -> tuple[Shard, ...]:
    """Shards of one placement [S]: touching slices of a table on one device are one shard.

    Merging stops at ``max_shard_dim``, and short of the whole table where ``table_wise`` is not allowed.
    """
    starts = np.flatnonzero(shard_starts(workspace, placement[None])[0])
    stops = [*starts[1:], len(workspace.slices)]
    shards = []
    for first, after in zip(starts, stops, strict=True):
        head, tail = workspace.slices[first], workspace.slices[after - 1]
        name = workspace.problem.tables[head.table].name
        shards.append(Shard(name, head.start, tail.stop, int(placement[first])))
    return tuple(shards)


def shard_starts(workspace: Workspace, placements: Integers) -> Flags:
    """Whether a shard begins with each slice, rather than going on from the slice before; [N, S] -> [N, S]."""
    starts = np.ones(placements.shape, dtype=np.bool_)
    merged = np.broadcast_to(workspace.columns, placements.shape).copy()
    for i in workspace.joints:
        joined = merged[:, i - 1] + merged[:, i]
        same_device = placements[:, i] == placements[:, i - 1]
        goes_on = same_device & (joined <= workspace.widest_merged[i])
        starts[:, i] = ~goes_on
        merged[:, i] = np.where(goes_on, joined, merged[:, i])
    return starts


def _device_sums(workspace: Workspace, placements: Integers) -> Embeddings:
    """Sums of the embeddings of each device's shards, added in double precision; [N, D, H]."""
    count, width = len(placements), workspace.embeddings.shape[1]
    plan, first = np.nonzero(shard_starts(workspace, placements))
    embeddings = _shard_embeddings(workspace, plan, first).astype(np.float64)
    group = plan * workspace.device_count + placements[plan, first]
    order = np.argsort(group, kind="stable")
    present, begins = np.unique(group[order], return_index=True)
    sums = np.zeros((count * workspace.device_count, width))
    sums[present] = np.add.reduceat(embeddings[order], begins, axis=0)
    return sums.reshape(count, workspace.device_count, width).astype(np.float32)


def _shard_embeddings(workspace: Workspace, plan: NDArray[np.intp], first: NDArray[np.intp]) -> Embeddings:
    """Embeddings of the shards that begin with slice ``first`` of plan ``plan``, in that order; [shards, H]."""
    embeddings = workspace.embeddings[first]
    slice_count = len(workspace.slices)
    ends = np.append((plan * slice_count + first)[1:], (plan[-1] + 1) * slice_count)
    pieces = ends - (plan * slice_count + first)
    merged = np.flatnonzero(pieces > 1)
    if merged.size:
        shards = [
            workspace.tables[i].sliced(int(workspace.columns[i : i + n].sum()))
            for i, n in zip(first[merged], pieces[merged], strict=True)
        ]
        embeddings[merged] = workspace.encoder.encode(shards)
    return embeddings


def _widths(workspace: Workspace, placements: Integers) -> Floats:
    """Pooled output columns of each device; [N, S] -> [N, D]."""
    count, devices = len(placements), workspace.device_count
    group = (np.arange(count)[:, None] * devices + placements).ravel()
    columns = np.broadcast_to(workspace.output_widths, placements.shape).ravel()
    held = np.bincount(group, weights=columns, minlength=count * devices)
    widths: Floats = held.astype(np.float64).reshape(count, devices)
    return widths


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
