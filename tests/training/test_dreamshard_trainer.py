"""DreamShard's loop: it learns, it goes on as if it had not stopped, and dead ends are neither measured nor fatal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.policies.dreamshard import DreamShardNetworks
from service.policies.networks import drawn
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search import greedy
from service.search.policy_placement import policy_placement
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.training import dreamshard_trainer
from service.training.dreamshard_networks import DreamShardSizes
from service.training.dreamshard_trainer import DreamShardTrainer, DreamShardTraining
from service.training.meters import Placed, StepTimes, predicted_times
from service.training.policy_job import run
from service.training.reinforce import reinforce_loss
from tests.fakes import fake_models
from tests.search import oracle

QUICK = DreamShardTraining(
    iterations=4,
    placements=6,
    cost_updates=5,
    cost_batch=8,
    policy_updates=3,
    policy_tasks=2,
    episodes=4,
    sizes=DreamShardSizes(12, 6, 8, 5, 4),
)
MODELS = fake_models()


def _space(seed: int, count: int, devices: int, slack: float | None = None, **rules: object) -> Workspace:
    """A task of so many tables; devices have so many times their fair part of the memory, or plenty."""
    generator = np.random.default_rng(seed)
    tables = tuple(
        Table(f"t{i}", int(10 ** generator.uniform(2, 6)), 4 * int(generator.integers(1, 17)), float(pooling))
        for i, pooling in enumerate(generator.gamma(0.5, 20.0, count))
    )
    constraints = Constraints(count_buffers=False, **rules)  # type: ignore[arg-type]
    problem = Problem(tables, Topology("fake", (2**40,) * devices), 4096, Optimizer.SGD, constraints)
    if slack is not None:
        memory = [problem.memory_of(table).total for table in tables]
        limit = int(max(sum(memory) / devices * slack, *memory))
        problem = replace(problem, topology=Topology("fake", (limit,) * devices))
    return Workspace.of(problem, oracle.whole(problem), MODELS)


MIXED = [_space(0, 7, 2), _space(1, 12, 4), _space(2, 3, 3), _space(3, 9, 2, colocate=(("t1", "t4", "t5"),))]


class NotingMeter:
    """Predicted times; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Placed]] = []

    def __call__(self, placed: Sequence[Placed]) -> list[StepTimes]:
        self.asked.append(list(placed))
        return predicted_times(placed)


def _without_seconds(scalars: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in scalars.items() if not name.startswith("seconds/")}


def _arrays_equal(one: DreamShardTrainer, other: DreamShardTrainer) -> bool:
    ours, theirs = one.arrays(), other.arrays()
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_an_iteration_measures_complete_placements_in_one_call_and_tells_what_it_did() -> None:
    meter = NotingMeter()
    trainer = DreamShardTrainer(MIXED, QUICK, meter)
    assert (trainer.steps, trainer.done) == (4, 0)
    found = trainer.step()
    assert trainer.done == 1
    assert [len(asked) for asked in meter.asked] == [QUICK.placements]
    assert set(found) == {
        *(f"cost_loss/{name}" for name in ("forward_compute", "backward_compute", "backward_exchange", "plan_cost")),
        *(f"seconds/{name}" for name in ("collecting", "measuring", "cost_updates", "policy_updates")),
        *("collected/dead_share", "measured/plan_ms"),
        *("policy/return_ms", "policy/dead_share", "policy/entropy"),
    }
    assert all(np.isfinite(value) for value in found.values())
    assert found["measured/plan_ms"] == pytest.approx(np.mean([t.plan for t in predicted_times(meter.asked[0])]))
    assert found["policy/return_ms"] < 0 < found["policy/entropy"] < np.log(4)
    for workspace, placement in meter.asked[0]:
        assert placement.shape == (len(workspace.pieces),)
        assert ((placement >= 0) & (placement < workspace.device_count)).all()


@pytest.mark.parametrize("slowest_device", [False, True])
def test_it_learns_to_place_better_than_at_random_and_than_it_did(slowest_device: bool) -> None:
    config = DreamShardTraining(iterations=6, policy_updates=40, policy_tasks=4, placements=20, cost_updates=150)
    config = replace(config, slowest_device=slowest_device)
    trainer = DreamShardTrainer([_space(seed, 10, 3) for seed in range(12)], config, predicted_times)
    unseen = [_space(seed, 10, 3) for seed in range(100, 112)]
    before = _mean_cost(unseen, trainer.arrays())
    first = trainer.step()
    while trainer.done < trainer.steps:
        last = trainer.step()
    learnt = _mean_cost(unseen, trainer.arrays())
    placed = [(space, greedy.random(space, seed, Deadline()).placement) for space in unseen for seed in range(10)]
    at_random = float(np.mean([times.plan for times in predicted_times(placed)]))
    assert learnt < 0.8 * at_random
    assert learnt < 0.95 * before
    assert last["cost_loss/backward_compute"] < first["cost_loss/backward_compute"]
    assert last["policy/entropy"] < first["policy/entropy"]


