"""The placement environment as anybody's agent sees it."""

import doctest
import warnings

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.episodes import Episodes
from service.search.rewards import Reward, minus_plan_cost
from service.search.simulator import simulate
from service.search.tasks import Task
from service.search.workspace import Workspace
from service.training import placement_gym
from service.training.placement_gym import PlacementEnv
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, problems

COST = Reward(minus_plan_cost, dead_end=-1e6)


def _tasks(*drawn: Problem) -> list[Task]:
    models = fake_models()
    return [Task.of(Workspace.of(problem, oracle.whole(problem), models)) for problem in drawn]


def _problem(count: int, devices: int, limit: int = 1 << 30, **constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", 1000 * (i + 1), 4, 1.0 + i) for i in range(count))
    rules = Constraints(count_buffers=False, **constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (limit,) * devices), 1024, Optimizer.SGD, rules)


def _env() -> PlacementEnv:
    return PlacementEnv(_tasks(_problem(5, 2), _problem(3, 4, pin={"t2": (1,)})), COST)


def test_it_is_what_gymnasium_takes_for_an_environment() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(_env(), skip_render_check=True)


def test_the_example_of_the_docstring_runs() -> None:
    found = doctest.testmod(placement_gym)
    assert (found.attempted > 10, found.failed) == (True, 0)


@settings(max_examples=examples(60), deadline=None)
@given(drawn=st.lists(problems(max_tables=5, types=TABLE_WISE), min_size=1, max_size=3), seed=st.integers(0, 999))
def test_an_agent_that_draws_legal_devices_earns_what_its_plan_costs(drawn: list[Problem], seed: int) -> None:
    env = PlacementEnv(_tasks(*drawn), COST)
    env.action_space.seed(seed)
    observed, info = env.reset(seed=seed)
    task, ended, earned, steps = env.tasks[info["task"]], False, 0.0, 0
    while not ended:
        assert env.observation_space.contains(observed)
        assert earned == 0.0
        mask = info["action_mask"]
        assert not mask[observed["devices"] == 0].any()
        observed, earned, ended, truncated, info = env.step(env.action_space.sample(mask))
        assert not truncated
        steps += 1
    assert env.observation_space.contains(observed)
    assert not info["action_mask"].any()
    assert not info["illegal"]
    if info["dead_end"]:
        assert earned == COST.dead_end
        return
    assert steps == len(task.order)
    assert earned == -simulate(task.workspace, info["placement"][None]).plan[0] / 10_000
    assert observed["placed"].tolist() == [1.0]


def test_observations_are_the_state_of_the_episode_with_padding_behind_it() -> None:
    env = _env()
    alone = Episodes(env.tasks[:1])
    env.reset(options={"task": 0})
    for device in (1, 0, 1):
        observed, *_ = env.step(np.int64(device))
        alone.step(np.array([device]))
        for name, wanted in {
            "sums": alone.sums[0],
            "memory": alone.used[0] / alone.limits[0],
            "costs": alone.costs[0] / 10_000,
        }.items():
            assert observed[name][:2] == pytest.approx(wanted)
            assert not observed[name][2:].any()
        assert observed["piece"] == pytest.approx(alone.next_features[0])
        assert observed["devices"].tolist() == [1, 1, 0, 0]
        assert observed["placed"] == pytest.approx(alone.placed)


def test_an_illegal_action_ends_the_episode_like_a_dead_end() -> None:
    env = _env()
    _, info = env.reset(options={"task": 0})
    assert info["action_mask"].tolist() == [1, 1, 0, 0]
    _, earned, ended, _, info = env.step(np.int64(2))
    assert (earned, ended, info["illegal"], info["dead_end"]) == (COST.dead_end, True, True, False)
    assert info["placement"].tolist() == [-1] * 5
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    assert not env.reset()[1]["illegal"]


def test_a_task_whose_first_table_fits_nowhere_ends_with_the_first_action() -> None:
    env = PlacementEnv(_tasks(_problem(2, 2, limit=100)), COST)
    _, info = env.reset()
    assert info["dead_end"]
    _, earned, ended, _, info = env.step(env.action_space.sample(info["action_mask"]))
    assert (earned, ended, info["dead_end"], info["illegal"]) == (COST.dead_end, True, True, False)


def test_a_seed_repeats_the_tasks_that_are_drawn() -> None:
    env = PlacementEnv(_tasks(*(_problem(1 + i, 2) for i in range(6))), COST)
    first = [env.reset(seed=7 if i == 0 else None)[1]["task"] for i in range(12)]
    again = [env.reset(seed=7 if i == 0 else None)[1]["task"] for i in range(12)]
    assert first == again
    assert len(set(first)) > 2


def test_what_is_not_understood_is_refused() -> None:
    env = _env()
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    with pytest.raises(ValueError, match=r"options\['task'\] is 2: it must be from 0 to 1"):
        env.reset(options={"task": 2})
    with pytest.raises(ValueError, match="options has tasks: only task is known"):
        env.reset(options={"tasks": 1})
    env.reset()
    with pytest.raises(ValueError, match="from 0 to 3"):
        env.step(np.int64(4))


def test_gymnasiums_wrappers_take_it() -> None:
    env = TimeLimit(FlattenObservation(_env()), max_episode_steps=2)
    observed, info = env.reset(seed=0)
    assert observed.shape == env.observation_space.shape
    env.step(env.action_space.sample(info["action_mask"]))
    assert env.step(np.int64(1))[3]
