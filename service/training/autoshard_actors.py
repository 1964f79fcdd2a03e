"""AutoShard's actors: they play episodes, and hand them on in unrolls of equal length."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service.policies.autoshard import AutoShardNetworks
from service.policies.networks import Flags, drawn, log_probabilities
from service.search.catalogue import Integers
from service.search.episodes import Episodes
from service.search.policy_placement import seen
from service.training.training_tasks import TrainingTasks


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """An episode of T steps on D devices, as it was played.

    Attributes:
        task: number of its task.
        pieces: position in the workspace of each step's piece; [T].
        devices: where each was placed; [T].
        legal: the masks by which devices were drawn; [T, D].
        used: fraction of each device's memory that was used; [T, D].
        log_probabilities: of the devices, when they were drawn; [T].
        states: the LSTM before each step: by layer, the hidden state and the cell; [T, 2, 2, H].
        complete: whether all pieces were placed; else it came to a dead end.
        reward: what it was worth at its end.
    """

    task: int
    pieces: Integers
    devices: Integers
    legal: Flags
    used: NDArray[np.float32]
    log_probabilities: NDArray[np.float32]
    states: NDArray[np.float32]
    complete: bool
    reward: float = 0.0

    def __len__(self) -> int:
        return len(self.pieces)

    def placement(self, pieces: int) -> Integers:
        """Device of each of the task's S pieces, -1 where it was not placed; [S]."""
        found = np.full(pieces, -1)
        found[self.pieces] = self.devices
        return found


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps ``start`` to ``stop`` of an episode, the second exclusive."""

    played: Played
    start: int
    stop: int

    @property
    def goes_on(self) -> bool:
        """Whether the episode has a step after the last."""
        return self.stop < len(self.played)


class Actors:
    """B actors, each of which plays one episode after the other.

    Those that have too few steps left for an unroll play their next episodes in lock step, to the end, with the
    networks that there are then; so steps at the beginning of an unroll may be of older networks than its end.
    """

    def __init__(self, tasks: TrainingTasks, count: int, generator: np.random.Generator) -> None:
        """Starts without an episode; tasks and devices are drawn by the generator, which is theirs from now on."""
        self._tasks = tasks
        self._generator = generator
        self._waiting: list[deque[Played]] = [deque() for _ in range(count)]
        self._done = [0] * count

    def unrolls(
        self, networks: AutoShardNetworks, steps: int, worth: Callable[[Sequence[Played]], Sequence[float]]
    ) -> list[list[Segment]]:
        """The next so many steps of each actor.

        Args:
            networks: what new episodes are played with.
            steps: of an unroll.
            worth: rewards of episodes; asked once for all that are new.
        """
        left = [sum(map(len, waiting)) - done for waiting, done in zip(self._waiting, self._done, strict=True)]
        new = list[tuple[int, Played]]()
        while short := [actor for actor, count in enumerate(left) if count < steps]:
            for actor, played in zip(short, self._episodes(networks, len(short)), strict=True):
                left[actor] += len(played)
                new.append((actor, played))
        rewards = worth([played for _, played in new])
        for (actor, played), reward in zip(new, rewards, strict=True):
            self._waiting[actor].append(replace(played, reward=reward))
        return [self._unroll(actor, steps) for actor in range(len(left))]

    def state(self) -> dict[str, Any]:
        """Episodes that are not learnt from to their end, and the generator."""
        return {
            "waiting": [[_packed(played) for played in waiting] for waiting in self._waiting],
            "done": list(self._done),
            "generator": json.dumps(self._generator.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state of as many actors."""
        self._waiting = [deque(map(_unpacked, waiting)) for waiting in state["waiting"]]
        self._done = list(state["done"])
        self._generator.bit_generator.state = json.loads(state["generator"])

    def _unroll(self, actor: int, steps: int) -> list[Segment]:
        found = []
        while steps:
            played, start = self._waiting[actor][0], self._done[actor]
            stop = min(start + steps, len(played))
            found.append(Segment(played, start, stop))
            steps -= stop - start
            self._done[actor] = stop
            if stop == len(played):
                self._waiting[actor].popleft()
                self._done[actor] = 0
        return found

    def _episodes(self, networks: AutoShardNetworks, count: int) -> list[Played]:
        numbers = self._generator.integers(len(self._tasks.workspaces), size=count).tolist()
        episodes = Episodes([self._tasks.posed(n, networks) for n in numbers])
        scorer, rows = networks.begin(count), np.arange(count)
        steps: list[tuple[NDArray[Any], ...]] = []
        while episodes.open.any():
            now, before, legal, pieces = seen(episodes), scorer.state, episodes.legal, episodes.next_pieces
            logits = scorer.logits(now)
            devices = drawn(logits, legal, self._generator)
            chosen = log_probabilities(logits, legal)[rows, devices]
            steps.append((pieces, devices, legal, now.used, chosen, np.moveaxis(before, 2, 0)))
            episodes.step(devices)
        pieces, devices, legal, used, chosen, states = (np.array(part) for part in zip(*steps, strict=True))
        lengths, there = (pieces >= 0).sum(axis=0), episodes.devices.sum(axis=1)
        return [
            Played(
                number,
                pieces[:length, row],
                devices[:length, row],
                legal[:length, row, :width],
                used[:length, row, :width].astype(np.float32),
                chosen[:length, row].astype(np.float32),
                states[:length, row].astype(np.float32),
                not episodes.dead[row],
            )
            for row, (number, length, width) in enumerate(zip(numbers, lengths, there, strict=True))
        ]


def _packed(played: Played) -> dict[str, Any]:
    values = {field.name: getattr(played, field.name) for field in fields(played)}
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def _unpacked(packed: Mapping[str, Any]) -> Played:
    values: dict[str, Any] = {
        name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in packed.items()
    }
    return Played(**values)
