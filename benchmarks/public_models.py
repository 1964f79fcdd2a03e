"""Public recommendation models of up to 22 TiB, planned whole."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks import shared_data
from benchmarks.planner_answers import Answer
from benchmarks.search_tasks import BATCH_SIZE, HARDWARE
from service.domain.plan import Problem
from service.domain.tables import Optimizer
from service.domain.topology import Topology
from service.profiling.pools import read_pool


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model's tables, and devices to place them on.

    Attributes:
        name: of its file.
        devices: number of them.
        memory_gib: of each.
        batch_size: global.
        limit_s: time that our planners get.
    """

    name: str
    devices: int
    memory_gib: int
    batch_size: int = BATCH_SIZE
    limit_s: float = 2.0


MODELS = (
    PublicModel("criteo_kaggle", 4, 1, batch_size=2_048),
    PublicModel("mlperf_dlrm_dcnv2", 8, 80),
    PublicModel("criteo_tb_cap40M", 8, 16),
    PublicModel("nvidia_synthetic_large", 16, 80),
    PublicModel("nvidia_synthetic_colossal", 256, 141, limit_s=20.0),
)


def model_problem(model: PublicModel) -> Problem:
    """A model as a problem: fp32, sgd, buffers counted; tables with as many features as share them."""
    path = shared_data.SHARED / "data" / "tables" / f"{model.name}.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["tables"]
    tables = tuple(
        replace(table, num_features=len(entry.get("hotness_per_feature", [entry["pooling_factor"]])))
        for table, entry in zip(read_pool(path), entries, strict=True)
    )
    topology = Topology(HARDWARE, (model.memory_gib * 2**30,) * model.devices)
    return Problem(tables, topology, model.batch_size, Optimizer.SGD)


def model_lines(model: PublicModel, problem: Problem, answers: Mapping[str, Answer]) -> list[str]:
    """A model's table: what each planner answered."""
    weights = sum(table.weight_bytes for table in problem.tables) / 2**30
    largest = max(table.weight_bytes for table in problem.tables) / 2**30
    return [
        f"### {model.name}: {len(problem.tables):,} tables x {model.devices} devices of {model.memory_gib} GiB",
        "",
        f"{weights:,.0f} GiB of weights, the largest table {largest:,.1f} GiB; batch {model.batch_size:,}; our "
        f"planners have {model.limit_s:g} s.",
        "",
        "| planner | outcome | predicted cost, ms | gap to the bound | shards | most of a table | seconds |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_row(name, answer, answers) for name, answer in answers.items()),
        "",
    ]


def _row(name: str, answer: Answer, answers: Mapping[str, Answer]) -> str:
    bounds = [other.bound_ms for other in answers.values() if not math.isnan(other.bound_ms)]
    outcome = f"{answer.outcome.value}{f' ({answer.reason})' if answer.reason else ''}"
    if not answer.priced:
        return f"| {name} | {outcome} | - | - | - | - | {answer.seconds:.2f} |"
    gap = f"{answer.cost_ms / max(bounds) - 1:.1%}" if bounds else "-"
    pieces = [shard.table for shard in answer.shards]
    most = max(Counter(pieces).values())
    cells = f"{answer.cost_ms:.1f} | {gap} | {len(pieces):,} | {most} | {answer.seconds:.2f}"
    return f"| {name} | {outcome} | {cells} |"
