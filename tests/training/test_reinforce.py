"""Masked REINFORCE against values computed by hand."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.training.reinforce import advantages, reinforce_loss


def _gradient(
    logits: list[list[list[float]]],
    legal: list[list[list[int]]],
    devices: list[list[int]],
    advantage: list[float],
    entropy: float = 0.0,
) -> tuple[float, float, NDArray[np.float64]]:
    """Loss, mean entropy and the loss's gradient."""
    leaf = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    mask, chosen = torch.tensor(legal, dtype=torch.bool), torch.tensor(devices)
    loss, spread = reinforce_loss(leaf, mask, chosen, torch.tensor(advantage, dtype=torch.float64), entropy)
    torch.autograd.backward(loss)
    assert leaf.grad is not None
    return float(loss.detach()), float(spread), np.asarray(leaf.grad)


LOG3 = float(np.log(3.0))

# Two steps of two episodes on three devices; the second episode ended after the first step.
LOGITS = [[[LOG3, 7.0, 0.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0], [5.0, 1.0, 2.0]]]
LEGAL = [[[1, 0, 1], [1, 1, 1]], [[0, 1, 1], [0, 0, 0]]]
DEVICES = [[2, 1], [1, -1]]


def test_loss_and_gradient_are_those_computed_by_hand() -> None:
    loss, spread, gradient = _gradient(LOGITS, LEGAL, DEVICES, [2.0, -1.0])
    # Choices had probabilities 1/4 and 1/2 in the first episode, 1/3 in the second.
    assert loss == pytest.approx(-(2 * (np.log(1 / 4) + np.log(1 / 2)) - np.log(1 / 3)) / 2)
    # Advantage times (probability - chosen), over two episodes.
    assert gradient[0, 0] == pytest.approx([0.75, 0.0, -0.75])
    assert gradient[0, 1] == pytest.approx([-1 / 6, 1 / 3, -1 / 6])
    assert gradient[1, 0] == pytest.approx([0.0, -0.5, 0.5])
    assert gradient[1, 1].tolist() == [0.0, 0.0, 0.0]
    entropies = [-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)), LOG3, np.log(2.0)]
    assert spread == pytest.approx(np.mean(entropies))


def test_entropy_is_rewarded_among_legal_devices() -> None:
    loss, spread, gradient = _gradient([[[LOG3, 7.0, 0.0]]], [[[1, 0, 1]]], [[0]], [0.0], entropy=0.5)
    assert loss == pytest.approx(-0.5 * spread)
    # Of entropy H by a logit: -p (log p + H).
    wanted = [0.5 * p * (np.log(p) + spread) for p in (0.75, 0.25)]
    assert gradient[0, 0] == pytest.approx([wanted[0], 0.0, wanted[1]])
    assert gradient[0, 0, 0] > 0


def test_a_mask_of_all_devices_would_be_another_loss() -> None:
    everywhere = np.ones_like(LEGAL).tolist()
    assert _gradient(LOGITS, LEGAL, DEVICES, [2.0, -1.0])[0] != _gradient(LOGITS, everywhere, DEVICES, [2.0, -1.0])[0]


def test_a_forced_choice_teaches_nothing() -> None:
    loss, spread, gradient = _gradient([[[1.0, 3.0]]], [[[1, 0]]], [[0]], [5.0], entropy=1.0)
    assert (loss, spread) == (0.0, 0.0)
    assert not gradient.any()


def test_episodes_without_a_step_are_taken() -> None:
    nothing = torch.zeros((0, 2, 3), requires_grad=True)
    none = torch.zeros((0, 2), dtype=torch.int64)
    loss, spread = reinforce_loss(nothing, torch.zeros((0, 2, 3), dtype=torch.bool), none, torch.ones(2), 0.1)
    assert (float(loss.detach()), float(spread)) == (0.0, 0.0)


def test_advantages_are_of_each_task_in_standard_deviations() -> None:
    found = advantages(np.array([[-1.0, -3.0], [-500.0, -100.0], [-7.0, -7.0]]))
    assert found.tolist() == [[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]
    many = advantages(np.random.default_rng(0).normal(-50.0, 9.0, (3, 40)))
    assert many.mean(axis=1) == pytest.approx(np.zeros(3), abs=1e-12)
    assert many.std(axis=1) == pytest.approx(np.ones(3))


def test_rounding_alone_is_no_advantage() -> None:
    assert not advantages(np.array([[-0.1 - 0.2, -0.3]])).any()


def _two_armed(policy: Tensor, generator: torch.Generator) -> Tensor:
    """Loss of a batch of choices between two devices, the second of which is worth more; the third is never legal."""
    legal = torch.tensor([True, True, False]).repeat(1, 64, 1)
    chosen = torch.multinomial(policy[:2].softmax(dim=0), 64, replacement=True, generator=generator)[None]
    advantage = torch.from_numpy(advantages(chosen.numpy().astype(np.float64))).float()[0]
    return reinforce_loss(policy.repeat(1, 64, 1), legal, chosen, advantage, 0.0)[0]


def test_descending_the_loss_finds_the_better_device() -> None:
    policy, generator = torch.zeros(3, requires_grad=True), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD([policy], 0.5)
    for _ in range(40):
        optimizer.zero_grad()
        torch.autograd.backward(_two_armed(policy, generator))
        optimizer.step()
    assert policy[:2].softmax(dim=0)[1] > 0.9
    assert policy[2] == 0.0
