"""DreamShard's two networks for training, the same that ``service.policies.dreamshard`` evaluates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.domain.ports import Floats
from service.policies.dreamshard import COSTS, PLAN_COST
from service.policies.table_features import POLICY_FEATURE_NAMES
from service.training.checks import refuse_sizes
from service.training.policy_networks import TableInput


@dataclass(frozen=True, slots=True)
class DreamShardSizes:
    """Sizes of the networks; by default the paper's.

    Attributes:
        table_hidden: hidden units of both table MLPs.
        embedding: size of both embeddings.
        head_hidden: hidden units of each head of the cost network.
        cost_hidden: hidden units of the policy's MLP of costs.
        cost_embedding: its outputs.

    Raises:
        ValueError: one is below 1.
    """

    table_hidden: int = 128
    embedding: int = 32
    head_hidden: int = 64
    cost_hidden: int = 64
    cost_embedding: int = 32

    def __post_init__(self) -> None:
        refuse_sizes(self)


class CostNetwork(nn.Module):
    """Predicts the three costs of devices, and the cost of plans, in units of ``DreamShard.cost_unit_ms``."""

    def __init__(self, sizes: DreamShardSizes) -> None:
        super().__init__()
        self.table = _two_layers(len(POLICY_FEATURE_NAMES), sizes.table_hidden, sizes.embedding)
        heads = {name: _two_layers(sizes.embedding, sizes.head_hidden, 1) for name in (*COSTS, PLAN_COST)}
        self.heads = nn.ModuleDict(heads)

    def devices(self, sums: Tensor) -> Tensor:
        """Costs of devices, in the order of ``COSTS``; sums of embeddings [..., E] -> [..., 3]."""
        return torch.cat([self.heads[name](sums) for name in COSTS], dim=-1)

    def plans(self, sums: Tensor, devices: Tensor) -> Tensor:
        """Costs of plans; sums [..., D, E] and which devices there are, [..., D] -> [...]."""
        most = sums.masked_fill(~devices.unsqueeze(-1), -torch.inf).amax(dim=-2)
        costs: Tensor = self.heads[PLAN_COST](most).squeeze(-1)
        return costs


class PolicyNetwork(nn.Module):
    """Logits of devices."""

    def __init__(self, sizes: DreamShardSizes) -> None:
        super().__init__()
        self.table = _two_layers(len(POLICY_FEATURE_NAMES), sizes.table_hidden, sizes.embedding)
        self.costs = _two_layers(len(COSTS), sizes.cost_hidden, sizes.cost_embedding)
        self.logit = nn.Linear(sizes.embedding + sizes.cost_embedding, 1, bias=False)

    def forward(self, sums: Tensor, costs: Tensor) -> Tensor:
        """Logits by sums of the policy's own embeddings, [..., G], and predicted costs, [..., 3]; -> [...]."""
        logits: Tensor = self.logit(torch.cat([sums, self.costs(costs)], dim=-1)).squeeze(-1)
        return logits


class DreamShard(TableInput):
    """Both networks, with the statistics that standardise their input."""

    def __init__(self, sizes: DreamShardSizes, features: Floats, cost_unit_ms: float) -> None:
        """Starts the networks, from torch's own seed.

        Args:
            sizes: of the networks.
            features: ``policy_features`` of the tables that are trained on; [T, 21].
            cost_unit_ms: what costs are divided by, so that they are of the order of 1.

        Raises:
            ValueError: the unit is not positive.
        """
        super().__init__(features, cost_unit_ms)
        self.cost = CostNetwork(sizes)
        self.policy = PolicyNetwork(sizes)

    def logits(self, cost_sums: Tensor, policy_sums: Tensor) -> Tensor:
        """Logits by the sums of both embeddings; [..., E] and [..., G] -> [...]. Only the policy network learns."""
        with torch.no_grad():
            costs = self.cost.devices(cost_sums)
        found: Tensor = self.policy(policy_sums, costs)
        return found

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays of ``service.policies.dreamshard.DREAMSHARD_SHAPES``."""
        networks = {
            "cost.table": self.cost.table,
            **{f"cost.{name}": cast(nn.Sequential, head) for name, head in self.cost.heads.items()},
            "policy.table": self.policy.table,
            "policy.costs": self.policy.costs,
        }
        logit, embedding = self.policy.logit.weight[0], self.policy.table[2].out_features
        tensors = {
            "feature_mean": self.feature_mean,
            "feature_scale": self.feature_scale,
            "cost_unit_ms": torch.tensor([self.cost_unit_ms]),
            "policy.logit.sums": logit[:embedding],
            "policy.logit.costs": logit[embedding:],
        }
        for name, network in networks.items():
            for layer, module in enumerate((network[0], network[2])):
                linear = cast(nn.Linear, module)
                tensors[f"{name}.{layer}.weight"] = linear.weight
                tensors[f"{name}.{layer}.bias"] = linear.bias
        return {name: tensor.detach().cpu().numpy().astype(np.float32) for name, tensor in tensors.items()}


def _two_layers(into: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(into, hidden), nn.ReLU(), nn.Linear(hidden, out))
