"""One episode of the placement environment as a gymnasium environment, so that anybody's agent can be tried on it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from service.search.catalogue import TICKS_PER_MS
from service.search.episodes import Episodes
from service.search.rewards import Reward
from service.search.tasks import Task

Observation = dict[str, NDArray[Any]]

_Number = TypeVar("_Number", bound=np.generic)

_LARGEST = float(np.finfo(np.float32).max)


# gymnasium's Dict space is typed as one of spaces, not of arrays: no other type than Any holds for both.
class PlacementEnv(gymnasium.Env[Any, np.int64]):
    """Places the pieces of a task one by one; the action is the device of the next piece.

    Each episode is one of the tasks, drawn with the environment's seed, or the one that ``options={"task": i}`` names.
    With D the most devices that a task has and F the features of a piece, an observation holds

    - ``piece``: features of the piece to be placed, 0 at the end; [F];
    - ``sums``: features summed over the pieces on each device; [D, F];
    - ``memory``: used part of each device's memory, from 0 to 1; [D];
    - ``costs``: predicted forward compute, backward compute and backward exchange of each device so far, ms; [D, 3];
    - ``devices``: which devices the task has; [D];
    - ``placed``: part of the pieces that is placed, from 0 to 1; [1].

    ``info["action_mask"]`` says which actions are legal, int8 [D], as ``action_space.sample`` takes it. Another action
    ends the episode as a dead end does, with the reward's ``dead_end``. ``info`` also has the position of the ``task``,
    whether the episode came to a ``dead_end`` or an ``illegal`` action, and the ``placement``: the device of each
    piece by its position in the workspace, -1 where it has none.

    An agent that draws any legal device:

    >>> from service.cost_models.analytic import AnalyticCommunication, AnalyticCompute
    >>> from service.cost_models.data_sheets import DATA_SHEETS
    >>> from service.domain.plan import Problem
    >>> from service.domain.ports import CostModels
    >>> from service.domain.tables import Optimizer, Table
    >>> from service.domain.topology import Topology
    >>> from service.search.precut import posed
    >>> from service.search.rewards import Reward, minus_plan_cost
    >>> tables = tuple(Table(f"table_{i}", 100_000, 64, 1.0 + i) for i in range(8))
    >>> problem = Problem(tables, Topology("a100-80", (1 << 30,) * 4), 65_536, Optimizer.SGD)
    >>> sheet = DATA_SHEETS["a100-80"]
    >>> models = CostModels(AnalyticCompute("compute", sheet), AnalyticCommunication("communication", sheet))
    >>> task = Task.of(posed(problem, models))
    >>> env = PlacementEnv([task], Reward(minus_plan_cost, dead_end=-1000.0))
    >>> _, info = env.reset(seed=0)
    >>> ended = False
    >>> while not ended:
    ...     _, reward, ended, _, info = env.step(env.action_space.sample(info["action_mask"]))
    >>> -1000.0 < reward < 0.0, len(info["placement"])
    (True, 8)
    """

    def __init__(self, tasks: Sequence[Task], reward: Reward) -> None:
        """Takes the tasks that episodes are drawn from, which ``Episodes`` could take together, and what they earn.

        Raises:
            ValueError: the tasks cannot be taken together.
        """
        shape = Episodes(tasks).sums.shape[1:]
        self.tasks = tuple(tasks)
        self._reward = reward
        self._devices, features = shape
        self._task = 0
        self._illegal = False
        self._over = False
        self._episode: Episodes | None = None
        self.action_space = spaces.Discrete(self._devices)
        parts: dict[str, spaces.Space[Any]] = {
            "piece": spaces.Box(-_LARGEST, _LARGEST, (features,)),
            "sums": spaces.Box(-_LARGEST, _LARGEST, shape),
            "memory": spaces.Box(0.0, 1.0, (self._devices,)),
            "costs": spaces.Box(0.0, _LARGEST, (self._devices, 3)),
            "devices": spaces.MultiBinary(self._devices),
            "placed": spaces.Box(0.0, 1.0, (1,)),
        }
        self.observation_space = spaces.Dict(parts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: of the tasks that are drawn from now on.
            options: ``task`` may name the task by its position.

        Raises:
            ValueError: an option is unknown or names no task.
        """
        super().reset(seed=seed)
        self._task = self._wanted(options or {})
        self._illegal = self._over = False
        self._episode = Episodes([self.tasks[self._task]])
        return self._observation(self._episode), self._info(self._episode)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Places the next piece; what comes back is observation, reward, terminated, truncated (never) and info.

        Raises:
            ResetNeeded: no episode has been started, or it has ended.
            ValueError: the action is none of the action space.
        """
        episode = self._episode
        if episode is None or self._over:
            raise ResetNeeded("the episode has ended or none was started: call reset() first")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is no device: it must be a whole number from 0 to {self._devices - 1}")
        # Where the first piece has no device, the first action finds the episode at its dead end.
        if episode.open[0]:
            self._illegal = not self._mask(episode)[action]
            if not self._illegal:
                episode.step(np.array([action]))
        self._over = self._illegal or not episode.open[0]
        return self._observation(episode), self._earned(episode), self._over, False, self._info(episode)

    def _wanted(self, options: dict[str, Any]) -> int:
        unknown = sorted(options.keys() - {"task"})
        if unknown:
            raise ValueError(f"options has {', '.join(unknown)}: only task is known")
        task = options.get("task")
        if task is None:
            return int(self.np_random.integers(len(self.tasks)))
        if task not in range(len(self.tasks)):
            raise ValueError(f"options['task'] is {task!r}: it must be from 0 to {len(self.tasks) - 1}")
        return int(task)

    def _earned(self, episode: Episodes) -> float:
        if self._illegal:
            return self._reward.dead_end
        return float(episode.rewards(self._reward)[0]) if self._over else 0.0

    def _mask(self, episode: Episodes) -> NDArray[np.int8]:
        return self._wide(episode.legal[0].astype(np.int8))

    def _observation(self, episode: Episodes) -> Observation:
        return {
            "piece": episode.next_features[0].astype(np.float32),
            "sums": self._wide(episode.sums[0].astype(np.float32)),
            "memory": self._wide((episode.used[0] / np.maximum(episode.limits[0], 1)).astype(np.float32)),
            "costs": self._wide((episode.costs[0] / TICKS_PER_MS).astype(np.float32)),
            "devices": self._wide(episode.devices[0].astype(np.int8)),
            "placed": episode.placed.astype(np.float32),
        }

    def _info(self, episode: Episodes) -> dict[str, Any]:
        return {
            "action_mask": self._mask(episode) * np.int8(not self._over),
            "task": self._task,
            "dead_end": bool(episode.dead[0]),
            "illegal": self._illegal,
            "placement": episode.placements[0].copy(),
        }

    def _wide(self, array: NDArray[_Number]) -> NDArray[_Number]:
        """An array of the task's devices, with zeros for those that only other tasks have."""
        missing = self._devices - len(array)
        return np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)])
