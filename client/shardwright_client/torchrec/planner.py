"""A planner with the interface of TorchRec's own that asks a Shardwright service."""

import logging
import os
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan

from shardwright_client.client import Client
from shardwright_client.errors import (
    Busy,
    ConnectionFailed,
    Infeasible,
    InvalidArgument,
    ServiceFailed,
    ShardwrightError,
    Timeout,
)
from shardwright_client.json_values import Json, encoded
from shardwright_client.plans import Estimate, Plan
from shardwright_client.tables import Optimizer
from shardwright_client.torchrec.errors import NotModelled
from shardwright_client.torchrec.loading import load_unlike_widths
from shardwright_client.torchrec.modules import find_tables
from shardwright_client.torchrec.placements import to_sharding_plan, to_shards
from shardwright_client.torchrec.questions import Question, model_question
from shardwright_client.torchrec.samples import measured_lookups

logger = logging.getLogger(__name__)

RUN_ID_VARIABLE = "TORCHELASTIC_RUN_ID"
_NO_RUN_ID = "none"
"""What torchrun calls a run that was given no id: all such runs of a host."""

_AWAY = (ConnectionFailed, Timeout, Busy, ServiceFailed)
"""Errors that say nothing of the question."""

_ESTIMATED = ("tables", "devices", "global_batch_size", "optimizer", "constraints")
_COST_MODELS = ("compute", "communication")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What rank 0 tells the others."""

    sharding_plan: ShardingPlan | None
    answer: Plan | None
    launch_id: str
    error: Exception | None


class ShardwrightPlanner(EmbeddingShardingPlanner):  # type: ignore[misc]  # TorchRec has no types
    """Plans with a Shardwright service where ``EmbeddingShardingPlanner`` was used; takes its arguments too.

    ``topology``, ``batch_size`` (of a rank), ``constraints`` and ``storage_reservation`` mean what they mean there, but
    that a batch size must be given, where TorchRec's planner takes 512; ``timeout_seconds`` is the plan's
    ``time_limit_ms``. The rest is for TorchRec's planner, should it have to stand in.
    Tables are planned as if their lookups had no weights.

    Attributes:
        answer: the service's plan; None before, and where TorchRec's planner stood in.
        launch_id: under which it was asked for.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        *arguments: Any,
        hardware: str,
        client: Client | None = None,
        optimizer: Optimizer | None = None,
        samples: Sequence[Any] = (),
        launch_id: str | None = None,
        request: Json | None = None,
        fallback: bool = False,
        **further: Any,
    ) -> None:
        """Asks nothing yet.

        Args:
            topology: the ranks; None for TorchRec's own idea of the process group.
            batch_size: samples of a rank in a step.
            *arguments: of TorchRec's planner.
            hardware: key of the service's cost models, for example ``cpu-fbgemm`` or ``h100``.
            client: None for one that the environment describes; only the rank that asks makes it.
            optimizer: of the tables; None for what they and the sharders say.
            samples: KeyedJaggedTensors to measure lookups in, see ``measured_lookups``; without any, the constraints'
                pooling factors are taken, and the service assumes how often ids repeat. Part of the question: ranks
                that call ``plan`` each by itself get one plan only where all have the same.
            launch_id: the same for all ranks of a launch and no other; None for torchrun's ``--rdzv-id``, and one of
                this planner's own where there is none.
            request: further members of POST /plan, such as ``constraints`` by table name, ``algorithm`` or ``seed``.
            fallback: whether TorchRec's planner stands in when the service cannot be reached, has no room or fails.
            **further: of TorchRec's planner.

        Raises:
            NotModelled: callbacks or a plan loader are given, which work on TorchRec's own search.
            InvalidArgument: ``batch_size`` or ``request`` is none.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InvalidArgument(f"batch_size must be the samples of a rank in a step, 1 or more, is {batch_size!r}")
        if not isinstance(request or {}, Mapping):
            raise InvalidArgument(f"request must be a mapping of members of POST /plan, is a {type(request).__name__}")
        super().__init__(topology, batch_size, *arguments, **further)
        if self._callbacks or self.plan_loader is not None:
            raise NotModelled("callbacks and plan_loader work on TorchRec's own search: leave them out")
        self._hardware, self._client, self._optimizer = hardware, client, optimizer
        self._samples, self._request, self._fallback = samples, dict(request or {}), fallback
        self.launch_id = launch_id or _run_id() or uuid.uuid4().hex
        self.answer: Plan | None = None

    def plan(self, module: nn.Module, sharders: Sequence[Any]) -> ShardingPlan:
        """A plan for the module's tables.

        Raises:
            NotModelled: TorchRec would shard what Shardwright does not plan.
            ShardwrightError: the service said no, or could not be asked.
        """
        self.answer = None
        question = self.question(module, sharders)
        if not question.tables:
            logger.warning("nothing is planned: the model has no module with tables that a sharder is for")
            return ShardingPlan({})
        try:
            with self._service() as client:
                self.answer = client.plan(question.request)
        except _AWAY as error:
            if not self._fallback:
                raise
            logger.warning("TorchRec's planner stands in for Shardwright's, fallback is on: %s", error)
            return super().plan(module, list(sharders))
        except Infeasible:
            logger.warning(
                "bytes of a rank for tables are what the topology gives less what %s keeps for inputs and the dense "
                "part: %s", type(self._storage_reservation).__name__, question.request["devices"]["memory_bytes"],
            )  # fmt: skip
            raise
        logger.info(
            "Shardwright plan %s: %.3f ms a step predicted for the slowest of %d ranks",
            self.answer.plan_id, self.answer.max_cost_ms, self._topology.world_size,
        )  # fmt: skip
        return to_sharding_plan(
            self.answer.shards,
            question.tables,
            self._topology.compute_device,
            self._topology.local_world_size,
            self._constraints,
        )

    def collective_plan(
        self, module: nn.Module, sharders: Sequence[Any] | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Rank 0 of the group asks; all get its plan, or raise its error.

        Args:
            module: the model, the same on all ranks.
            sharders: None for TorchRec's default ones.
            pg: None for all ranks.

        Raises:
            ShardwrightError: as ``plan``, on every rank.
            InvalidArgument: there is no group, or the topology has more ranks, on every rank.
        """
        if pg is None and not dist.is_initialized():
            raise InvalidArgument(
                "there is no process group: call torch.distributed.init_process_group first; a process that is alone "
                "calls plan instead"
            )
        group = pg or dist.group.WORLD
        told: list[Any] = [None]
        if dist.get_rank(group) == 0:
            sharders = get_default_sharders() if sharders is None else sharders
            told = [self._outcome(module, sharders, dist.get_world_size(group))]
        dist.broadcast_object_list(told, group=group, group_src=0)
        outcome: _Outcome = told[0]
        load_unlike_widths()
        self.answer, self.launch_id = outcome.answer, outcome.launch_id
        if outcome.error is not None:
            raise outcome.error
        return outcome.sharding_plan

    def estimate(self, sharding_plan: ShardingPlan, module: nn.Module, sharders: Sequence[Any]) -> Estimate:
        """What a plan for the module, of TorchRec's planner say, costs by the service's models.

        Raises:
            NotModelled: it shards a table otherwise than table-wise or column-wise.
            ShardwrightError: the service said no, or could not be asked.
        """
        question = self.question(module, sharders)
        asked = {name: question.request[name] for name in _ESTIMATED if name in question.request}
        asked["shards"] = encoded(to_shards(sharding_plan, question.tables))
        pinned = question.request.get("models") or {}
        asked["models"] = {name: pinned[name] for name in _COST_MODELS if name in pinned}
        with self._service() as client:
            return client.estimate(asked)

    def question(self, module: nn.Module, sharders: Sequence[Any]) -> Question:
        """What the service is asked for a module.

        Raises:
            NotModelled: TorchRec would shard what Shardwright does not plan.
        """
        tables = find_tables(module, sharders)
        if not tables:
            return Question((), {})
        names = {table.table for table in tables}
        strange = sorted(name for name in self._constraints or {} if name not in names)
        if strange:
            logger.warning("constraints name tables that the sharders have none of: %s", ", ".join(strange))
        weighted = [table.name for table in tables if table.weighted]
        if weighted:
            logger.warning("costs are predicted as if lookups had no weights, but %s have", ", ".join(weighted))
        reserved = self._storage_reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self._constraints,
        )
        further = self._request | {"launch_id": self.launch_id}
        if self._timeout_seconds:
            further = {"time_limit_ms": round(self._timeout_seconds * 1000)} | further
        return model_question(
            tables,
            reserved,
            self._batch_size,
            self._hardware,
            constraints=self._constraints,
            lookups=measured_lookups(tables, self._samples) if self._samples else None,
            optimizer=self._optimizer,
            further=further,
        )

    def _outcome(self, module: nn.Module, sharders: Sequence[Any], ranks: int) -> _Outcome:
        """A plan or an error; nothing else may leave rank 0, or the others would wait for it."""
        try:
            self._check_ranks(ranks)
            return _Outcome(self.plan(module, sharders), self.answer, self.launch_id, None)
        except Exception as error:
            return _Outcome(None, None, self.launch_id, _picklable(error))

    def _check_ranks(self, ranks: int) -> None:
        planned = self._topology.world_size
        if planned > ranks:
            raise InvalidArgument(
                f"the topology has {planned} ranks but the process group {ranks}: make one of world_size {ranks}"
            )
        if planned < ranks:
            logger.warning("the plan is for %d ranks, as the topology says; the process group has %d", planned, ranks)

    @contextmanager
    def _service(self) -> Iterator[Client]:
        if self._client is not None:
            yield self._client
        else:
            with Client() as client:
                yield client


def _run_id() -> str | None:
    run_id = os.environ.get(RUN_ID_VARIABLE, _NO_RUN_ID)
    return None if run_id == _NO_RUN_ID else run_id


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301, made here a moment ago
    except Exception:
        return ShardwrightError(f"{type(error).__name__}: {error}")
    return error
