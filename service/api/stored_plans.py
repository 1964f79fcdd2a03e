"""Stored plans, and these as plans that run: what another one can be reached from.

Only what moves depend on is read, because a plan may have been stored by another release.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from service.api.answers import DeviceTraffic, PlanDiffAnswer
from service.api.conversion import move_answers
from service.api.schemas import PLAN_ID_PATTERN
from service.domain.callers import Caller
from service.domain.errors import PlanNotFound
from service.domain.moves import Move, held_before, moved_bytes, moves
from service.domain.plan import Problem, Running, Shard
from service.domain.ports import PlanStore, StoredPlan
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology


def found_plan(plans: PlanStore, plan_id: str, caller: Caller, **data: str) -> StoredPlan:
    """The plan stored under an id; ``data`` is that of the error.

    Raises:
        PlanNotFound: there is none for this caller.
        StorageUnavailable: the database cannot be reached.
    """
    found = plans.get(plan_id, caller) if re.match(PLAN_ID_PATTERN, plan_id) else None
    if found is None:
        raise PlanNotFound.under(plan_id, **data)
    return found


def running_plan(stored: StoredPlan, max_moved_bytes: int | None = None) -> Running:
    """A stored plan as the one that is running.

    Args:
        stored: the plan.
        max_moved_bytes: what may move from it; None for any number of bytes.
    """
    return Running(_tables(stored.request), _shards(stored.answer), max_moved_bytes)


def plan_diff(first: StoredPlan, second: StoredPlan) -> PlanDiffAnswer:
    """What moves where the second plan takes the place of the first; optimizer state is that of the second."""
    running, problem = running_plan(first), _problem(second.request)
    made = moves(problem, running, _shards(second.answer))
    before, after = {table.name for table in running.tables}, {table.name for table in problem.tables}
    device_count = max(len(_memories(first.request)), len(_memories(second.request)))
    return PlanDiffAnswer(
        from_plan_id=first.plan_id,
        to_plan_id=second.plan_id,
        from_max_cost_ms=first.max_cost_ms,
        to_max_cost_ms=second.max_cost_ms,
        max_cost_difference_ms=round(second.max_cost_ms - first.max_cost_ms, 6),
        moved_bytes=moved_bytes(made),
        moves=move_answers(made),
        devices=_traffic(made, device_count),
        removed_tables=[table.name for table in running.tables if table.name not in after],
        added_tables=[table.name for table in problem.tables if table.name not in before],
        changed_tables=sorted((before & after) - set(held_before(problem, running))),
    )


def _traffic(made: tuple[Move, ...], device_count: int) -> list[DeviceTraffic]:
    come, go = Counter[int](), Counter[int]()
    for move in made:
        come[move.device] += move.bytes
        go[move.origin] += move.bytes
    return [DeviceTraffic(device=i, bytes_in=come[i], bytes_out=go[i]) for i in range(device_count)]


def _problem(request: Mapping[str, Any]) -> Problem:
    return Problem(
        tables=_tables(request),
        topology=Topology(request["devices"]["hardware"], _memories(request)),
        global_batch_size=request["global_batch_size"],
        optimizer=Optimizer(request["optimizer"]),
    )


def _memories(request: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(request["devices"]["memory_bytes"])


def _tables(request: Mapping[str, Any]) -> tuple[Table, ...]:
    return tuple(
        Table(
            body["name"],
            body["num_embeddings"],
            body["embedding_dim"],
            body["pooling_factor"],
            data_type=DataType(body["data_type"]),
        )
        for body in request["tables"]
    )


def _shards(answer: Mapping[str, Any]) -> tuple[Shard, ...]:
    placed = [(body["table"], body["columns"], body["device"]) for body in answer["shards"]]
    return tuple(Shard(table, start, stop, device) for table, (start, stop), device in placed)
