"""The placement environment against one episode, one device and one rule at a time."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.domain.costs import max_total
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Constraints, Problem, tables_on_devices
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.episodes import (
    BACKWARD_COMPUTE,
    BACKWARD_EXCHANGE,
    FORWARD_COMPUTE,
    NONE,
    Episodes,
    Policy,
    play,
)
from service.search.greedy import WEIGHTS, greedy_placement, lowest_device
from service.search.grid import Grid
from service.search.layout import shards_of
from service.search.precut import precut
from service.search.rewards import Reward, compute_balance, minus_plan_cost
from service.search.simulator import price, simulate
from service.search.tasks import Task, by_cost
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, bound_problems, problems

GIB = 1 << 30
COST = Reward(minus_plan_cost, dead_end=-1e6)
BALANCE = Reward(compute_balance, dead_end=-1.0)


def _cut(problem: Problem, models: CostModels) -> Workspace:
    """The pieces that are placed in production, groups of tables and slices of what must be cut; whole tables where
    there are none, which have a dead end.
    """
    try:
        slices = precut(problem, Deadline())
    except Infeasible:
        slices = tuple(oracle.whole(problem))
    return Workspace.of(problem, slices, models)


def as_they_come(workspace: Workspace) -> NDArray[np.int64]:
    return np.arange(len(workspace.pieces))


def _task(problem: Problem, models: CostModels, ordered: bool = True) -> Task:
    return Task.of(_cut(problem, models), order=by_cost if ordered else as_they_come)


@dataclass
class Drawing:
    """Draws any legal device: the n-th episode's choice at a step depends on its own draws alone; notes what it saw."""

    draws: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.seen: list[tuple[NDArray[np.generic], ...]] = []

    def __call__(self, episodes: Episodes) -> NDArray[np.int64]:
        now = (
            episodes.legal,
            episodes.next_features,
            episodes.next_pieces,
            episodes.sums,
            episodes.used,
            episodes.costs,
            episodes.placed,
        )
        self.seen.append(tuple(part.copy() for part in now))
        chosen = [self._one(legal, row[episodes.steps]) for legal, row in zip(episodes.legal, self.draws, strict=True)]
        return np.array(chosen)

    def _one(self, legal: NDArray[np.bool_], draw: float) -> int:
        devices = np.flatnonzero(legal)
        return int(devices[int(draw * len(devices))]) if devices.size else NONE


def _draws(seed: int, tasks: list[Task]) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((len(tasks), max(len(task.order) for task in tasks)))


@settings(max_examples=examples(50), deadline=None)
@given(
    drawn=st.lists(
        st.tuples(st.one_of(bound_problems(), problems(max_tables=5)), st.booleans()), min_size=1, max_size=5
    ),
    seed=st.integers(0, 999),
)
def test_an_episode_in_a_batch_is_what_it_is_alone(drawn: list[tuple[Problem, bool]], seed: int) -> None:
    models = fake_models()
    tasks = [_task(problem, models, ordered) for problem, ordered in drawn]
    draws = _draws(seed, tasks)
    together, policy = Episodes(tasks), Drawing(draws)
    trajectories = play(together, policy)
    for row, task in enumerate(tasks):
        alone, watching = Episodes([task]), Drawing(draws[[row]])
        own = play(alone, watching)
        steps, devices, pieces = len(own.devices), task.workspace.device_count, len(task.order)
        for theirs, ours in zip(policy.seen, watching.seen, strict=False):
            for batch, single in zip(theirs, ours, strict=True):
                # Padding behind a task's own devices is cut off.
                assert (
                    np.atleast_1d(batch[row])[: len(np.atleast_1d(single[0]))].tolist()
                    == np.atleast_1d(single[0]).tolist()
                )
        assert trajectories.devices[:steps, row].tolist() == own.devices[:, 0].tolist()
        assert trajectories.pieces[:steps, row].tolist() == own.pieces[:, 0].tolist()
        assert trajectories.legal[:steps, row, :devices].tolist() == own.legal[:, 0].tolist()
        assert (trajectories.devices[steps:, row] == NONE).all()
        assert (trajectories.pieces[steps:, row] == NONE).all()
        assert not trajectories.legal[steps:, row].any()
        assert not trajectories.legal[:, row, devices:].any()
        assert not together.sums[row, devices:].any()
        assert not together.costs[row, devices:].any()
        assert together.placements[row, :pieces].tolist() == alone.placements[0].tolist()
        assert (together.placements[row, pieces:] == NONE).all()
        assert together.dead[row] == alone.dead[0]
        for reward in (COST, BALANCE):
            assert together.rewards(reward)[row] == alone.rewards(reward)[0]


