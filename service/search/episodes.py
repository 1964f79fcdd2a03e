"""The placement environment: episodes that place the pieces of tasks one by one, many episodes in lock step.

A step places the next piece of every episode that is still open on a device. What an episode looks like does not
depend on the others of its batch: tasks of fewer pieces end earlier, and devices that a task does not have are padding
that is never legal.

The decision process is that of DreamShard (NeurIPS 2022) and AutoShard (KDD 2022). That a device without memory is
not legal, and what follows where none is, is said in docs/decisions/0017.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats
from service.search.catalogue import Integers, ticks
from service.search.rewards import Reward
from service.search.rules import Flags, Presence
from service.search.tasks import Task, cost_embeddings

_Key = TypeVar("_Key", bound=Hashable)
_Number = TypeVar("_Number", bound=np.generic)

NONE = -1
"""Stands for no device and for no piece."""

FORWARD_COMPUTE, BACKWARD_COMPUTE, BACKWARD_EXCHANGE = 0, 1, 2
"""Positions in ``Episodes.costs``."""


class Episodes:
    """B episodes of up to D devices, each placing its task's pieces in their order.

    Attributes:
        tasks: the task of each; several episodes may share one.
        devices: which devices there are; [B, D].
        limits: memory of each device, bytes; [B, D], ``NONE`` in padding.
        open: episodes that have a piece to place and a device for it; [B].
        dead: episodes that ended because no device was legal; [B].
        legal: devices that may take the next piece, never any of an episode that has ended; [B, D]. A new array each
            step that nobody can write to: the mask by which a device was drawn is the mask for the loss.
        sums: features summed over the pieces on each device; [B, D, F]. This and ``used`` change with each step.
        used: memory on each device, bytes; [B, D].
        placements: device of each piece by its position in the workspace, ``NONE`` before it is placed; [B, S].
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Starts an episode for each of B tasks, which are priced by the same models and have as many features."""
        _check(tasks)
        self.tasks = tuple(tasks)
        self._counts = np.array([len(task.order) for task in tasks])
        self._order = _padded([task.order for task in tasks], NONE)
        self._memory = _padded([task.workspace.memory_bytes[task.order] for task in tasks], 0)
        self._units = _padded([task.workspace.units[task.order] for task in tasks], 0)
        self._columns = _padded([task.workspace.output_widths[task.order] for task in tasks], 0)
        self._embeddings = _padded([cost_embeddings(task.workspace)[task.order] for task in tasks], 0.0)
        self._features = _padded([task.features[task.order] for task in tasks], 0.0)
        self.limits: Integers = _padded([task.workspace.limits for task in tasks], NONE)
        self.devices: Flags = _padded([np.ones(task.workspace.device_count, dtype=np.bool_) for task in tasks], False)
        shape = self.devices.shape
        self.sums: Floats = np.zeros((*shape, self._features.shape[2]))
        self.used: Integers = np.zeros(shape, dtype=np.int64)
        self.placements: Integers = np.full(self._order.shape, NONE)
        self.open: Flags = np.ones(len(tasks), dtype=np.bool_)
        self.dead: Flags = np.zeros(len(tasks), dtype=np.bool_)
        self.legal: Flags = np.zeros(shape, dtype=np.bool_)
        self._embedded = np.zeros((*shape, self._embeddings.shape[2]))
        self._widths = np.zeros(shape)
        self._costs = np.zeros((*shape, 3), dtype=np.int64)
        self._stale = self.devices.copy()
        self._exchanges = _groups([(t.workspace.device_count, t.workspace.problem.global_batch_size) for t in tasks])
        self._ruled = _ruled(tasks)
        self.steps = 0
        self._look()

    @property
    def placed(self) -> Floats:
        """The fraction of each task's pieces that is placed; [B]."""
        return np.asarray((self.placements != NONE).sum(axis=1) / np.maximum(self._counts, 1))

    @property
    def next_pieces(self) -> Integers:
        """Position in its workspace of each episode's next piece, ``NONE`` where it has ended; [B]."""
        return self._next(self._order, NONE)

    @property
    def next_features(self) -> Floats:
        """Features of each episode's next piece, 0 where it has ended; [B, F]."""
        return self._next(self._features, 0.0)

    @property
    def costs(self) -> Integers:
        """Predicted forward compute, backward compute and backward exchange of each device so far, ticks; [B, D, 3].

        Pieces of one table are priced as they are, merged only in the rewards. 0 in padding.
        """
        stale, models = self._stale, self.tasks[0].workspace.models
        if stale.any():
            self._costs[stale, :BACKWARD_EXCHANGE] = ticks(
                models.compute.head(self._embedded[stale].astype(np.float32))
            )
            for (devices, batch_size), group in self._exchanges.items():
                rows = group[stale[group].any(axis=1)]
                if devices > 1 and rows.size:
                    exchange = models.communication.backward(self._widths[rows, :devices], batch_size)
                    self._costs[rows, :devices, BACKWARD_EXCHANGE] = ticks(exchange)
            self._stale = np.zeros_like(stale)
        return self._costs.copy()

    def step(self, devices: NDArray[np.integer[Any]]) -> None:
        """Places the next piece of each open episode on a legal device.

        Args:
            devices: [B]; those of episodes that have ended are not looked at.

        Raises:
            ValueError: some device is not legal, or all episodes have ended.
        """
        rows = np.flatnonzero(self.open)
        if not rows.size:
            raise ValueError("all episodes have ended: start new ones")
        chosen = np.asarray(devices)[rows]
        self._refuse_illegal(rows, chosen)
        now = self.steps
        self.sums[rows, chosen] += self._features[rows, now]
        self.used[rows, chosen] += self._memory[rows, now]
        self.placements[rows, self._order[rows, now]] = chosen
        self._embedded[rows, chosen] += self._embeddings[rows, now]
        self._widths[rows, chosen] += self._columns[rows, now]
        self._stale[rows, chosen] = True
        for group, presence in self._ruled:
            here = np.flatnonzero(self.open[group])
            presence.put(here, np.asarray(devices)[group[here]], self._units[group[here], now])
        self.steps += 1
        self._look()

    def rewards(self, reward: Reward) -> Floats:
        """What each episode is worth; [B].

        Raises:
            ValueError: some episode is still open.
        """
        if self.open.any():
            raise ValueError(f"episode {int(self.open.argmax())} has not ended: rewards come at the end of all")
        found = np.full(len(self.tasks), reward.dead_end, dtype=np.float64)
        # One call for all episodes of a workspace.
        for group in _groups([id(task.workspace) for task in self.tasks]).values():
            rows = group[~self.dead[group]]
            if rows.size:
                workspace = self.tasks[rows[0]].workspace
                found[rows] = reward.placed(workspace, self.placements[rows, : len(workspace.pieces)])
        return found

    def _next(self, by_step: NDArray[_Number], ended: float) -> NDArray[_Number]:
        """What the next pieces have of an array by step, [B, S, ...], and ``ended`` where there is none; [B, ...]."""
        found = np.full((len(self.tasks), *by_step.shape[2:]), ended, dtype=by_step.dtype)
        if self.open.any():
            found[self.open] = by_step[self.open, self.steps]
        return found

    def _refuse_illegal(self, rows: NDArray[np.intp], chosen: NDArray[np.integer[Any]]) -> None:
        inside = (chosen >= 0) & (chosen < self.legal.shape[1])
        wrong = ~(inside & self.legal[rows, np.where(inside, chosen, 0)])
        if wrong.any():
            first = int(wrong.argmax())
            may = np.flatnonzero(self.legal[rows[first]]).tolist()
            raise ValueError(f"episode {rows[first]}: device {chosen[first]} may not take the piece, only {may} may")

    def _look(self) -> None:
        """Finds the devices that are legal now; ends episodes that are complete or at a dead end."""
        now = self.steps
        self.open = self.open & (now < self._counts)
        legal = np.zeros_like(self.devices)
        rows = np.flatnonzero(self.open)
        if rows.size:
            legal[rows] = self.used[rows] + self._memory[rows, now, None] <= self.limits[rows]
        for group, presence in self._ruled:
            here = np.flatnonzero(self.open[group])
            if here.size:
                allowed = presence.legal(here, self._units[group[here], now])
                legal[group[here], : allowed.shape[1]] &= allowed
        stuck = self.open & ~legal.any(axis=1)
        self.dead = self.dead | stuck
        self.open = self.open & ~stuck
        legal.setflags(write=False)
        self.legal = legal


