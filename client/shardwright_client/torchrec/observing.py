"""Tells the service what the embeddings of a training cost, step by step and rank by rank."""

import logging
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import torch
import torchrec
from torch import nn

from shardwright_client.client import Client
from shardwright_client.errors import InvalidArgument
from shardwright_client.observations import Observation
from shardwright_client.plans import Plan
from shardwright_client.torchrec.clients import check_client, opened
from shardwright_client.torchrec.reporting import Reporter
from shardwright_client.torchrec.running import check_runs, running
from shardwright_client.torchrec.timing import CudaClock, HostClock, StepMarks, StepTimer

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0


class PlanObserver:
    """Measures single steps of a training that runs on a plan, and reports their means from a thread.

    Make one on every rank after DistributedModelParallel, with the same numbers, and call ``step`` at the end of each
    training step, which is one forward and one backward pass, also where gradients are accumulated. Whatever goes wrong
    is logged; the training goes on. Nothing is observed of a model whose tables are not where the plan has them, or
    that runs on another number of ranks.

    Args:
        model: after DistributedModelParallel.
        plan: that it runs on, ``ShardwrightPlanner.answer``; None (another planner stood in) makes this do nothing.
        launch_id: under which the plan was asked for.
        client: None for one that the environment describes.
        sample_every: one step of so many is measured, the last one of each such row.
        report_every: steps that are reported in one.
        first_step: number of the next step, where training goes on from a checkpoint.
        environment: of the machine, added to the versions of the libraries and the device's name.

    Raises:
        InvalidArgument: steps are not counted from 1 up, or the plan is none of the service.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan | None,
        *,
        launch_id: str | None = None,
        client: Client | None = None,
        sample_every: int = 50,
        report_every: int = 1000,
        first_step: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= sample_every <= report_every or first_step < 0:
            raise InvalidArgument("sample_every must be from 1 to report_every, and first_step not below 0")
        if plan is not None and not isinstance(plan, Plan):
            raise InvalidArgument(f"plan must be ShardwrightPlanner.answer, not {type(plan).__name__}")
        self._every, self._report_every = sample_every, report_every
        self._first = self._step = self._begin = first_step
        self._clock = CudaClock() if _on_gpu(model) else HostClock()
        self._taken: list[dict[str, float]] = []
        self._pending: deque[tuple[int, StepMarks]] = deque()
        self._timer: StepTimer | None = None
        self._told_repeated = False
        if plan is not None:
            try:
                self._start(model, plan, client, launch_id, _environment() | dict(environment or {}))
            except InvalidArgument as error:
                logger.warning("nothing is observed, training goes on: %s", error)
            except Exception:
                logger.warning("nothing is observed, training goes on", exc_info=True)

    def _start(
        self,
        model: nn.Module,
        plan: Plan,
        client: Client | None,
        launch_id: str | None,
        environment: Mapping[str, str],
    ) -> None:
        check_client(client)
        with opened(client):
            pass  # where no service is named it fails here, not with the first report
        found = running(model)
        check_runs(found, plan)
        self._rank = found.rank
        timer = StepTimer(model, self._clock)
        self._timer, self._reporter = timer, Reporter(client, plan.plan_id, launch_id, environment)
        self._begin_step(timer, self._first)

    def step(self) -> None:
        """A training step has ended."""
        if self._timer is None:
            return
        marks, step = self._begin_step(self._timer, self._step + 1), self._step
        self._step += 1
        try:
            self._gather(step, marks)
        except Exception:
            logger.warning("observing ends, training goes on", exc_info=True)
            self._forget()
            self._timer.close()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Reports what is left, waits for so many seconds at most, and leaves the model as it was."""
        if self._timer is None:
            return
        self._timer.close()
        self._timer = None
        try:
            self._take_passed()
            self._report(self._step)
            self._reporter.close(timeout_s)
        except Exception:
            logger.warning("the last steps are not observed", exc_info=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin_step(self, timer: StepTimer, step: int) -> StepMarks | None:
        """The marks of the step before, where it was measured."""
        return timer.begin_step((step - self._first) % self._every == self._every - 1)

    def _gather(self, step: int, marks: StepMarks | None) -> None:
        if marks is not None and marks.repeated:
            self._tell_repeated(step)
        # A step that failed, and that the training left out, would be waited for without end.
        elif marks is not None and marks.whole:
            self._pending.append((step, marks))
        self._take_passed()
        if self._step >= self._end and not (self._pending and self._pending[0][0] < self._end):
            self._report(self._end)

    def _tell_repeated(self, step: int) -> None:
        if not self._told_repeated:
            logger.warning(
                "step %d is not observed, nor is any like it: an EmbeddingBagCollection was called more than once, but "
                "costs are of one call. Where gradients are accumulated, call step after each backward pass",
                step,
            )
        self._told_repeated = True

    def _forget(self) -> None:
        self._pending.clear()
        self._taken = []

    @property
    def _end(self) -> int:
        """The step before which the present report ends."""
        return self._begin + self._report_every

    def _take_passed(self) -> None:
        while self._pending and self._pending[0][1].passed(self._clock):
            step, marks = self._pending.popleft()
            if step >= self._end:
                self._report(self._end)
            costs = marks.costs_ms(self._clock)
            if costs is not None:
                self._taken.append(costs)

    def _report(self, end: int) -> None:
        if self._taken:
            means = {name: sum(costs[name] for costs in self._taken) / len(self._taken) for name in self._taken[0]}
            self._reporter.report(Observation(rank=self._rank, steps=(self._begin, end), **means))
        self._begin, self._taken = end, []


def _on_gpu(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _environment() -> dict[str, str]:
    # A nightly build is installed under another name: what is imported says its version.
    found = {module.__name__: str(module.__version__) for module in (torch, torchrec)}
    return found | ({"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})
