"""What a rank of the comparison does: it trains under every plan in turns, and times the steps."""

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.step_models import LEARNING_RATE, PooledModel, features, sharders
from benchmarks.step_report import Times
from benchmarks.step_tasks import RANKS, Batch, batches
from service.domain.plan import Problem
from service.profiling.arena import keep_freed_memory
from service.profiling.comm_bench import turns
from shardwright_client.torchrec.timing import HostClock, StepTimer

_WARMUP = 3
_OBSERVED = 12


@dataclass(frozen=True, slots=True)
class Work:
    """What the ranks train.

    Attributes:
        problem: the tables.
        plans: by name.
        rounds: blocks of each plan.
        steps: timed steps of a block; one that is not timed goes before them.
        batches: different global batches, which the steps take in turn.
        seed: of their lookups.
    """

    problem: Problem
    plans: Mapping[str, ShardingPlan]
    rounds: int
    steps: int
    batches: int
    seed: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What a rank measured under one plan.

    Attributes:
        step_ms: time of a step in each block, milliseconds; [rounds].
        processor_ms: what of it the processor was busy, median.
        parts_ms: medians of the parts of the embedding, by the names of an observation.
        loss: of the last step on this rank's samples.
    """

    step_ms: Times
    processor_ms: float
    parts_ms: Mapping[str, float]
    loss: float


@dataclass(frozen=True, slots=True)
class _Given:
    """A rank's share of a batch."""

    features: object
    labels: torch.Tensor


class _Training:
    """One model under one plan, and the step that it is at."""

    def __init__(self, work: Work, plan: ShardingPlan, given: Sequence[_Given]) -> None:
        self.model = DistributedModelParallel(
            PooledModel(work.problem), device=torch.device("cpu"), plan=plan, sharders=sharders()
        )
        own = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        self._optimizer = torch.optim.SGD(own.values(), lr=LEARNING_RATE)
        self._given, self._step = given, 0
        self.loss = 0.0

    def step(self) -> None:
        """Forward, backward with the tables' update, and the dense layer's update."""
        given = self._given[self._step % len(self._given)]
        self._step += 1
        self._optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(given.features), given.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.loss = loss.item()


def train(work: Work, folder: Path, cores: Sequence[int], rank: int) -> dict[str, Trained]:
    """A rank's life, on a core of its own and one thread.

    Args:
        work: the same on all ranks.
        folder: where the ranks meet.
        cores: one of each rank.
        rank: this one.
    """
    _settle(cores[rank])
    store = dist.FileStore(str(folder / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    given = [_given(work, batch.part(rank, RANKS), rank) for batch in batches(work.problem, work.batches, work.seed)]
    trainings = {name: _Training(work, plan, given) for name, plan in work.plans.items()}
    times = _block_times(trainings, work)
    return {
        name: Trained(times[name][0], float(np.median(times[name][1])), _parts(found), found.loss)
        for name, found in trainings.items()
    }


def _settle(core: int) -> None:
    """On one core, before any thread begins."""
    os.sched_setaffinity(0, {core})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _given(work: Work, batch: Batch, rank: int) -> _Given:
    generator = torch.Generator().manual_seed(rank)
    labels = torch.randint(0, 2, (batch.lengths.shape[1],), generator=generator).float()
    return _Given(features(work.problem, batch), labels)


def _block_times(trainings: Mapping[str, _Training], work: Work) -> dict[str, Times]:
    """Milliseconds of a step by plan, [elapsed and busy, rounds]; each round takes the plans in an order of its own."""
    for training in trainings.values():
        for _ in range(_WARMUP):
            training.step()
    times = {name: np.empty((2, work.rounds)) for name in trainings}
    names = [*trainings]
    for number in range(work.rounds):
        for name in (names[position] for position in turns(len(names), number)):
            times[name][:, number] = _block_ms(trainings[name], work.steps)
    return times


def _block_ms(training: _Training, steps: int) -> tuple[float, float]:
    training.step()
    dist.barrier()
    started, busy = perf_counter(), process_time()
    for _ in range(steps):
        training.step()
    dist.barrier()
    return (perf_counter() - started) * 1e3 / steps, (process_time() - busy) * 1e3 / steps


def _parts(training: _Training) -> dict[str, float]:
    """Medians of steps that are marked, which takes a little time of its own: none of the timed ones are."""
    clock = HostClock()
    timer = StepTimer(training.model, clock)
    found = []
    for _ in range(_OBSERVED):
        timer.begin_step(True)
        training.step()
        marks = timer.begin_step(False)
        if marks is not None and (costs := marks.costs_ms(clock)) is not None:
            found.append(costs)
    timer.close()
    return {name: float(np.median([costs[name] for costs in found])) for name in found[0]} if found else {}
