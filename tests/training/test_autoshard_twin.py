"""AutoShard's networks for training against those that serve."""

import numpy as np
import pytest
import torch

from service.domain.policy import Seen
from service.policies.autoshard import AutoShardNetworks
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION
from service.training.autoshard_networks import AutoShard, AutoShardSizes, mean_counts, relative_costs
from tests.training.autoshard_tasks import SMALL

F = len(POLICY_FEATURE_NAMES)


def _pair(seed: int, sizes: AutoShardSizes | None = None) -> tuple[AutoShard, AutoShardNetworks]:
    torch.manual_seed(seed)
    features = np.random.default_rng(seed).normal(5.0, 3.0, (50, F))
    features[:, 3] = 1.0
    twin = AutoShard(sizes or AutoShardSizes(), features, cost_unit_ms=25.0)
    return twin, AutoShardNetworks("twin", twin.arrays(), POLICY_FEATURES_VERSION)


def test_sizes_are_the_papers() -> None:
    arrays = _pair(0)[0].arrays()
    assert {name: array.shape for name, array in arrays.items() if array.ndim == 2} == {
        **{
            f"{net}.table.{layer}.weight": shape
            for net in ("cost", "policy")
            for layer, shape in enumerate([(128, 21), (32, 128)])
        },
        "cost.head.0.weight": (64, 32),
        "cost.head.1.weight": (1, 64),
        "policy.placed.weight": (32, 1),
        "policy.device.weight": (32, 2),
        **{f"policy.lstm.{layer}.{name}": (256, 64) for layer in range(2) for name in ("input", "hidden")},
        **{
            f"policy.logit.{layer}.weight": shape
            for layer, shape in enumerate([(128, 192), (128, 128), (64, 128), (1, 64)])
        },
    }


@pytest.mark.parametrize("sizes", [AutoShardSizes(), SMALL])
@pytest.mark.parametrize("seed", range(3))
def test_what_serves_says_what_was_trained_over_the_steps_of_episodes(seed: int, sizes: AutoShardSizes) -> None:
    twin, served = _pair(seed, sizes)
    generator = np.random.default_rng(seed)
    steps, episodes, most = 6, 4, 5
    # The second episode ends after three steps, and some devices are padding.
    features = generator.normal(5.0, 3.0, (steps, episodes, F))
    there = np.arange(most) < np.array([5, 2, 4, 1])[:, None]
    is_open = np.arange(steps)[:, None] < np.array([6, 3, 6, 6])
    embedded = served.embed(features) * is_open[..., None]
    x = twin.standardised(torch.from_numpy(features).float())
    flags = torch.from_numpy(is_open)[..., None]
    costs, pieces = twin.cost.table(x) * flags, twin.policy.table(x) * flags
    placed = generator.random((steps, episodes))
    held = generator.normal(0, 3, (steps, episodes, most, 2, F)) * there[..., None, None]
    sums = served.embed(held).sum(axis=3) * there[..., None]
    y = twin.standardised(torch.from_numpy(held).float())
    padding = torch.from_numpy(there)[..., None]
    cost_sums, policy_sums = (net.table(y).sum(dim=3) * padding for net in (twin.cost, twin.policy))
    used = generator.random((steps, episodes, most)) * there
    before = torch.zeros(2, 2, episodes, served.state_size)
    states = twin.policy.states(pieces, torch.from_numpy(placed).float(), before)
    scorer, devices = served.begin(episodes), torch.from_numpy(there)
    for step in range(steps):
        assert twin.cost(cost_sums[step]).detach().numpy() * 25 == pytest.approx(
            served.device_costs(sums[step]), abs=1e-3
        )
        wanted = scorer.logits(Seen(embedded[step], placed[step], sums[step], used[step], there))
        counts = mean_counts(torch.full((episodes,), step), devices)[:, None, None]
        found = twin.policy.logits(
            states[step],
            policy_sums[step] / counts,
            relative_costs(twin.cost(cost_sums[step]), twin.cost(costs[step]), devices),
            torch.from_numpy(used[step]).float(),
        )
        now = is_open[step]
        assert scorer.state[-1, 0][now] == pytest.approx(states[step].detach().numpy()[now], abs=1e-4)
        assert (wanted[now] * there[now]) == pytest.approx(found.detach().numpy()[now] * there[now], abs=1e-3)


def test_a_run_goes_on_from_the_state_in_which_another_ended() -> None:
    twin, served = _pair(1, SMALL)
    generator = np.random.default_rng(1)
    pieces = torch.from_numpy(generator.normal(size=(7, 2, SMALL.embedding))).float()
    placed = torch.from_numpy(generator.random((7, 2))).float()
    whole = twin.policy.states(pieces, placed, torch.zeros(2, 2, 2, 8))
    state = np.zeros((2, 2, 2, 8))
    empty = np.zeros((2, 3, 2 * SMALL.embedding))
    for step in range(4):
        full = np.concatenate([np.zeros((2, SMALL.embedding)), pieces[step].numpy()], axis=1)
        seen = Seen(full, placed[step].numpy(), empty, np.zeros((2, 3)), np.ones((2, 3), dtype=np.bool_))
        state = served.advance(seen, state)
    rest = twin.policy.states(pieces[4:], placed[4:], torch.from_numpy(state).float())
    assert rest.detach().numpy() == pytest.approx(whole[4:].detach().numpy(), abs=1e-5)


def test_a_feature_that_never_varied_is_not_blown_up() -> None:
    assert _pair(0)[0].feature_scale[3] == 1.0


def test_a_cost_unit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="cost_unit_ms is 0"):
        AutoShard(AutoShardSizes(), np.ones((2, F)), 0)
