"""Trains AutoShard: actors and a learner with V-trace, and a cost model that learns from what they place."""

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from service.policies.autoshard import COST_BATCH, AutoShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.catalogue import TICKS_PER_MS
from service.search.rewards import balance, overflow
from service.search.workspace import Workspace
from service.training.autoshard_actors import Actors, Played
from service.training.autoshard_learner import Learner
from service.training.autoshard_networks import AutoShard, AutoShardSizes
from service.training.checks import refuse_below, refuse_not_positive
from service.training.meters import Meter
from service.training.ring_buffer import RingBuffer
from service.training.training_tasks import TrainingTasks


@dataclass(frozen=True, slots=True)
class AutoShardTraining:
    """Configuration of a training run; by default the paper's.

    Attributes:
        seed: of the initial weights, the tasks and devices that are drawn, and the shards.
        environment_steps: pieces that actors place in all; whole learner steps are done.
        unroll: steps of an actor in a learner step.
        batch: actors, each with an unroll in a learner step.
        lag: actors take up the learner's networks after each so many learner steps and one more; 0 is after each.
        rho_bar: V-trace's largest weight of a step's surprise.
        c_bar: V-trace's largest weight that is handed on to earlier steps.
        value_weight: of the value loss.
        entropy_weight: of the entropy, which is rewarded.
        learning_rate: of Adam at the first learner step; falls linearly to 0 with the last.
        clip: largest norm of the policy's gradient.
        buffer: newest shards that the cost model learns from.
        cost_updates: of the cost model in a learner step.
        cost_batch: shards in each.
        cost_decay: share by which its weights shrink with each update, in units of the learning rate (AdamW).
        sizes: of the networks.
        device: that torch learns on.

    Raises:
        ValueError: a number is not in its range.
    """

    seed: int = 0
    environment_steps: int = 100_000
    unroll: int = 100
    batch: int = 8
    lag: int = 1
    rho_bar: float = 1.0
    c_bar: float = 1.0
    value_weight: float = 0.5
    entropy_weight: float = 0.001
    learning_rate: float = 1e-3
    clip: float = 40.0
    buffer: int = 5_000
    cost_updates: int = 20
    cost_batch: int = 512
    cost_decay: float = 0.0
    sizes: AutoShardSizes = field(default_factory=AutoShardSizes)
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("environment_steps", "unroll", "batch", "buffer", "cost_updates", "cost_batch"):
            refuse_below(name, getattr(self, name), 1)
        for name in ("lag", "value_weight", "entropy_weight", "cost_decay"):
            refuse_below(name, getattr(self, name), 0)
        for name in ("rho_bar", "c_bar", "learning_rate", "clip"):
            refuse_not_positive(name, getattr(self, name))


