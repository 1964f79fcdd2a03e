"""DreamShard's training (NeurIPS 2022): measure placements, learn their costs, learn to place by what was learnt.

Each iteration lets the policy place some tasks and finds out what that costs; teaches the cost network all that was
found out so far; and teaches the policy network by REINFORCE, in episodes that the cost network alone judges. Beyond
the paper: masks of the loss are those of the episodes, features are standardised by fixed statistics, dead ends have
a penalty and are never measured.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.policies.dreamshard import COSTS, PLAN_COST, DreamShardNetworks
from service.policies.networks import drawn
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.catalogue import TICKS_PER_MS
from service.search.episodes import Episodes, Trajectories, play
from service.search.policy_placement import seen
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.training.dreamshard_networks import DreamShard, DreamShardSizes, sums_before
from service.training.measured_placements import MeasuredPlacements, cost_losses
from service.training.meters import Meter
from service.training.reinforce import advantages, reinforce_loss
from service.training.training_tasks import TrainingTasks

_LOSSES = (*COSTS, PLAN_COST)


@dataclass(frozen=True, slots=True)
class DreamShardTraining:
    """Configuration of a training run; by default the paper's.

    Attributes:
        seed: of the first weights, the tasks that are drawn, the devices that are drawn, and the batches.
        iterations: of measuring, cost updates and policy updates.
        placements: placements to measure in an iteration, each of a task drawn at random.
        cost_updates: of the cost network in an iteration.
        cost_batch: measured placements in an update, drawn from all so far.
        policy_updates: of the policy network in an iteration.
        policy_tasks: tasks, drawn at random, in an update.
        episodes: of each task in an update.
        entropy: weight of the entropy of choices.
        learning_rate: of Adam in the first iteration; it falls linearly, in the last to one iteration's part.
        dead_end: what an episode costs that came to a dead end, in parts of the cost of its task with everything on
            one device: no placement of a sensible policy is that dear.
        slowest_device: whether an episode is judged by its slowest device, as the heads of devices predict it, and not
            by the head of whole plans.
        relative_costs: whether errors of costs count in parts of the size of the placement's task, and not alike in
            milliseconds; where tasks differ much in size, the large ones would rule otherwise.
        sizes: of the networks.
        device: torch's, that both networks are trained on.

    Raises:
        ValueError: a number is not in its range.
    """

    seed: int = 0
    iterations: int = 10
    placements: int = 10
    cost_updates: int = 300
    cost_batch: int = 64
    policy_updates: int = 10
    policy_tasks: int = 1
    episodes: int = 10
    entropy: float = 0.001
    learning_rate: float = 5e-4
    dead_end: float = 1.0
    slowest_device: bool = False
    relative_costs: bool = False
    sizes: DreamShardSizes = field(default_factory=DreamShardSizes)
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("iterations", "placements", "cost_updates", "cost_batch", "policy_updates", "policy_tasks"):
            _refuse(name, getattr(self, name), 1)
        _refuse("episodes", self.episodes, 2)
        _refuse("entropy", self.entropy, 0)
        for name in ("learning_rate", "dead_end"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")


class DreamShardTrainer:
    """Trains both networks, an iteration a step; a ``service.training.policy_job.PolicyTrainer``."""

    def __init__(self, workspaces: Sequence[Workspace], config: DreamShardTraining, meter: Meter) -> None:
        """Begins a run.

        Args:
            workspaces: the training tasks, priced by the same models.
            config: how to train.
            meter: finds out what placements cost.

        Raises:
            ValueError: there is no task, or one has no piece or one that fits on no device.
        """
        self._config = config
        self._meter = meter
        self._tasks = TrainingTasks(workspaces)
        self._together = np.array([_together_ms(workspace) for workspace in workspaces])
        self._fair = self._together / [workspace.device_count for workspace in workspaces]
        self._device = torch.device(config.device)
        features = self._tasks.features
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self._networks = DreamShard(config.sizes, features, float(self._fair.mean())).to(self._device)
        self._features = self._networks.standardised(torch.from_numpy(features).float().to(self._device))
        alike = np.full(len(workspaces), self._networks.cost_unit_ms)
        self._units = self._fair if config.relative_costs else alike
        most_tables = max(len(self._tasks.all_tables(task)[0]) for task in range(len(workspaces)))
        most_devices = max(workspace.device_count for workspace in workspaces)
        self._measured = MeasuredPlacements.of([], [], [], [], most_tables, most_devices).to(self._device)
        # One for all parts, as in the paper: what got no gradient in an update stays as it is.
        self._optimizer = torch.optim.Adam(self._networks.parameters(), config.learning_rate)
        self._generator = np.random.default_rng(config.seed)
        self._done = 0

    @property
    def steps(self) -> int:
        """Iterations of the whole run."""
        return self._config.iterations

    @property
    def done(self) -> int:
        """Iterations that are done."""
        return self._done

    def step(self) -> Mapping[str, float]:
        """Does the next iteration; its means, and the seconds that its parts took, by name."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * (1 - self._done / self.steps)
        found: dict[str, float] = {}
        with _timed(found, "collecting"):
            chosen, episodes = self._collected()
        with _timed(found, "measuring"):
            found.update(self._measure(chosen, episodes))
        with _timed(found, "cost_updates"):
            found.update(self._learn_costs())
        with _timed(found, "policy_updates"):
            found.update(self._learn_policy())
        self._done += 1
        return found

    def state(self) -> dict[str, Any]:
        """Weights, Adam's moments, what was measured, and where the generator stands."""
        return deepcopy(
            {
                "done": self._done,
                "networks": dict(self._networks.state_dict()),
                "optimizer": self._optimizer.state_dict(),
                "measured": self._measured.tensors(),
                "generator": self._generator.bit_generator.state,
            }
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state, of a trainer that is made alike."""
        self._done = state["done"]
        self._networks.load_state_dict(state["networks"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._measured = MeasuredPlacements(**state["measured"]).to(self._device)
        self._generator.bit_generator.state = state["generator"]

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays of ``service.policies.dreamshard.DREAMSHARD_SHAPES``."""
        return self._networks.arrays()

    def _collected(self) -> tuple[NDArray[np.int64], Episodes]:
        """Tasks drawn at random and an episode of each, ended."""
        chosen = self._generator.integers(len(self._tasks.workspaces), size=self._config.placements)
        networks = self._served()
        episodes = Episodes([self._tasks.posed(i, networks) for i in chosen])
        self._play(episodes, networks)
        return chosen, episodes

    def _measure(self, chosen: NDArray[np.int64], episodes: Episodes) -> dict[str, float]:
        """Measures placements that are complete, and keeps what they cost."""
        rows = np.flatnonzero(~episodes.dead)
        found = {"collected/dead_share": float(episodes.dead.mean())}
        if not rows.size:
            return found
        spaces = [self._tasks.workspaces[i] for i in chosen[rows]]
        placements = [episodes.placements[row, : len(s.pieces)] for row, s in zip(rows, spaces, strict=True)]
        times = self._meter(list(zip(spaces, placements, strict=True)))
        tables, pieces = zip(*map(self._tasks.all_tables, chosen[rows]), strict=True)
        more = MeasuredPlacements.of(
            tables=tables,
            on=[placement[of] for placement, of in zip(placements, pieces, strict=True)],
            times=times,
            units=self._units[chosen[rows]].tolist(),
            most_tables=self._measured.tables.shape[1],
            most_devices=self._measured.devices.shape[1],
        )
        self._measured = self._measured.and_these(more.to(self._device))
        return found | {"measured/plan_ms": float(np.mean([each.plan for each in times]))}

    def _learn_costs(self) -> dict[str, float]:
        """Teaches the cost network all that was measured; mean squared errors, in units of the network."""
        if not len(self._measured):
            return {}
        total = torch.zeros(len(_LOSSES), device=self._device)
        for _ in range(self._config.cost_updates):
            rows = self._generator.integers(len(self._measured), size=self._config.cost_batch)
            batch = self._measured.rows(torch.from_numpy(rows).to(self._device))
            losses = cost_losses(self._networks, self._features, batch)
            self._update(losses.sum())
            total += losses.detach()
        means = (total / self._config.cost_updates).tolist()
        return {f"cost_loss/{name}": mean for name, mean in zip(_LOSSES, means, strict=True)}

    def _learn_policy(self) -> dict[str, float]:
        """Teaches the policy what the cost network has learnt; means over the updates."""
        found = [self._policy_update() for _ in range(self._config.policy_updates)]
        return {f"policy/{name}": float(np.mean([each[name] for each in found])) for name in found[0]}

    def _policy_update(self) -> dict[str, float]:
        config = self._config
        chosen = self._generator.integers(len(self._tasks.workspaces), size=config.policy_tasks)
        networks = self._served()
        posed = [self._tasks.posed(i, networks) for i in chosen]
        episodes = Episodes([task for task in posed for _ in range(config.episodes)])
        played = self._play(episodes, networks)
        dead_end = np.repeat(config.dead_end * self._together[chosen], config.episodes)
        judged = networks.slowest_devices if config.slowest_device else networks.plan_costs
        returns = -np.where(episodes.dead, dead_end, judged(episodes.sums, episodes.devices))
        advantage = advantages(returns.reshape(len(chosen), config.episodes)).ravel()
        loss, spread = reinforce_loss(
            self._logits(chosen, played),
            self._tensor(played.legal),
            self._tensor(played.devices),
            self._tensor(advantage).float(),
            config.entropy,
        )
        self._update(loss)
        return {
            "return_ms": float(returns.mean()),
            "dead_share": float(episodes.dead.mean()),
            "entropy": float(spread),
        }

    def _play(self, episodes: Episodes, networks: DreamShardNetworks) -> Trajectories:
        """Brings episodes to their end by devices that are drawn."""
        scorer = networks.begin(len(episodes.tasks))
        return play(episodes, lambda now: drawn(scorer.logits(seen(now)), now.legal, self._generator))

    def _logits(self, chosen: NDArray[np.int64], played: Trajectories) -> Tensor:
        """Logits at each step of the episodes of these tasks, with the policy's gradient; [T, B, D]."""
        pieces, devices = self._tensor(played.pieces), self._tensor(played.devices)
        count, each = played.legal.shape[2], self._config.episodes

        def before(network: nn.Sequential) -> Tensor:
            embeddings = self._pieces(network, chosen).repeat_interleave(each, dim=0)
            return sums_before(embeddings, pieces, devices, count)[:-1]

        with torch.no_grad():
            cost_sums = before(self._networks.cost.table)
        return self._networks.logits(cost_sums, before(self._networks.policy.table))

    def _pieces(self, network: nn.Sequential, chosen: NDArray[np.int64]) -> Tensor:
        """Embeddings of the pieces of these tasks, 0 in padding; [K, S, E]."""
        most = max(len(self._tasks.workspaces[i].pieces) for i in chosen)
        tables, pieces = zip(*map(self._tasks.all_tables, chosen), strict=True)
        places = np.concatenate([most * k + of for k, of in enumerate(pieces)])
        embedded: Tensor = network(self._features[self._tensor(np.concatenate(tables))])
        summed = embedded.new_zeros((len(chosen) * most, embedded.shape[1]))
        return summed.index_add(0, self._tensor(places), embedded).view(len(chosen), most, -1)

    def _served(self) -> DreamShardNetworks:
        return DreamShardNetworks("in training", self.arrays(), POLICY_FEATURES_VERSION)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=self._device)

    def _update(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()


def _together_ms(workspace: Workspace) -> float:
    """Predicted cost of a step with everything on one device: about the most that a placement can cost."""
    everything = np.zeros((1, len(workspace.pieces)), dtype=np.int64)
    return float(simulate(workspace, everything).plan[0]) / TICKS_PER_MS


def _refuse(name: str, value: float, least: float) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")


@contextmanager
def _timed(found: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    found[f"seconds/{part}"] = time.perf_counter() - started