def _legal(task: Task, held: list[list[int]], piece: int) -> list[bool]:
    """Devices that may take a piece, from the problem's words and the pieces on each device."""
    space, problem = task.workspace, task.workspace.problem
    rules = problem.constraints

    def names(one: int) -> set[str]:
        return {problem.tables[table].name for table in space.catalogue.rules.units[space.units[one]]}

    ours, found = names(piece), []
    for device, limit in enumerate(problem.topology.memory_bytes):
        fits = sum(int(space.memory_bytes[one]) for one in [*held[device], piece]) <= limit
        pinned = all(device in rules.pin[name] for name in ours if name in rules.pin)
        theirs: set[str] = set().union(*(names(one) for one in held[device])) - ours
        apart = not any(ours & set(group) and theirs & set(group) for group in rules.separate)
        found.append(fits and pinned and apart)
    return found


@settings(max_examples=examples(100), deadline=None)
@given(problem=bound_problems(), seed=st.integers(0, 999), ordered=st.booleans())
def test_legal_is_what_memory_and_rules_allow_and_none_is_a_dead_end(
    problem: Problem, seed: int, ordered: bool
) -> None:
    task = _task(problem, fake_models(), ordered)
    episodes, policy = Episodes([task]), Drawing(_draws(seed, [task]))
    trajectories = play(episodes, policy)
    held: list[list[int]] = [[] for _ in problem.topology.memory_bytes]
    for piece, device, legal in zip(
        trajectories.pieces[:, 0].tolist(), trajectories.devices[:, 0].tolist(), trajectories.legal[:, 0], strict=True
    ):
        assert legal.tolist() == _legal(task, held, piece)
        held[device].append(piece)
    placed = len(trajectories.pieces)
    assert trajectories.pieces[:, 0].tolist() == task.order[:placed].tolist()
    assert episodes.dead[0] == (placed < len(task.order))
    if episodes.dead[0]:
        assert not any(_legal(task, held, int(task.order[placed])))
        assert episodes.rewards(COST)[0] == COST.dead_end
        assert episodes.rewards(BALANCE)[0] == BALANCE.dead_end


@settings(max_examples=examples(50), deadline=None)
@given(problem=st.one_of(bound_problems(), problems(max_tables=6)), seed=st.integers(0, 999))
def test_the_state_is_the_sum_of_what_each_device_holds(problem: Problem, seed: int) -> None:
    models = fake_models()
    space = _cut(problem, models)
    features = np.random.default_rng(seed).integers(-9, 9, (len(space.pieces), 3)).astype(np.float64)
    task = Task(space, by_cost(space), features)
    episodes = Episodes([task])
    play(episodes, Drawing(_draws(seed, [task])))
    assert episodes.next_pieces.tolist() == [NONE]
    assert episodes.next_features.tolist() == [[0.0] * 3]
    placement, devices = episodes.placements[0], range(space.device_count)
    held = [np.flatnonzero(placement == device) for device in devices]
    assert episodes.sums[0].tolist() == [features[here].sum(axis=0).tolist() for here in held]
    assert episodes.used[0].tolist() == [int(space.memory_bytes[here].sum()) for here in held]
    assert episodes.placed[0] == (placement != NONE).mean()
    compute = [
        models.compute.head(space.embeddings[here].sum(axis=0, dtype=np.float64).astype(np.float32)) for here in held
    ]
    widths = np.array([float(space.output_widths[here].sum()) for here in held])
    exchange = models.communication.backward(widths, problem.global_batch_size) * (len(held) > 1)
    wanted = np.concatenate([np.array(compute), exchange[:, None]], axis=1)
    assert np.abs(episodes.costs[0] / 10_000 - wanted).max() <= 1.001 * 0.5e-4


@settings(max_examples=examples(50), deadline=None)
@given(problem=st.one_of(bound_problems(), problems(max_tables=6)), seeds=st.lists(st.integers(0, 99), min_size=3))
def test_rewards_are_those_of_the_plan_as_it_is_priced(problem: Problem, seeds: list[int]) -> None:
    models = fake_models()
    task = _task(problem, models)
    # Several episodes of one task, and another task among them.
    other = _task(replace(problem, global_batch_size=2 * problem.global_batch_size), models)
    tasks = [task, other, *[task] * len(seeds)]
    episodes = Episodes(tasks)
    play(episodes, Drawing(_draws(seeds[0], tasks)))
    costs, balances = episodes.rewards(COST), episodes.rewards(BALANCE)
    for row in np.flatnonzero(~episodes.dead):
        space = tasks[row].workspace
        placement = episodes.placements[row, : len(space.pieces)]
        priced = price(space.problem, models, tables_on_devices(space.problem, shards_of(space, placement)))
        compute = [cost.forward_compute + cost.backward_compute for cost in priced]
        assert costs[row] == pytest.approx(-max_total(priced), abs=3e-4)
        assert costs[row] == -simulate(space, placement[None]).plan[0] / 10_000
        if max(compute) > 1e-2:
            assert balances[row] == pytest.approx(min(compute) / max(compute), abs=2e-2)
        assert 0.0 <= balances[row] <= 1.0