class AutoShardTrainer:
    """A ``PolicyTrainer``; a step is a learner step, which is one update of the policy."""

    def __init__(self, workspaces: Sequence[Workspace], config: AutoShardTraining, meter: Meter) -> None:
        """Starts the networks.

        Args:
            workspaces: the tasks, whose pieces each fit on some device.
            config: of the run.
            meter: finds out what the actors' placements cost, once a learner step.

        Raises:
            ValueError: there is no task, or one has no piece or one that fits on no device.
        """
        self._config = config
        self._meter = meter
        self._tasks = TrainingTasks(workspaces)
        device = torch.device(config.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            unit, settings = _mean_device_ms(workspaces), max(self._tasks.settings) + 1
            self._networks = AutoShard(config.sizes, self._tasks.features, unit, settings).to(device)
        self._learner = Learner(self._networks, self._tasks, device)
        self._policy = torch.optim.Adam(self._networks.policy.parameters(), config.learning_rate)
        costs = self._networks.cost.parameters()
        self._cost = torch.optim.AdamW(costs, config.learning_rate, weight_decay=config.cost_decay)
        # One seed, two streams: how many episodes are played does not change which shards are drawn.
        acting, drawing = np.random.default_rng(config.seed).spawn(2)
        self._actors = Actors(self._tasks, config.batch, acting)
        self._generator = drawing
        self._buffer = RingBuffer(config.buffer)
        self._behaviour = self.arrays()
        self._done = 0

    @property
    def steps(self) -> int:
        """Learner steps of the whole run, at least one."""
        return max(1, self._config.environment_steps // (self._config.unroll * self._config.batch))

    @property
    def done(self) -> int:
        """Learner steps that are done."""
        return self._done

    def step(self) -> Mapping[str, float]:
        """Does the next learner step.

        Returns:
            by name: mean reward and share of dead ends of the episodes that actors ended, losses by step of an unroll,
            the norm of the policy's gradient before it is clipped, and seconds. Without such episodes, or shards, what
            would be of these is not there.
        """
        config, clock = self._config, _Clock()
        if self._done % (config.lag + 1) == 0:
            self._behaviour = self.arrays()
        found: dict[str, float] = {}
        behaviour = AutoShardNetworks("behaviour", self._behaviour, POLICY_FEATURES_VERSION)
        unrolls = self._actors.unrolls(behaviour, config.unroll, lambda played: self._rewards(played, found, clock))
        clock.lap("actors")
        for optimizer in (self._policy, self._cost):
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * (1.0 - self._done / self.steps)
        losses = self._learner.policy_losses(unrolls, config.rho_bar, config.c_bar)
        loss = losses.policy + config.value_weight * losses.value - config.entropy_weight * losses.entropy
        self._policy.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self._networks.policy.parameters(), config.clip)
        self._policy.step()
        clock.lap("policy")
        if len(self._buffer):
            found["cost_loss"] = self._learn_costs()
        clock.lap("cost_model")
        self._done += 1
        steps = config.unroll * config.batch
        return {
            **found,
            "policy_loss": losses.policy.item() / steps,
            "value_loss": losses.value.item() / steps,
            "entropy": losses.entropy.item() / steps,
            "gradient_norm": norm.item(),
            "learning_rate": self._policy.param_groups[0]["lr"],
            **{f"seconds/{name}": seconds for name, seconds in clock.laps.items()},
        }

    def state(self) -> dict[str, Any]:
        """Networks, optimizers, actors, shards, generators, and the networks that actors play with."""
        state = {
            "done": self._done,
            "networks": self._networks.state_dict(),
            "policy": self._policy.state_dict(),
            "cost": self._cost.state_dict(),
            "behaviour": {name: torch.from_numpy(array) for name, array in self._behaviour.items()},
            "actors": self._actors.state(),
            "buffer": self._buffer.state(),
            "generator": json.dumps(self._generator.bit_generator.state),
        }
        return copy.deepcopy(state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state of a trainer of the same tasks and configuration."""
        state = copy.deepcopy(dict(state))
        self._networks.load_state_dict(state["networks"])
        self._policy.load_state_dict(state["policy"])
        self._cost.load_state_dict(state["cost"])
        self._behaviour = {name: tensor.numpy() for name, tensor in state["behaviour"].items()}
        self._actors.restore(state["actors"])
        self._buffer.restore(state["buffer"])
        self._generator.bit_generator.state = json.loads(state["generator"])
        self._done = state["done"]

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays of ``service.policies.autoshard.AUTOSHARD_SHAPES``, of their own memory."""
        return {name: array.copy() for name, array in self._networks.arrays().items()}

    def _rewards(self, played: Sequence[Played], found: dict[str, float], clock: "_Clock") -> list[float]:
        """What episodes are worth; what their devices held and took goes to the cost model's shards."""
        clock.lap("actors")
        spaces = [self._tasks.workspaces[each.task] for each in played]
        placements = [each.placement(len(space.pieces)) for each, space in zip(played, spaces, strict=True)]
        complete = [i for i, each in enumerate(played) if each.complete]
        times = self._meter([(spaces[i], placements[i]) for i in complete]) if complete else []
        rewards = [overflow(*each) for each in zip(spaces, placements, strict=True)]
        for i, taken in zip(complete, times, strict=True):
            compute = taken.compute.sum(axis=-1)
            rewards[i] = float(balance(compute))
            costs, setting = compute * _to_cost_batch(spaces[i]), self._tasks.settings[played[i].task]
            # Errors count in parts of the mean device, of which there is none where nothing takes any time.
            for device, cost in enumerate(costs.tolist() if costs.any() else []):
                tables, _ = self._tasks.tables(played[i].task, np.flatnonzero(placements[i] == device))
                self._buffer.add(tables, cost, float(costs.mean()), setting)
        if played:
            found["reward"] = float(np.mean(rewards))
            found["dead_share"] = 1.0 - len(complete) / len(played)
        if times:
            found["plan_ms"] = float(np.mean([taken.plan for taken in times]))
        clock.lap("meter")
        return rewards

    def _learn_costs(self) -> float:
        """Updates the cost model; the mean loss."""
        losses = []
        for _ in range(self._config.cost_updates):
            loss = self._learner.cost_loss(self._buffer.sample(self._config.cost_batch, self._generator))
            self._cost.zero_grad()
            torch.autograd.backward(loss)
            self._cost.step()
            losses.append(loss.item())
        return float(np.mean(losses))


class _Clock:
    """Seconds by part of a learner step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        """Counts the time since the last lap to a part."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._since
        self._since = now


def _mean_device_ms(workspaces: Sequence[Workspace]) -> float:
    """Compute of a device as the tasks' own cost models see it from pieces alone, the mean over tasks.

    Milliseconds, for ``COST_BATCH`` samples.
    """
    shares = [space.single_costs.sum() / space.device_count * _to_cost_batch(space) for space in workspaces]
    return float(np.mean(shares)) / TICKS_PER_MS


def _to_cost_batch(workspace: Workspace) -> float:
    return COST_BATCH / workspace.problem.global_batch_size