def _mean_cost(spaces: Sequence[Workspace], arrays: Mapping[str, NDArray[np.float32]]) -> float:
    """Predicted cost of the placements of the likeliest devices."""
    networks = DreamShardNetworks("learnt", arrays, POLICY_FEATURES_VERSION)
    costs = []
    for space in spaces:
        placement = policy_placement(space, networks, 0, 0, Deadline())
        assert placement is not None
        costs.append(simulate(space, placement[None]).plan[0] / 10_000)
    return float(np.mean(costs))


def test_resuming_equals_not_having_stopped() -> None:
    whole, stopped = (DreamShardTrainer(MIXED, QUICK, predicted_times) for _ in range(2))
    told = [_without_seconds(whole.step()) for _ in range(4)]
    for _ in range(2):
        stopped.step()
    state = stopped.state()
    stopped.step()
    resumed = DreamShardTrainer(MIXED, QUICK, predicted_times)
    resumed.restore(state)
    assert resumed.done == 2
    assert [_without_seconds(resumed.step()) for _ in range(2)] == told[2:]
    assert _arrays_equal(resumed, whole)
    assert not _arrays_equal(stopped, whole)
    again = DreamShardTrainer(MIXED, QUICK, predicted_times)
    again.restore(state)
    assert [_without_seconds(again.step()) for _ in range(2)] == told[2:]