def _heuristic(episodes: Episodes) -> NDArray[np.intp]:
    loads = np.where(episodes.next_features[:, None, 0] != 0, episodes.sums[..., 0], 0.0)
    return lowest_device(loads, episodes.used, episodes.legal)


@settings(max_examples=examples(40), deadline=None)
@given(drawn=st.lists(st.one_of(bound_problems(), problems(types=TABLE_WISE)), min_size=1, max_size=4))
@pytest.mark.parametrize("algorithm", list(WEIGHTS))
def test_heuristics_in_lock_step_make_their_plans(algorithm: Algorithm, drawn: list[Problem]) -> None:
    models, weight = fake_models(), WEIGHTS[algorithm]
    spaces = [_cut(problem, models) for problem in drawn]
    tasks = []
    for space in spaces:
        weights = np.array([sum(map(weight, space.catalogue.tables(piece))) for piece in space.keys])
        tasks.append(Task(space, np.lexsort((-space.memory_bytes, -weights)), weights[:, None]))
    episodes = Episodes(tasks)
    play(episodes, _heuristic)
    for row, space in enumerate(spaces):
        wanted = greedy_placement(space, weight)
        assert episodes.dead[row] == (wanted is None)
        if wanted is not None:
            assert episodes.placements[row, : len(wanted)].tolist() == wanted.tolist()


def _least_compute(episodes: Episodes) -> NDArray[np.intp]:
    compute = episodes.costs[..., FORWARD_COMPUTE] + episodes.costs[..., BACKWARD_COMPUTE]
    return lowest_device(compute, episodes.used, episodes.legal)


@settings(max_examples=examples(40), deadline=None)
@given(drawn=st.lists(st.one_of(bound_problems(), problems(types=TABLE_WISE)), min_size=1, max_size=4))
def test_greedy_by_predicted_cost_makes_the_plan_of_the_grid_without_caps(drawn: list[Problem]) -> None:
    models = fake_models()
    tasks = [_task(problem, models) for problem in drawn]
    episodes = Episodes(tasks)
    play(episodes, _least_compute)
    for row, task in enumerate(tasks):
        space = task.workspace
        found = Grid(space.catalogue, np.array([space.output_widths.sum()])).run(space.pieces[None], Deadline())
        assert found is not None
        assert episodes.dead[row] == (found.missing_bytes[0] > 0)
        if not episodes.dead[row]:
            assert episodes.placements[row, : len(task.order)].tolist() == found.placements[0].tolist()
            # The grid prices slices of one table on a device as they are, a reward as the one that they become.
            if len(set(space.units)) == len(space.units):
                assert episodes.rewards(COST)[row] == -found.costs[0] / 10_000


def _problem(dims: list[int], devices: int = 2, limit: int = GIB, **constraints: Any) -> Problem:
    tables = tuple(Table(f"t{i}", 1000, dim, 1.0) for i, dim in enumerate(dims))
    rules = Constraints(sharding_types=TABLE_WISE, count_buffers=False, **constraints)
    return Problem(tables, Topology("fake", (limit,) * devices), 64, Optimizer.SGD, rules)


def _space(problem: Problem, models: CostModels | None = None) -> Workspace:
    return Workspace.of(problem, oracle.whole(problem), models or fake_models())


def _to(*devices: int) -> Policy:
    """A policy that puts each piece in turn on these devices, the same in all episodes."""
    return lambda episodes: np.full(len(episodes.tasks), devices[episodes.steps])


def test_a_dead_end_ends_its_episode_alone_and_is_marked() -> None:
    models = fake_models()
    # 1000 rows x 8 columns x 4 bytes fill a device's 32,000: two small tables on two devices leave the large one none.
    tight = Task.of(_space(_problem([8, 4, 4], limit=32_000), models), order=as_they_come)
    spread = Task.of(_space(_problem([4, 4, 8], limit=32_000), models), order=as_they_come)
    episodes = Episodes([tight, spread, tight])
    trajectories = play(episodes, lambda now: np.array([[0, 0, 0], [1, 1, 1], [1, NONE, 1]][now.steps]))
    assert episodes.dead.tolist() == [False, True, False]
    assert episodes.placements.tolist() == [[0, 1, 1], [0, 1, NONE], [0, 1, 1]]
    assert trajectories.pieces[:, 1].tolist() == [0, 1, NONE]
    rewards = episodes.rewards(COST)
    assert rewards[1] == COST.dead_end < rewards[0] == rewards[2] < 0.0