Policy = Callable[[Episodes], NDArray[np.integer[Any]]]
"""Chooses a legal device for each open episode; [B]."""


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """What was seen and done in B episodes over T steps.

    Attributes:
        pieces: position in its workspace of the piece that was placed, ``NONE`` where the episode had ended; [T, B].
        devices: where it was placed, ``NONE`` where the episode had ended; [T, B].
        legal: the masks by which devices were chosen, which nobody can write to; [T, B, D].
    """

    pieces: Integers
    devices: Integers
    legal: Flags


def play(episodes: Episodes, policy: Policy) -> Trajectories:
    """Lets a policy bring episodes to their end; what became of them is in ``episodes``."""
    pieces, devices, legal = [], [], []
    while episodes.open.any():
        chosen = np.where(episodes.open, policy(episodes), NONE)
        pieces.append(episodes.next_pieces)
        devices.append(chosen)
        legal.append(episodes.legal)
        episodes.step(chosen)
    shape = (len(pieces), *episodes.devices.shape)
    masks = np.array(legal, dtype=np.bool_).reshape(shape)
    masks.setflags(write=False)
    return Trajectories(
        np.array(pieces, dtype=np.int64).reshape(shape[:2]),
        np.array(devices, dtype=np.int64).reshape(shape[:2]),
        masks,
    )


