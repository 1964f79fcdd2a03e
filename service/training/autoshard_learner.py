"""AutoShard's losses: of the policy on unrolls, by V-trace, and of the cost model on shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.search.catalogue import Integers
from service.training.autoshard_actors import Segment
from service.training.autoshard_networks import AutoShard, mean_counts, relative_costs
from service.training.dreamshard_networks import entropy, masked_log_probabilities, sums_before
from service.training.ring_buffer import Shards
from service.training.training_tasks import TrainingTasks
from service.training.vtrace import vtrace


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of the policy, summed over the steps of all unrolls.

    Attributes:
        policy: minus the advantages times the log probabilities of what was chosen.
        value: squared distances of values from V-trace's returns.
        entropy: of the choices, which the whole loss is lowered by.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor


class Learner:
    """Replays what actors have done with the networks as they are now.

    Sums over devices, predicted costs and states are computed anew; pieces, devices, masks and the LSTM's state before
    the first step of each segment are those of the actors.
    """

    def __init__(self, networks: AutoShard, tasks: TrainingTasks, device: torch.device) -> None:
        """Takes networks that are on the device."""
        self._networks = networks
        self._tasks = tasks
        self._device = device
        self._x = networks.standardised(self._tensor(tasks.features).float())

    def policy_losses(self, unrolls: Sequence[Sequence[Segment]], rho_bar: float, c_bar: float) -> Losses:
        """Losses of B unrolls of equally many steps; ``rho_bar`` and ``c_bar`` are ``vtrace``'s."""
        segments, shape = [segment for unroll in unrolls for segment in unroll], (len(unrolls), -1)
        states, after, logits = self.replayed(segments)
        found = masked_log_probabilities(logits, self._tensor(_by_device(segments, "legal")))
        chosen = found.gather(1, self._tensor(_by_step(segments, "devices")).unsqueeze(1)).squeeze(1)
        values = self._networks.policy.values(states)
        last = np.cumsum([len(unroll) for unroll in unrolls]) - 1
        goes_on = self._tensor(np.array([segments[n].goes_on for n in last]))
        ends, rewards = _ends(segments)
        targets = vtrace(
            (chosen.detach() - self._tensor(_by_step(segments, "log_probabilities"))).view(shape).T,
            1.0 - self._tensor(ends).float().view(shape).T,
            self._tensor(rewards).float().view(shape).T,
            values.detach().view(shape).T,
            self._networks.policy.values(after[last]).detach() * goes_on,
            rho_bar,
            c_bar,
        )
        return Losses(
            policy=-(targets.advantages * chosen.view(shape).T).sum(),
            value=(targets.returns - values.view(shape).T).square().sum(),
            entropy=entropy(found).sum(),
        )

    def cost_loss(self, shards: Shards) -> Tensor:
        """Mean squared error of the cost model on shards, whose costs are in milliseconds, in parts of ``means``."""
        cost, unit = self._networks.cost, self._networks.cost_unit_ms
        found = cost(self._summed(cost.table, shards.tables, shards.counts))
        found = found * cost.factors(self._tensor(shards.settings)) * self._tensor(unit / shards.means).float()
        return nn.functional.mse_loss(found, self._tensor(shards.costs / shards.means).float())

    def replayed(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor, Tensor]:
        """States and logits of all M steps of N segments, [M, H] and [M, D]; and the states after each, [N, H].

        A state after a segment takes in the next piece, too; where an episode has ended there is none, and the state
        is that of the last step.
        """
        policy, cost = self._networks.policy, self._networks.cost
        ends = np.array([segment.stop + segment.goes_on for segment in segments])
        starts = np.array([segment.start for segment in segments])
        rows, steps = _rows_and_steps(segments)
        pieces = self._pieces(policy.table, segments, ends)
        # The states of N runs, each as if it were as long as the longest.
        run = np.minimum(starts + np.arange((ends - starts).max())[:, None], ends - 1)
        placed = run / [len(self._tasks.workspaces[segment.played.task].pieces) for segment in segments]
        before = np.stack([segment.played.states[segment.start] for segment in segments], axis=2)
        runs = policy.states(pieces[run, np.arange(len(segments))], self._tensor(placed).float(), self._tensor(before))
        states, after = runs[steps - starts[rows], rows], runs[ends - 1 - starts, np.arange(len(segments))]
        # What devices held, and what it costs.
        there = self._tensor(_by_device(segments, "legal", present=True))
        order, devices = (self._tensor(part) for part in _choices(segments, ends))
        held = sums_before(pieces.transpose(0, 1), order, devices, there.shape[1])[steps, rows]
        with torch.no_grad():
            priced = self._pieces(cost.table, segments, ends)
            sums = sums_before(priced.transpose(0, 1), order, devices, there.shape[1])[steps, rows]
            costs = relative_costs(cost(sums), cost(priced[steps, rows]), there)
        mean = mean_counts(self._tensor(steps), there)
        used = self._tensor(_by_device(segments, "used"))
        return states, after, policy.logits(states, held / mean[:, None, None], costs, used)

    def _pieces(self, table: nn.Module, segments: Sequence[Segment], ends: NDArray[np.int64]) -> Tensor:
        """Embeddings of the first pieces of N episodes, in the order of play, padded; [S, N, F]."""
        found = [
            self._tasks.tables(segment.played.task, segment.played.pieces[:end])
            for segment, end in zip(segments, ends, strict=True)
        ]
        tables, counts = (np.concatenate(part) for part in zip(*found, strict=True))
        parts = torch.split(self._summed(table, tables, counts), ends.tolist())
        return nn.utils.rnn.pad_sequence(list(parts))

    def _summed(self, table: nn.Module, tables: Integers, counts: Integers) -> Tensor:
        """Sums of the embeddings of the tables of P pieces, or devices; [M] and [P] -> [P, F]."""
        used, local = np.unique(tables, return_inverse=True)
        embedded = table(self._x[self._tensor(used)])
        begins = self._tensor(np.cumsum(counts) - counts)
        return nn.functional.embedding_bag(self._tensor(local.ravel()), embedded, begins, mode="sum")

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _rows_and_steps(segments: Sequence[Segment]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Segment of each of the M steps, and its place in the segment's episode; [M] each."""
    spans = [np.arange(segment.start, segment.stop) for segment in segments]
    return np.repeat(np.arange(len(segments)), [len(span) for span in spans]), np.concatenate(spans)


def _choices(segments: Sequence[Segment], ends: NDArray[np.int64]) -> tuple[Integers, Integers]:
    """Which step places each piece of N episodes, -1 in padding, and on which device; [S, N] each."""
    step = np.arange(ends.max())[:, None]
    devices = np.zeros((ends.max(), len(segments)), dtype=np.int64)
    for row, (segment, end) in enumerate(zip(segments, ends, strict=True)):
        devices[:end, row] = segment.played.devices[:end]
    return np.where(step < ends, step, -1), devices


def _by_step(segments: Sequence[Segment], name: str) -> NDArray[Any]:
    """What the steps of all segments have of an attribute; [M, ...]."""
    return np.concatenate([getattr(segment.played, name)[segment.start : segment.stop] for segment in segments])


def _by_device(segments: Sequence[Segment], name: str, present: bool = False) -> NDArray[Any]:
    """The same of an attribute by device, 0 in padding, or which devices there are; [M, D]."""
    parts = [getattr(segment.played, name)[segment.start : segment.stop] for segment in segments]
    found = np.zeros((sum(map(len, parts)), max(part.shape[1] for part in parts)), dtype=parts[0].dtype)
    begin = 0
    for part in parts:
        found[begin : begin + len(part), : part.shape[1]] = 1 if present else part
        begin += len(part)
    return found


def _ends(segments: Sequence[Segment]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which of the M steps end an episode, and what each is worth; [M] each."""
    lengths = [segment.stop - segment.start for segment in segments]
    ends, rewards = np.zeros(sum(lengths), dtype=np.bool_), np.zeros(sum(lengths))
    for segment, last in zip(segments, np.cumsum(lengths) - 1, strict=True):
        if not segment.goes_on:
            ends[last], rewards[last] = True, segment.played.reward
    return ends, rewards