def test_a_first_piece_that_no_device_may_take_is_a_dead_end_at_once() -> None:
    episodes = Episodes([Task.of(_space(_problem([16], limit=32_000)))])
    assert episodes.dead.tolist() == [True]
    assert not episodes.open.any()
    assert not episodes.legal.any()
    assert play(episodes, _to()).legal.shape == (0, 1, 2)
    assert episodes.rewards(BALANCE).tolist() == [-1.0]


def test_pins_and_separation_close_devices_and_colocated_tables_are_one_piece() -> None:
    rules: dict[str, Any] = {"pin": {"t0": (1,)}, "separate": (("t0", "t2"),), "colocate": (("t2", "t3"),)}
    episodes = Episodes([Task.of(_space(_problem([4] * 4, devices=3, **rules)), order=as_they_come)])
    trajectories = play(episodes, _to(1, 1, 0))
    assert trajectories.legal[:, 0].tolist() == [[False, True, False], [True] * 3, [True, False, True]]
    assert episodes.placements.tolist() == [[1, 1, 0]]


def test_one_device_exchanges_nothing_and_is_balanced() -> None:
    episodes = Episodes([Task.of(_space(_problem([4, 8], devices=1)))])
    play(episodes, _to(0, 0))
    assert episodes.costs[0, 0, BACKWARD_EXCHANGE] == 0 < episodes.costs[0, 0, FORWARD_COMPUTE]
    assert episodes.rewards(BALANCE).tolist() == [1.0]


def test_a_mask_stays_what_it_was_when_a_device_was_chosen_by_it() -> None:
    episodes = Episodes([Task.of(_space(_problem([8, 8, 4], limit=48_000)), order=as_they_come)])
    first = episodes.legal
    episodes.step(np.array([0]))
    episodes.step(np.array([1]))
    assert first.tolist() == [[True, True]]
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = False
    replayed = play(Episodes(episodes.tasks), _to(0, 1, 0)).legal
    assert replayed[:, 0].tolist() == [[True, True], [False, True], [True, True]]
    with pytest.raises(ValueError, match="read-only"):
        replayed[0, 0, 0] = False


def test_what_cannot_be_done_is_refused() -> None:
    models = fake_models()
    rules: dict[str, Any] = {"pin": {"t0": (1,)}}
    task = Task.of(_space(_problem([4], devices=2, **rules), models))
    episodes = Episodes([task, task])
    for device in (0, 2, -1):
        with pytest.raises(ValueError, match=rf"episode 1: device {device} may not take the piece, only \[1\] may"):
            episodes.step(np.array([1, device]))
    assert (episodes.placements == NONE).all()
    with pytest.raises(ValueError, match="episode 0 has not ended"):
        episodes.rewards(COST)
    episodes.step(np.array([1, 1]))
    with pytest.raises(ValueError, match="all episodes have ended"):
        episodes.step(np.array([1, 1]))


def test_tasks_that_do_not_go_together_are_refused() -> None:
    space = _space(_problem([4, 8]))
    task = Task.of(space)
    with pytest.raises(ValueError, match="at least one task"):
        Episodes([])
    with pytest.raises(ValueError, match=r"tasks\[1\] is priced by other models"):
        Episodes([task, Task.of(_space(_problem([4])))])
    with pytest.raises(ValueError, match=r"tasks\[1\] has 2 features a piece, tasks\[0\] has 6"):
        Episodes([task, Task(space, by_cost(space), np.zeros((2, 2)))])
    with pytest.raises(ValueError, match="positions 0 to 1"):
        Task(space, np.array([0, 0]), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="one row for each of the 2 pieces"):
        Task(space, by_cost(space), np.zeros((3, 2)))


def test_pieces_come_by_cost_then_memory_then_as_they_are() -> None:
    tables = (Table("small", 1000, 4, 0.5), Table("busy", 1000, 64, 9.0), Table("same", 1000, 4, 0.5))
    problem = Problem(tables, Topology("fake", (GIB,)), 64, Optimizer.SGD)
    assert by_cost(_space(problem)).tolist() == [1, 0, 2]