def _check(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise ValueError("episodes need at least one task")
    first = tasks[0]
    for i, task in enumerate(tasks):
        ours, theirs = first.workspace.models, task.workspace.models
        if theirs.compute is not ours.compute or theirs.communication is not ours.communication:
            raise ValueError(f"tasks[{i}] is priced by other models than tasks[0]: give it to other episodes")
        if task.features.shape[1] != first.features.shape[1]:
            widths = f"{task.features.shape[1]} features a piece, tasks[0] has {first.features.shape[1]}"
            raise ValueError(f"tasks[{i}] has {widths}: make both the same way")


def _padded(arrays: Sequence[NDArray[np.generic]], value: float) -> NDArray[Any]:
    """Arrays [N, ...] that differ in N as one array of the longest; [B, N, ...]."""
    longest = max(map(len, arrays))
    found = np.full((len(arrays), longest, *arrays[0].shape[1:]), value, dtype=arrays[0].dtype)
    for row, array in zip(found, arrays, strict=True):
        row[: len(array)] = array
    return found


def _groups(keys: Sequence[_Key]) -> dict[_Key, NDArray[np.intp]]:
    """Rows by key, in order."""
    rows: dict[_Key, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        rows[key].append(row)
    return {key: np.array(found) for key, found in rows.items()}


def _ruled(tasks: Sequence[Task]) -> list[tuple[NDArray[np.intp], Presence]]:
    """Rows of each task whose rules forbid a device anything, and what is present where under them."""
    found = []
    for group in _groups([id(task.workspace.catalogue) for task in tasks]).values():
        rules = tasks[group[0]].workspace.catalogue.rules
        if rules.apart.any() or not rules.allowed.all():
            found.append((group, Presence(rules, len(group))))
    return found
