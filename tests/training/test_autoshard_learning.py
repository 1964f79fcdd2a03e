"""AutoShard's actors and learner: unrolls are the episodes in order, and are replayed as they were played."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from service.policies.autoshard import AutoShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.workspace import Workspace
from service.training.autoshard_actors import Actors, Played, Segment
from service.training.autoshard_learner import Learner
from service.training.autoshard_networks import AutoShard
from service.training.dreamshard_networks import masked_log_probabilities
from service.training.ring_buffer import Shards
from service.training.training_tasks import TrainingTasks
from tests.search import oracle
from tests.training.autoshard_tasks import SMALL, mixed, space


def _networks(tasks: TrainingTasks, seed: int = 0) -> tuple[AutoShard, AutoShardNetworks]:
    torch.manual_seed(seed)
    networks = AutoShard(SMALL, tasks.features, 5.0, settings=2)
    return networks, AutoShardNetworks("test", networks.arrays(), POLICY_FEATURES_VERSION)


def _worth(played: Sequence[Played]) -> list[float]:
    return [float(each.pieces.sum() % 7) if each.complete else -1.0 for each in played]


def _unrolls(
    spaces: Sequence[Workspace], rounds: int, steps: int = 11
) -> tuple[TrainingTasks, AutoShard, AutoShardNetworks, list[list[list[Segment]]]]:
    tasks = TrainingTasks(spaces)
    networks, served = _networks(tasks)
    actors = Actors(tasks, 3, np.random.default_rng(1))
    return tasks, networks, served, [actors.unrolls(served, steps, _worth) for _ in range(rounds)]


def test_unrolls_are_the_episodes_step_by_step() -> None:
    tasks, _, _, rounds = _unrolls(mixed(), 9)
    for actor in range(3):
        segments = [segment for unrolls in rounds for segment in unrolls[actor]]
        assert all(sum(s.stop - s.start for s in unrolls[actor]) == 11 for unrolls in rounds)
        assert segments[0].start == 0
        for one, following in itertools.pairwise(segments):
            if one.goes_on:
                assert (following.played, following.start) == (one.played, one.stop)
            else:
                assert following.start == 0
                assert following.played is not one.played
    played = {id(s.played): s.played for unrolls in rounds for unroll in unrolls for s in unroll}.values()
    assert {each.task for each in played} == {0, 1, 2, 3}
    assert {each.complete for each in played} == {True, False}
    assert len({each.reward for each in played}) > 2
    for each in played:
        pieces = len(tasks.workspaces[each.task].pieces)
        assert (len(each) == pieces) == each.complete
        assert each.legal[np.arange(len(each)), each.devices].all()
        assert ((each.placement(pieces) >= 0).sum()) == len(each)
        assert not each.states[0].any()
        assert each.reward == _worth([each])[0]


def test_rewards_are_asked_for_once_for_all_new_episodes() -> None:
    tasks = TrainingTasks(mixed())
    _, served = _networks(tasks)
    actors, asked = Actors(tasks, 3, np.random.default_rng(1)), list[Played]()
    calls = []

    def worth(played: Sequence[Played]) -> list[float]:
        calls.append(len(played))
        asked.extend(played)
        return [0.5] * len(played)

    for _ in range(4):
        actors.unrolls(served, 11, worth)
    assert len(calls) == 4
    assert len({id(each) for each in asked}) == len(asked)


def test_what_is_replayed_with_the_same_networks_is_what_was_played() -> None:
    tasks, networks, _, rounds = _unrolls(mixed(), 6)
    learner = Learner(networks, tasks, torch.device("cpu"))
    went_on = 0
    for unrolls in rounds:
        segments = [segment for unroll in unrolls for segment in unroll]
        states, after, logits = learner.replayed(segments)
        begin = 0
        for row, segment in enumerate(segments):
            span, played = slice(segment.start, segment.stop), segment.played
            width, count = played.legal.shape[1], segment.stop - segment.start
            here = slice(begin, begin + count)
            found = masked_log_probabilities(logits[here, :width], torch.from_numpy(played.legal[span]))
            chosen = found[np.arange(count), played.devices[span]]
            assert chosen.detach().numpy() == pytest.approx(played.log_probabilities[span], abs=1e-4)
            follows = played.states[segment.start + 1 : segment.stop, -1, 0]
            assert states[here][: len(follows)].detach().numpy() == pytest.approx(follows, abs=1e-5)
            if segment.goes_on:
                went_on += 1
                second = played.states[segment.stop + 1 :][:1, -1, 0]
                assert after[[row]][: len(second)].detach().numpy() == pytest.approx(second, abs=1e-5)
            begin += count
        assert begin == len(states) == 33
    assert went_on > 5


def test_losses_are_sums_over_all_steps_of_what_vtrace_says() -> None:
    tasks, _, _, rounds = _unrolls(mixed(), 6)
    other, _ = _networks(tasks, seed=9)
    with torch.no_grad():
        cast(nn.Linear, other.policy.logit[-1]).weight.mul_(60.0)
    learner = Learner(other, tasks, torch.device("cpu"))
    unrolls = rounds[3]
    found = learner.policy_losses(unrolls, rho_bar=1.2, c_bar=0.9)
    policy, value, entropy, largest = 0.0, 0.0, 0.0, 0.0
    for unroll in unrolls:
        states, after, logits = learner.replayed(unroll)
        values = other.policy.values(states).tolist()
        last = unroll[-1]
        values.append(other.policy.values(after[-1]).item() if last.goes_on else 0.0)
        steps = [(s.played, t) for s in unroll for t in range(s.start, s.stop)]
        logs, ratios = [], []
        for (played, t), row in zip(steps, logits.detach().numpy().astype(np.float64), strict=True):
            legal = played.legal[t]
            p = np.exp(row[: len(legal)][legal])
            p /= p.sum()
            entropy -= float((p * np.log(p)).sum())
            logs.append(float(np.log(p[legal[: played.devices[t]].sum()])))
            ratios.append(np.exp(logs[-1] - played.log_probabilities[t]))
        ahead, returns, largest = 0.0, list(values), max(largest, *ratios)
        for i in reversed(range(len(steps))):
            played, t = steps[i]
            ends = t + 1 == len(played)
            surprise = played.reward - values[i] if ends else values[i + 1] - values[i]
            ahead = min(1.2, ratios[i]) * surprise + (0.0 if ends else min(0.9, ratios[i]) * ahead)
            returns[i] = values[i] + ahead
        for i, (played, t) in enumerate(steps):
            target = played.reward if t + 1 == len(played) else returns[i + 1]
            policy -= min(1.2, ratios[i]) * (target - values[i]) * logs[i]
            value += (returns[i] - values[i]) ** 2
    assert largest > 1.2
    assert found.policy.item() == pytest.approx(policy, rel=1e-3)
    assert found.value.item() == pytest.approx(value, rel=1e-3)
    assert found.entropy.item() == pytest.approx(entropy, rel=1e-4)


def test_the_policys_loss_leaves_the_cost_model_alone_and_reaches_all_of_the_policy() -> None:
    tasks, networks, _, rounds = _unrolls(mixed(), 2)
    found = Learner(networks, tasks, torch.device("cpu")).policy_losses(rounds[1], 1.0, 1.0)
    torch.autograd.backward(found.policy + found.value - found.entropy)
    assert all(weights.grad is None for weights in networks.cost.parameters())
    assert all(weights.grad is not None and weights.grad.any() for weights in networks.policy.parameters())


def test_the_cost_models_loss_is_the_squared_error_in_parts_of_the_mean() -> None:
    spaces = mixed()
    tasks = TrainingTasks(spaces)
    networks, served = _networks(tasks)
    held = [served.encode(tuple(spaces[1].problem.tables[i] for i in (0, 3, 9, 5)), 4096).sum(axis=0), np.zeros(10)]
    numbers = spaces[1].units.tolist()
    together = [i for i, unit in enumerate(numbers) if len(spaces[1].catalogue.rules.units[unit]) == 3]
    alone = [i for i, unit in enumerate(numbers) if spaces[1].catalogue.rules.units[unit] == (5,) or i in together]
    tables, counts = tasks.tables(1, np.array(alone))
    assert sorted(counts.tolist()) == [1, 3]
    shards = Shards(tables, np.array([len(tables), 0]), np.array([12.0, 1.0]), np.array([8.0, 2.0]), np.array([0, 1]))
    with torch.no_grad():
        networks.cost.log_factors.copy_(torch.tensor([0.5, -0.1]))
    factors = np.exp([0.3, -0.3])
    wanted = np.square((shards.costs - factors * served.device_costs(np.array(held))) / shards.means).mean()
    found = Learner(networks, tasks, torch.device("cpu")).cost_loss(shards)
    assert found.item() == pytest.approx(wanted, rel=1e-4)


def test_tables_of_pieces_are_those_of_the_workspace() -> None:
    spaces = [*mixed(), space(7, 3, 1)]
    tasks = TrainingTasks(spaces)
    _, served = _networks(tasks)
    embedded = served.embed(tasks.features)
    for number, workspace in enumerate(spaces):
        pieces = np.random.default_rng(number).permutation(len(workspace.pieces))[:3]
        tables, counts = tasks.tables(number, pieces)
        parts = np.split(tables, np.cumsum(counts)[:-1])
        for piece, part in zip(pieces, parts, strict=True):
            held = workspace.catalogue.tables(workspace.keys[piece])
            assert embedded[part] == pytest.approx(served.encode(held, 4096))
            assert tasks.posed(number, served).features[piece] == pytest.approx(embedded[part].sum(axis=0))
        assert tasks.tables(number, np.zeros(0, dtype=np.int64))[0].size == 0
    # The last task's tables are the first one's.
    assert len(tasks.features) == sum(len(each.problem.tables) for each in spaces[:-1])


def test_tasks_of_a_batch_size_and_an_optimizer_are_of_one_setting() -> None:
    one, other = space(3, 2), space(3, 2)
    problem = replace(other.problem, global_batch_size=64)
    other = Workspace.of(problem, oracle.whole(problem), other.models)
    assert TrainingTasks([one, other, space(4, 2)]).settings == (0, 1, 0)


def test_tasks_that_cannot_be_placed_are_refused() -> None:
    with pytest.raises(ValueError, match="workspaces is empty"):
        TrainingTasks([])
    with pytest.raises(ValueError, match=r"workspaces\[1\]: table t\d fits on none"):
        TrainingTasks([space(3, 2), space(3, 2, limit=10_000)])
