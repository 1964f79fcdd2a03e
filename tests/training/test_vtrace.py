"""V-trace against values computed by hand and against the sum that defines it."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.training.vtrace import vtrace


def _column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_values_are_those_computed_by_hand() -> None:
    # Probabilities now over then: 1/2, 3 (counts as 1) and 1. The second step ends an episode.
    found = vtrace(
        _column(np.log(0.5), np.log(3.0), 0.0),
        _column(1.0, 0.0, 1.0),
        _column(0.0, 1.0, 0.0),
        _column(0.2, 0.6, 0.5),
        torch.tensor([0.8], dtype=torch.float64),
    )
    # Surprises: 0.5 (0.6 - 0.2) = 0.2; 1 - 0.6 = 0.4, whatever follows; 0.8 - 0.5 = 0.3.
    assert found.returns[:, 0].tolist() == pytest.approx([0.2 + 0.2 + 0.5 * 0.4, 1.0, 0.8])
    assert found.advantages[:, 0].tolist() == pytest.approx([0.5 * (1.0 - 0.2), 0.4, 0.3])


def test_on_policy_returns_are_the_rewards_to_come() -> None:
    zeros = torch.zeros(4, 1, dtype=torch.float64)
    found = vtrace(
        zeros, torch.ones_like(zeros), _column(1, 2, 3, 4), _column(9, -7, 5, 0.3), torch.tensor([10.0]).double()
    )
    assert found.returns[:, 0].tolist() == pytest.approx([20, 19, 17, 14])
    assert found.advantages[:, 0].tolist() == pytest.approx([20 - 9, 19 + 7, 17 - 5, 14 - 0.3])


def _by_definition(
    ratios: NDArray[np.float64],
    discounts: NDArray[np.float64],
    rewards: NDArray[np.float64],
    values: NDArray[np.float64],
    rho_bar: float,
    c_bar: float,
) -> NDArray[np.float64]:
    """Equation (1): a sum over all later steps for each step; ``values`` has the bootstrap behind it."""
    found = values[:-1].copy()
    for s in range(len(found)):
        for t in range(s, len(found)):
            before = np.prod([discounts[i] * min(c_bar, ratios[i]) for i in range(s, t)])
            surprise = rewards[t] + discounts[t] * values[t + 1] - values[t]
            found[s] += before * min(rho_bar, ratios[t]) * surprise
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("bars", [(1.0, 1.0), (2.0, 0.7)])
def test_the_recursion_is_the_sum_that_defines_it(seed: int, bars: tuple[float, float]) -> None:
    generator = np.random.default_rng(seed)
    logs, rewards, values = generator.normal(size=(3, 12, 3))
    discounts, last = np.where(generator.random((12, 3)) > 0.3, 0.97, 0.0), generator.normal(size=3)
    at = torch.from_numpy
    found = vtrace(at(logs), at(discounts), at(rewards), at(values), at(last), *bars)
    for b in range(3):
        followed = np.append(values[:, b], last[b])
        wanted = _by_definition(np.exp(logs[:, b]), discounts[:, b], rewards[:, b], followed, *bars)
        assert found.returns[:, b].numpy() == pytest.approx(wanted)
        rho, following = np.minimum(bars[0], np.exp(logs[:, b])), np.append(wanted[1:], last[b])
        advantages = rho * (rewards[:, b] + discounts[:, b] * following - values[:, b])
        assert found.advantages[:, b].numpy() == pytest.approx(advantages)


def test_targets_carry_no_gradient() -> None:
    values = torch.ones(3, 2, requires_grad=True)
    found = vtrace(torch.zeros(3, 2), torch.ones(3, 2), torch.ones(3, 2), values, torch.ones(2))
    assert not found.returns.requires_grad
    assert not found.advantages.requires_grad