def test_a_job_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    def cut_off(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    whole = DreamShardTrainer(MIXED, QUICK, predicted_times)
    run(whole, "same")
    with pytest.raises(KeyboardInterrupt):
        run(DreamShardTrainer(MIXED, QUICK, predicted_times), "same", tmp_path, 2, cut_off)
    resumed = DreamShardTrainer(MIXED, QUICK, predicted_times)
    reported: list[int] = []
    run(resumed, "same", tmp_path, 2, reported.append)
    assert reported == [2, 3, 4]
    assert _arrays_equal(resumed, whole)


def test_a_seed_repeats_a_run_and_another_does_not_and_torchs_own_is_left_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (DreamShardTrainer(MIXED, replace(QUICK, seed=seed), predicted_times) for seed in (0, 0, 1))
    for trainer in (one, same, other):
        trainer.step()
    assert torch.equal(torch.rand(1), wanted)
    assert _arrays_equal(one, same)
    assert not _arrays_equal(one, other)


def test_masks_of_the_loss_are_those_that_devices_were_drawn_by(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_by: list[NDArray[np.bool_]] = []
    in_loss: list[NDArray[np.bool_]] = []

    def noting_draw(logits: Any, legal: NDArray[np.bool_], generator: Any) -> Any:
        drawn_by.append(legal)
        return drawn(logits, legal, generator)

    def noting_loss(logits: Any, legal: torch.Tensor, devices: torch.Tensor, *others: Any) -> Any:
        in_loss.append(legal.numpy())
        # What was drawn by a mask is legal by it.
        rows = devices >= 0
        assert legal[rows].gather(-1, devices[rows][:, None]).all()
        assert torch.equal(rows, legal.any(dim=-1))
        return reinforce_loss(logits, legal, devices, *others)

    monkeypatch.setattr(dreamshard_trainer, "drawn", noting_draw)
    monkeypatch.setattr(dreamshard_trainer, "reinforce_loss", noting_loss)
    tight = [_space(seed, 9, 2, slack=1.1) for seed in range(4)]
    DreamShardTrainer(tight, replace(QUICK, iterations=1), predicted_times).step()
    together = np.concatenate(in_loss)
    of_updates = np.array(drawn_by[-len(together) :])
    assert np.array_equal(of_updates, together)
    assert not together.all()


def test_logits_of_the_loss_are_those_that_devices_were_drawn_by(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[NDArray[np.float64]] = []
    replayed: list[NDArray[np.float32]] = []

    def noting_draw(logits: NDArray[np.float64], *others: Any) -> Any:
        scored.append(logits)
        return drawn(logits, *others)

    def noting_loss(logits: torch.Tensor, legal: torch.Tensor, *others: Any) -> Any:
        replayed.append(np.where(legal, logits.detach().numpy(), 0.0))
        at = np.where(legal, np.array(scored[-len(legal) :]), 0.0)
        assert replayed[-1] == pytest.approx(at, abs=1e-4)
        return reinforce_loss(logits, legal, *others)

    monkeypatch.setattr(dreamshard_trainer, "drawn", noting_draw)
    monkeypatch.setattr(dreamshard_trainer, "reinforce_loss", noting_loss)
    DreamShardTrainer(MIXED, QUICK, predicted_times).step()
    assert len(replayed) == QUICK.policy_updates
    assert np.ptp(replayed[-1]) > 0.01


def test_dead_ends_are_not_measured_and_cost_the_penalty() -> None:
    meter, tight = NotingMeter(), [_space(seed, 9, 2, slack=1.05) for seed in range(4)]
    found = DreamShardTrainer(tight, replace(QUICK, placements=40), meter).step()
    assert 0 < found["collected/dead_share"] < 1
    assert len(meter.asked[0]) == round(40 * (1 - found["collected/dead_share"]))
    assert all((placement >= 0).all() for _, placement in meter.asked[0])
    assert 0 < found["policy/dead_share"] < 1


def test_the_policy_learns_to_keep_from_dead_ends() -> None:
    # Two dear tables that fit on one device, and a cheap one, placed last, that needs all of the other.
    tables = (Table("t0", 500, 4, 30.0), Table("t1", 500, 4, 20.0), Table("t2", 1000, 4, 0.01))
    problem = Problem(tables, Topology("fake", (16_000,) * 2), 4096, Optimizer.SGD, Constraints(count_buffers=False))
    space = Workspace.of(problem, oracle.whole(problem), MODELS)
    config = DreamShardTraining(iterations=3, placements=60, policy_updates=60, cost_updates=50, learning_rate=2e-3)
    trainer = DreamShardTrainer([space], config, predicted_times)
    shares = [trainer.step()["collected/dead_share"] for _ in range(3)]
    assert shares[0] > 0.3
    assert shares[-1] < 0.05


def test_an_iteration_without_any_complete_placement_is_survived() -> None:
    meter, never = NotingMeter(), [_space(0, 4, 2, pin={"t0": (0,), "t1": (0,)}, separate=(("t0", "t1"),))]
    trainer = DreamShardTrainer(never, QUICK, meter)
    found = trainer.step()
    assert meter.asked == []
    assert (found["collected/dead_share"], found["policy/dead_share"]) == (1.0, 1.0)
    assert not any(name.startswith(("cost_loss/", "measured/")) for name in found)
    assert found["policy/return_ms"] == pytest.approx(-float(predicted_times([(never[0], np.zeros(4, int))])[0].plan))
    again = DreamShardTrainer(never, QUICK, meter)
    again.restore(trainer.state())
    assert _without_seconds(again.step()) == _without_seconds(trainer.step())


def test_a_task_with_a_piece_that_fits_nowhere_is_refused() -> None:
    space = _space(0, 4, 2)
    full = Workspace(space.catalogue, space.pieces, np.array([8, 8]))
    with pytest.raises(ValueError, match=r"workspaces\[1\]: table t0 fits on none of the devices"):
        DreamShardTrainer([space, full], QUICK, predicted_times)


def test_costs_may_count_in_parts_of_the_size_of_a_task() -> None:
    alike, relative = (
        DreamShardTrainer(MIXED, replace(QUICK, relative_costs=each), predicted_times) for each in (False, True)
    )
    assert _without_seconds(alike.step()) != _without_seconds(relative.step())
    # Everything on one device, shared among all: the size of a task.
    sizes = [
        float(predicted_times([(space, np.zeros(len(space.pieces), int))])[0].plan) / space.device_count
        for space in MIXED
    ]
    assert len({round(size, 3) for size in sizes}) == len(sizes)
    units, meter = {}, NotingMeter()
    for each in (False, True):
        trainer = DreamShardTrainer(MIXED, replace(QUICK, placements=40, relative_costs=each), meter)
        trainer.step()
        units[each] = trainer.state()["measured"]["units"].numpy()
    assert units[False] == pytest.approx(np.mean(sizes), rel=1e-3)
    size_of = {id(space): size for space, size in zip(MIXED, sizes, strict=True)}
    assert units[True] == pytest.approx([size_of[id(space)] for space, _ in meter.asked[-1]], rel=1e-3)
    assert len(set(units[True].tolist())) == len(MIXED)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"iterations": 0}, "iterations is 0: it must be at least 1"),
        ({"episodes": 1}, "episodes is 1: it must be at least 2"),
        ({"entropy": -0.1}, "entropy is -0.1: it must be at least 0"),
        ({"entropy": float("nan")}, "entropy is nan: it must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0: it must be above 0"),
        ({"dead_end": 0.0}, "dead_end is 0.0: it must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DreamShardTraining(**wrong)


def test_no_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        DreamShardTrainer([], QUICK, predicted_times)


@pytest.mark.gpu
def test_it_trains_on_a_gpu() -> None:
    trainer = DreamShardTrainer(MIXED, replace(QUICK, device="cuda"), predicted_times)
    trainer.step()
    resumed = DreamShardTrainer(MIXED, replace(QUICK, device="cuda"), predicted_times)
    resumed.restore(trainer.state())
    assert np.isfinite(list(resumed.step().values())).all()
