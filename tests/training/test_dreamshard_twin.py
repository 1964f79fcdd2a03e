"""DreamShard's networks for training against those that serve, and what the loss needs of them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.policies.dreamshard import DreamShardNetworks
from service.policies.networks import log_probabilities
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION
from service.search.episodes import Episodes, play
from service.search.tasks import Task
from service.search.workspace import Workspace
from service.training.dreamshard_networks import DreamShard, DreamShardSizes
from service.training.policy_networks import entropy, masked_log_probabilities, sums_before
from tests.fakes import fake_models
from tests.search import oracle

F = len(POLICY_FEATURE_NAMES)


def _pair(seed: int, sizes: DreamShardSizes | None = None) -> tuple[DreamShard, DreamShardNetworks]:
    torch.manual_seed(seed)
    features = np.random.default_rng(seed).normal(5.0, 3.0, (50, F))
    features[:, 3] = 1.0
    twin = DreamShard(sizes or DreamShardSizes(), features, cost_unit_ms=25.0)
    return twin, DreamShardNetworks("twin", twin.arrays(), POLICY_FEATURES_VERSION)


def test_sizes_are_the_papers() -> None:
    arrays = _pair(0)[0].arrays()
    assert {name: array.shape for name, array in arrays.items() if name.endswith("weight")} == {
        **{
            f"{net}.table.{layer}.weight": shape
            for net in ("cost", "policy")
            for layer, shape in enumerate([(128, 21), (32, 128)])
        },
        **{
            f"cost.{head}.{layer}.weight": shape
            for head in ("forward_compute", "backward_compute", "backward_exchange", "plan_cost")
            for layer, shape in enumerate([(64, 32), (1, 64)])
        },
        "policy.costs.0.weight": (64, 3),
        "policy.costs.1.weight": (32, 64),
    }
    assert arrays["policy.logit.sums"].shape == arrays["policy.logit.costs"].shape == (32,)


@pytest.mark.parametrize("sizes", [DreamShardSizes(), DreamShardSizes(11, 7, 5, 4, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_what_serves_says_what_was_trained(seed: int, sizes: DreamShardSizes) -> None:
    twin, served = _pair(seed, sizes)
    generator = np.random.default_rng(seed)
    features = generator.normal(5.0, 3.0, (3, 6, 4, F))
    devices = generator.random((3, 6)) < 0.7
    devices[:, 0] = True
    x = twin.standardised(torch.from_numpy(features).float())
    cost_sums, policy_sums = twin.cost.table(x).sum(dim=2), twin.policy.table(x).sum(dim=2)
    sums = served.embed(features).sum(axis=2)
    assert torch.cat([cost_sums, policy_sums], dim=-1).detach().numpy() == pytest.approx(sums, abs=1e-4)
    costs = twin.cost.devices(cost_sums).detach().numpy() * 25.0
    assert costs == pytest.approx(served.device_costs(sums), abs=1e-3)
    plans = twin.cost.plans(cost_sums, torch.from_numpy(devices)).detach().numpy() * 25.0
    assert plans == pytest.approx(served.plan_costs(sums, devices), abs=1e-3)
    assert twin.logits(cost_sums, policy_sums).detach().numpy() == pytest.approx(served.logits(sums), abs=1e-4)


def test_a_feature_that_never_varied_is_not_blown_up() -> None:
    assert _pair(0)[0].feature_scale[3] == 1.0


def test_the_policys_loss_leaves_the_cost_network_alone() -> None:
    twin, _ = _pair(0)
    x = torch.randn(2, 4, F)
    twin.logits(twin.cost.table(x), twin.policy.table(x)).sum().backward()  # type: ignore[no-untyped-call]
    assert all(weights.grad is None for weights in twin.cost.parameters())
    assert all(weights.grad is not None for weights in twin.policy.parameters())


def test_a_cost_unit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="cost_unit_ms is 0"):
        DreamShard(DreamShardSizes(), np.ones((2, F)), 0)


def test_masked_probabilities_are_those_that_devices_are_drawn_by() -> None:
    generator = np.random.default_rng(0)
    logits, legal = generator.normal(0, 10, (50, 6)), generator.random((50, 6)) < 0.4
    assert not legal.any(axis=1).all()
    found = masked_log_probabilities(torch.from_numpy(logits), torch.from_numpy(legal)).numpy()
    wanted = log_probabilities(logits, legal)
    assert (np.isinf(found) == ~legal).all()
    assert found[legal] == pytest.approx(wanted[legal])


def test_no_gradient_flows_where_nothing_was_legal() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.0, 2.0]], requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        found = masked_log_probabilities(logits, torch.tensor([[True, False, True], [False, False, False]]))
        (found[0, 2] + entropy(found).sum()).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[0, 1] == 0.0 != logits.grad[0, 0]


def test_entropy_is_of_the_legal_devices() -> None:
    legal = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    found = entropy(masked_log_probabilities(torch.zeros(3, 3), legal))
    assert found.tolist() == pytest.approx([np.log(2.0), 0.0, 0.0])


def test_replayed_sums_are_what_the_episodes_held() -> None:
    models, generator = fake_models(), np.random.default_rng(3)
    tasks, embeddings = [], np.zeros((3, 5, 4))
    for row, (count, devices, limit) in enumerate([(5, 2, 1 << 30), (3, 4, 1 << 30), (4, 2, 9_000)]):
        tables = tuple(Table(f"t{i}", 500, 4, 1.0) for i in range(count))
        rules = Constraints(count_buffers=False)
        problem = Problem(tables, Topology("fake", (limit,) * devices), 64, Optimizer.SGD, rules)
        embeddings[row, :count] = generator.normal(size=(count, 4))
        space = Workspace.of(problem, oracle.whole(problem), models)
        tasks.append(Task(space, generator.permutation(count), embeddings[row, :count]))
    episodes, held = Episodes(tasks), []

    def any_legal(now: Episodes) -> NDArray[np.intp]:
        held.append(now.sums.copy())
        chosen: NDArray[np.intp] = (generator.random(now.legal.shape) * now.legal + now.legal).argmax(axis=1)
        return chosen

    played = play(episodes, any_legal)
    held.append(episodes.sums)
    assert episodes.dead.tolist() == [False, False, True]
    leaf = torch.from_numpy(embeddings).requires_grad_()
    found = sums_before(leaf, torch.from_numpy(played.pieces), torch.from_numpy(played.devices), 4)
    assert found.detach().numpy() == pytest.approx(np.array(held))
    found[-1].sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad[..., 0].tolist() == [[1.0] * 5, [1.0] * 3 + [0.0] * 2, (episodes.placements[2] >= 0).tolist()]
