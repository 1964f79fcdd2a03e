"""What placements cost, as far as it is known: what DreamShard's cost network learns from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from service.search.catalogue import Integers
from service.training.dreamshard_networks import DreamShard
from service.training.meters import StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPlacements:
    """N placements of at most M tables on at most D devices.

    Attributes:
        tables: position of each placed table among the tables of all tasks, negative in padding; [N, M].
        on: the device of each, 0 in padding; [N, M].
        costs: of each device, in the order of ``service.policies.dreamshard.COSTS``, milliseconds; [N, D, 3].
        devices: which devices there are; [N, D].
        plans: cost of each placement, milliseconds; [N].
        units: what a placement's errors are measured in, milliseconds; [N].
    """

    tables: Tensor
    on: Tensor
    costs: Tensor
    devices: Tensor
    plans: Tensor
    units: Tensor

    @classmethod
    def of(
        cls,
        tables: Sequence[Integers],
        on: Sequence[Integers],
        times: Sequence[StepTimes],
        units: Sequence[float],
        most_tables: int,
        most_devices: int,
    ) -> "MeasuredPlacements":
        """Placements of up to so many tables on up to so many devices; arguments as the attributes, without padding."""
        count = len(times)
        found = cls(
            torch.full((count, most_tables), -1),
            torch.zeros((count, most_tables), dtype=torch.int64),
            torch.zeros((count, most_devices, 3)),
            torch.zeros((count, most_devices), dtype=torch.bool),
            torch.tensor([each.plan for each in times], dtype=torch.float32),
            torch.tensor(units, dtype=torch.float32),
        )
        for i, each in enumerate(times):
            found.tables[i, : len(tables[i])] = torch.from_numpy(tables[i])
            found.on[i, : len(on[i])] = torch.from_numpy(on[i])
            found.costs[i, : len(each.compute)] = torch.from_numpy(np.column_stack([each.compute, each.exchange]))
            found.devices[i, : len(each.compute)] = True
        return found

    def __len__(self) -> int:
        return len(self.plans)

    def tensors(self) -> dict[str, Tensor]:
        """The attributes by name."""
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    def and_these(self, others: "MeasuredPlacements") -> "MeasuredPlacements":
        """Both together."""
        more = others.tensors()
        return MeasuredPlacements(**{name: torch.cat([own, more[name]]) for name, own in self.tensors().items()})

    def rows(self, rows: Tensor) -> "MeasuredPlacements":
        """Some of the placements."""
        return MeasuredPlacements(**{name: own[rows] for name, own in self.tensors().items()})

    def to(self, device: torch.device) -> "MeasuredPlacements":
        """The same on another of torch's devices."""
        return MeasuredPlacements(**{name: own.to(device) for name, own in self.tensors().items()})


def cost_losses(networks: DreamShard, features: Tensor, measured: MeasuredPlacements) -> Tensor:
    """Mean squared errors of the three costs of a device, and of a placement's; [4].

    Args:
        networks: predict them.
        features: standardised, of the tables of all tasks; [T, 21].
        measured: what they should be.
    """
    count, devices = measured.devices.shape
    there = measured.tables >= 0
    group = (torch.arange(count, device=features.device)[:, None] * devices + measured.on)[there]
    embeddings = networks.cost.table(features[measured.tables[there]])
    sums = embeddings.new_zeros((count * devices, embeddings.shape[1])).index_add(0, group, embeddings)
    sums = sums.view(count, devices, -1)
    # Networks answer in units of their own.
    scale = networks.cost_unit_ms / measured.units
    off = (networks.cost.devices(sums) - measured.costs / networks.cost_unit_ms) * scale[:, None, None]
    off_plan = (networks.cost.plans(sums, measured.devices) - measured.plans / networks.cost_unit_ms) * scale
    return torch.cat([off[measured.devices].square().mean(dim=0), off_plan.square().mean()[None]])
