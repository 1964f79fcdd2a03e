"""Observations of launchers as compute measurements: what a device held under a plan is a combination of tables.

What such rows can tell: how long real jobs take on real ids, with the dense part in between and with neighbours on the
machine. No campaign measures that, and a level that all of them are off by is drift.

What they cannot tell:

- *Which combinations are dear.* A planner chose them, to be cheap and alike: they are marked ``CHOSEN_BY`` its compute
  model, as those of active campaigns are, and no share of them is a share of what may be asked.
- *What a single table costs.* A device of a plan holds tens of tables, more often than not of all parts of the split.
  Such a combination has ``split`` None and is neither trained nor judged on, since it would tell of tables that are
  judged on; what is left are devices with few tables.
- *Times as the bench takes them.* Times are means over a step range, not medians of repeats; ids are those of the job,
  not drawn from the histogram that the caller gave; nothing was displaced from caches but by the job itself. So a row
  says ``bench`` only where its launcher did, and ``LAUNCHERS_BENCH`` else, which no campaign has.
- *Anything of exchanges.* An exchange is measured on all ranks of a step together, from a common clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, comparable
from service.domain.observations import ObservedPlan, StoredObservation
from service.domain.tables import DataType, Optimizer, PoolingMode, ReuseHistogram, Table

CAMPAIGN = "observations"

LAUNCHERS_BENCH = "0"
"""Bench of times that a launcher took by means of its own."""

LEAST_STEPS = 20
"""Fewest steps of a rank that make a row."""


def observed_rows(observed: Iterable[ObservedPlan]) -> list[ComputeMeasurement]:
    """One row for each rank of a launch on one environment; a rank with too few steps, or without tables, has none.

    Forward and backward are medians over the rank's step ranges, each counted as often as it has steps, and spreads
    their interquartile ranges, 0 for one range. ``index`` is the id of the rank's first observation, ``repeats`` the
    number of its steps, ``environment`` what the launcher says, with ``bench``, ``device`` and ``CHOSEN_BY`` filled in.
    """
    return [row for plan in observed for row in _rows(plan)]


def agreeing(rows: Iterable[ComputeMeasurement], measured: Sequence[ComputeMeasurement]) -> list[ComputeMeasurement]:
    """The rows of the bench and device that are trained on, which the measurements alone decide.

    ``comparable`` goes by the newest bench and the last device: of both together it would let any launcher that names
    another bench or device take the place of all measurements. None agree where nothing was measured.
    """
    known = {_taken(row.environment) for row in comparable(measured)}
    return [row for row in rows if _taken(row.environment) in known]


def _taken(environment: Mapping[str, str]) -> tuple[int, str | None]:
    """How and on what times were taken."""
    return int(environment.get("bench", "1")), environment.get("device")


def _rows(plan: ObservedPlan) -> Iterator[ComputeMeasurement]:
    ranks: dict[tuple[Any, ...], list[StoredObservation]] = defaultdict(list)
    for stored in plan.observations:
        each = stored.observation
        ranks[each.launch_id, each.rank, tuple(sorted(each.environment.items()))].append(stored)
    held = _held(plan)
    for (_, rank, environment), found in ranks.items():
        tables, steps = held.get(rank, ()), [stored.observation.steps for stored in found]
        forward, backward = (
            _quartiles([getattr(stored.observation, part) for stored in found], steps)
            for part in ("forward_compute_ms", "backward_compute_ms")
        )
        if tables and sum(steps) >= LEAST_STEPS and min(forward[1], backward[1]) > 0:
            yield ComputeMeasurement(
                campaign=CAMPAIGN,
                index=found[0].id,
                hardware=plan.hardware,
                tables=tables,
                batch_size=plan.request["global_batch_size"],
                optimizer=Optimizer(plan.request["optimizer"]),
                forward_ms=forward[1],
                backward_ms=backward[1],
                forward_spread=(forward[2] - forward[0]) / forward[1],
                backward_spread=(backward[2] - backward[0]) / backward[1],
                repeats=sum(steps),
                environment=_environment(dict(environment), plan.answer),
                measured_at=max(stored.observed_at for stored in found),
            )


def _environment(said: Mapping[str, str], answer: Mapping[str, Any]) -> dict[str, str]:
    return {"bench": LAUNCHERS_BENCH, "device": "unknown", **said, CHOSEN_BY: answer["models"]["compute"]}


def _held(plan: ObservedPlan) -> dict[int, tuple[Table, ...]]:
    """The shards of each device as tables of their width."""
    tables = {body["name"]: _table(body) for body in plan.request["tables"]}
    held: dict[int, list[Table]] = defaultdict(list)
    for shard in plan.answer["shards"]:
        start, stop = shard["columns"]
        held[shard["device"]].append(tables[shard["table"]].sliced(stop - start))
    return {device: tuple(each) for device, each in held.items()}


def _table(body: Mapping[str, Any]) -> Table:
    """A table of a stored request, of whatever release."""
    histogram = body.get("reuse_histogram")
    return Table(
        name=body["name"],
        num_embeddings=body["num_embeddings"],
        embedding_dim=body["embedding_dim"],
        pooling_factor=body["pooling_factor"],
        num_features=body.get("num_features", 1),
        pooling_mode=PoolingMode(body.get("pooling_mode", PoolingMode.SUM)),
        data_type=DataType(body.get("data_type", DataType.FP32)),
        distinct_rows=body.get("distinct_rows"),
        reuse_histogram=histogram and ReuseHistogram(histogram["batch_size"], tuple(histogram["fractions"])),
    )


def _quartiles(values: Sequence[float], steps: Sequence[int]) -> tuple[float, float, float]:
    """First quartile, median and third quartile of values that each count as often as they have steps."""
    ordered, quartiles = sorted(zip(values, steps, strict=True)), []
    for share in (0.25, 0.5, 0.75):
        left = share * sum(steps)
        for value, count in ordered:
            left -= count
            if left <= 0:
                quartiles.append(value)
                break
    first, middle, third = quartiles
    return first, middle, third
