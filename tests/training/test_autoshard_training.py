"""Training AutoShard: resumed as if it had not stopped, through dead ends, and it learns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.domain.deadline import NEVER
from service.policies.autoshard import AutoShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.policy_placement import policy_placement
from service.search.rewards import balance, compute_balance, overflow
from service.training.autoshard_trainer import AutoShardTrainer, AutoShardTraining
from service.training.meters import Placed, StepTimes, predicted_times
from service.training.policy_job import run
from tests.fakes import fake_models
from tests.training.autoshard_tasks import config, mixed, space


def _steps(trainer: AutoShardTrainer, count: int) -> list[Mapping[str, float]]:
    return [
        {name: value for name, value in trainer.step().items() if not name.startswith("seconds")} for _ in range(count)
    ]


def _through_a_file(state: dict[str, Any], path: Path) -> dict[str, Any]:
    torch.save(state, path)
    return dict(torch.load(path, weights_only=True))


def test_defaults_are_the_papers() -> None:
    trainer = AutoShardTrainer([space(3, 2)], AutoShardTraining(), predicted_times)
    assert (trainer.steps, trainer.done) == (125, 0)
    policy = AutoShardNetworks("first", trainer.arrays(), POLICY_FEATURES_VERSION)
    assert policy.state_size == 64


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"unroll": 0}, "unroll is 0: it must be at least 1"),
        ({"cost_batch": 0}, "cost_batch is 0: it must be at least 1"),
        ({"lag": -1}, "lag is -1: it must be at least 0"),
        ({"clip": 0.0}, "clip is 0.0: it must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: it must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AutoShardTraining(**wrong)


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("stop", [1, 4])
def test_resuming_equals_not_having_stopped_to_the_bit(lag: int, stop: int, tmp_path: Path) -> None:
    spaces = mixed()
    whole = AutoShardTrainer(spaces, config(lag=lag), predicted_times)
    said = _steps(whole, 8)
    stopped = AutoShardTrainer(spaces, config(lag=lag), predicted_times)
    _steps(stopped, stop)
    state = _through_a_file(stopped.state(), tmp_path / "state")
    # In the middle of episodes, whose LSTM has a state.
    assert any(state["actors"]["done"])
    _steps(stopped, 1)
    resumed = AutoShardTrainer(spaces, config(lag=lag), predicted_times)
    resumed.restore(state)
    assert resumed.done == stop
    assert _steps(resumed, 8 - stop) == said[stop:]
    for name, array in whole.arrays().items():
        assert array.tobytes() == resumed.arrays()[name].tobytes(), name


def test_states_and_arrays_are_not_changed_by_going_on() -> None:
    trainer = AutoShardTrainer(mixed(), config(), predicted_times)
    arrays = trainer.arrays()
    copied, weight = {name: array.copy() for name, array in arrays.items()}, trainer.state()["networks"]
    before = {name: tensor.clone() for name, tensor in weight.items()}
    _steps(trainer, 1)
    assert all((copied[name] == arrays[name]).all() for name in arrays)
    assert all(torch.equal(before[name], weight[name]) for name in weight)
    assert any((copied[name] != array).any() for name, array in trainer.arrays().items())


def test_seeds_make_runs_and_only_seeds() -> None:
    spaces = mixed()
    one, same, other = (AutoShardTrainer(spaces, config(seed=seed), predicted_times) for seed in (3, 3, 4))
    torch.manual_seed(123)
    assert _steps(one, 2) == _steps(same, 2) != _steps(other, 2)


def test_it_runs_as_a_job_that_is_cut_off(tmp_path: Path) -> None:
    spaces = [space(5, 2)]
    small = config(environment_steps=4 * 33)
    whole = AutoShardTrainer(spaces, small, predicted_times)
    run(whole, "a run")

    def cut_off(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(AutoShardTrainer(spaces, small, predicted_times), "a run", tmp_path, 1, cut_off)
    again = AutoShardTrainer(spaces, small, predicted_times)
    run(again, "a run", tmp_path)
    assert all(array.tobytes() == again.arrays()[name].tobytes() for name, array in whole.arrays().items())


def test_dead_ends_are_punished_and_never_measured() -> None:
    spaces, measured = mixed(), list[Placed]()

    def meter(placed: Sequence[Placed]) -> list[StepTimes]:
        assert placed
        measured.extend(placed)
        return predicted_times(placed)

    trainer = AutoShardTrainer(spaces, config(), meter)
    said = _steps(trainer, 8)
    assert max(step.get("dead_share", 0.0) for step in said) > 0
    assert all((placement >= 0).all() for _, placement in measured)
    assert all(np.isfinite(list(step.values())).all() for step in said)
    # Every device of every measured placement is a shard, up to the 40 that are kept.
    assert sum(workspace.device_count for workspace, _ in measured) > 40 == len(trainer.state()["buffer"]["costs"])


def test_shards_cost_what_they_would_at_one_batch_size() -> None:
    workspace, measured = space(5, 2), list[StepTimes]()

    def meter(placed: Sequence[Placed]) -> list[StepTimes]:
        measured.extend(predicted_times(placed))
        return measured[-len(placed) :]

    trainer = AutoShardTrainer([workspace], config(buffer=10_000), meter)
    _steps(trainer, 2)
    wanted = [cost * 16 for times in measured for cost in times.compute.sum(axis=1).tolist()]
    assert workspace.problem.global_batch_size == 4096
    assert trainer.state()["buffer"]["costs"].tolist() == pytest.approx(wanted)


def test_only_dead_ends_leave_the_cost_model_as_it_was() -> None:
    # Both tables fit, but not together.
    tight = space(2, 2, pin={"t0": (0,), "t1": (0,)})
    spaces = [space(2, 2, limit=int(tight.memory_bytes.max()), pin={"t0": (0,), "t1": (0,)})]
    trainer = AutoShardTrainer(spaces, config(), lambda placed: pytest.fail("there is nothing to measure"))
    before = trainer.arrays()
    said = _steps(trainer, 2)
    assert said[0]["dead_share"] == 1.0
    assert said[0]["reward"] < 0
    assert "cost_loss" not in said[0]
    changed = {name for name, array in trainer.arrays().items() if (array != before[name]).any()}
    assert changed
    assert all(name.startswith("policy.") for name in changed)


def test_actors_play_with_older_networks_and_take_up_the_learners() -> None:
    trainer = AutoShardTrainer([space(6, 2)], config(lag=2), predicted_times)
    same = []
    for _ in range(7):
        now = trainer.arrays()
        trainer.step()
        behaviour = trainer.state()["behaviour"]
        same.append(all((behaviour[name].numpy() == array).all() for name, array in now.items()))
    assert same == [True, False, False, True, False, False, True]


def test_balance_is_the_least_over_the_largest() -> None:
    assert balance(np.array([[2.0, 8.0, 4.0], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0]])).tolist() == [0.25, 1.0, 1.0]
    assert balance(np.array([0.0, 5.0])) == 0.0


def test_an_overflow_is_worse_the_more_finds_no_place() -> None:
    memory = space(4, 2).memory_bytes
    limit = int(memory.sum())
    workspace = space(4, 2, limit=limit)
    found = overflow(workspace, np.array([0, -1, 1, -1]))
    assert found == pytest.approx(-(memory[1] + memory[3]) / limit)
    assert found < overflow(workspace, np.array([0, 1, 1, -1])) < 0 == overflow(workspace, np.array([0, 1, 1, 0]))
    assert overflow(space(4, 2, limit=limit // 4), np.array([-1, -1, -1, -1])) == -1.0


def test_it_learns_to_balance_tables_that_it_has_not_seen() -> None:
    models, unseen = fake_models(), [space(24, 4, 100 + seed) for seed in range(8)]
    trainer = AutoShardTrainer(
        [space(20, 4, seed, models=models) for seed in range(8)],
        AutoShardTraining(environment_steps=40 * 8 * 40, unroll=40, learning_rate=2e-3),
        predicted_times,
    )

    def balances() -> float:
        policy = AutoShardNetworks("now", trainer.arrays(), POLICY_FEATURES_VERSION)
        found = []
        for workspace in unseen:
            placement = policy_placement(workspace, policy, 0, 0, NEVER)
            assert placement is not None
            found.append(compute_balance(workspace, placement[None])[0])
        return float(np.mean(found))

    assert balances() < 0.3
    said = _steps(trainer, trainer.steps)
    first, last = (np.mean([step["reward"] for step in part]) for part in (said[:5], said[-5:]))
    assert last > first + 0.2
    assert said[-1]["cost_loss"] < 0.2 * said[0]["cost_loss"]
    assert balances() > 0.6


def test_hundreds_of_tables_are_placed() -> None:
    trainer = AutoShardTrainer([space(5, 2)], AutoShardTraining(), predicted_times)
    policy = AutoShardNetworks("first", trainer.arrays(), POLICY_FEATURES_VERSION)
    found = policy_placement(space(400, 8, 7), policy, 0, 0, NEVER)
    assert found is not None
    assert (len(found), set(found.tolist())) == (400, set(range(8)))


def test_placements_that_take_no_time_teach_the_cost_model_nothing() -> None:
    def nothing(placed: Sequence[Placed]) -> list[StepTimes]:
        return [StepTimes(np.zeros((s.device_count, 2)), np.zeros(s.device_count), 0.0) for s, _ in placed]

    trainer = AutoShardTrainer(mixed(), config(), nothing)
    for told in _steps(trainer, 3):
        assert "cost_loss" not in told
        assert np.isfinite(list(told.values())).all()


@pytest.mark.gpu
def test_it_trains_on_a_gpu() -> None:
    trainer = AutoShardTrainer(mixed(), config(device="cuda"), predicted_times)
    trainer.step()
    resumed = AutoShardTrainer(mixed(), config(device="cuda"), predicted_times)
    resumed.restore(trainer.state())
    assert np.isfinite(list(resumed.step().values())).all()
