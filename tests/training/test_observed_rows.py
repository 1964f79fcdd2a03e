from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, comparable
from service.domain.observations import Observation, ObservedPlan, StoredObservation
from service.domain.tables import DataType, Optimizer, PoolingMode, ReuseHistogram, Table
from service.training.compute_dataset import measurements_dataset
from service.training.observed_rows import CAMPAIGN, LEAST_STEPS, agreeing, observed_rows

WHEN = datetime(2026, 3, 4, tzinfo=UTC)
HISTOGRAM = {"batch_size": 512, "fractions": [0.5, 0.5, *[0.0] * 15]}
WIDE = {
    "name": "wide", "num_embeddings": 1000, "embedding_dim": 64, "pooling_factor": 2.5, "num_features": 2,
    "pooling_mode": "mean", "data_type": "fp16", "distinct_rows": 100.0, "reuse_histogram": HISTOGRAM,
}  # fmt: skip
NARROW = {"name": "narrow", "num_embeddings": 77, "embedding_dim": 8, "pooling_factor": 1.0}


def observed(observations: Sequence[tuple[int, Observation]]) -> ObservedPlan:
    """A plan of two tables for three devices, of which the last has none."""
    shards = [
        {"table": "wide", "columns": [0, 48], "device": 0},
        {"table": "narrow", "columns": [0, 8], "device": 1},
        {"table": "wide", "columns": [48, 64], "device": 1},
    ]
    answer: dict[str, Any] = {"models": {"compute": "cpu-x/compute/7"}, "shards": shards}
    stored = tuple(
        StoredObservation(identity, each, answer, WHEN + timedelta(seconds=identity)) for identity, each in observations
    )
    request = {"tables": [WIDE, NARROW], "global_batch_size": 512, "optimizer": "adagrad"}
    return ObservedPlan("p", "cpu-x", request, answer, stored)


def observation(rank: int = 0, steps: int = 100, ms: float = 2.0, **changes: Any) -> Observation:
    environment = changes.pop("environment", {"device": "x", "bench": "1"})
    return replace(Observation("", rank, 0, steps, ms, 2 * ms, None, None, None, environment), **changes)


def test_a_rank_is_the_combination_that_it_held() -> None:
    (row, other) = observed_rows([observed([(5, observation()), (6, observation(1))])])
    table = Table(
        "wide", 1000, 48, 2.5, 2, PoolingMode.MEAN, DataType.FP16, 100.0,
        ReuseHistogram(512, tuple(HISTOGRAM["fractions"])),  # type: ignore[arg-type]
    )  # fmt: skip
    assert row == ComputeMeasurement(
        campaign=CAMPAIGN,
        index=5,
        hardware="cpu-x",
        tables=(table,),
        batch_size=512,
        optimizer=Optimizer.ADAGRAD,
        forward_ms=2.0,
        backward_ms=4.0,
        forward_spread=0.0,
        backward_spread=0.0,
        repeats=100,
        environment={"device": "x", "bench": "1", CHOSEN_BY: "cpu-x/compute/7"},
        measured_at=WHEN + timedelta(seconds=5),
    )
    assert row.chosen
    assert other.tables == (Table("narrow", 77, 8, 1.0), table.sliced(16))
    assert len(measurements_dataset([row, other])) == 2


def test_ranges_of_a_rank_make_one_row_by_how_many_steps_they_have() -> None:
    ranges = [(1, observation(steps=10, ms=9.0)), (2, observation(steps=60)), (4, observation(steps=30, ms=3.0))]
    (row,) = observed_rows([observed(ranges)])
    assert (row.forward_ms, row.backward_ms, row.repeats, row.index) == (2.0, 4.0, 100, 1)
    assert (row.forward_spread, row.backward_spread) == (0.5, 0.5)
    assert row.measured_at == WHEN + timedelta(seconds=4)


def test_launches_and_environments_are_kept_apart() -> None:
    others = [observation(launch_id="night"), observation(environment={"device": "y", "bench": "1"})]
    rows = observed_rows([observed([(1, observation()), *enumerate(others, start=2)])])
    assert [row.index for row in rows] == [1, 2, 3]


@pytest.mark.parametrize(
    "left_out",
    [
        observation(steps=LEAST_STEPS - 1),
        observation(rank=2),
        observation(forward_compute_ms=0.0),
        observation(backward_compute_ms=0.0),
    ],
)
def test_what_tells_nothing_of_compute_is_no_row(left_out: Observation) -> None:
    assert observed_rows([observed([(1, left_out)])]) == []


def test_enough_steps_may_come_from_several_ranges() -> None:
    halves = [(i, observation(steps=LEAST_STEPS // 2)) for i in range(2)]
    assert len(observed_rows([observed(halves)])) == 1


def measured(environment: dict[str, str], index: int = 0) -> ComputeMeasurement:
    (row,) = observed_rows([observed([(1, observation())])])
    return replace(row, campaign="c", index=index, environment=environment, measured_at=WHEN)


def test_rows_join_measurements_of_their_bench_and_device_alone() -> None:
    stored = [measured({"bench": "1", "device": "x"}), measured({"bench": "1", "device": "z"}, 1)]
    stored[1] = replace(stored[1], measured_at=WHEN - timedelta(days=1))
    said: list[dict[str, str]] = [
        {"device": "x", "bench": "1"}, {"device": "x"}, {"device": "z", "bench": "1"}, {"bench": "1"},
        {"device": "x", "bench": "999999999"}, {},
    ]  # fmt: skip
    rows = observed_rows([observed([(i, observation(environment=each)) for i, each in enumerate(said)])])
    assert len(rows) == len(said)
    found = agreeing(rows, stored)
    assert [row.index for row in found] == [0]
    assert {row.campaign for row in comparable([*stored, *found])} == {"c", CAMPAIGN}
    assert agreeing(rows, []) == []


def test_times_that_a_launcher_took_its_own_way_never_mix_with_a_bench() -> None:
    rows = observed_rows([observed([(1, observation(environment={"device": "x"}))])])
    assert comparable([measured({"bench": "1", "device": "x"}), *rows]) == [measured({"bench": "1", "device": "x"})]


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.integers(1, 50)), min_size=1, max_size=8))
def test_quartiles_are_those_of_the_steps_one_by_one(ranges: list[tuple[float, int]]) -> None:
    observations = [(i, observation(steps=steps + LEAST_STEPS, ms=ms)) for i, (ms, steps) in enumerate(ranges)]
    (row,) = observed_rows([observed(observations)])
    steps = sorted(ms for ms, count in ranges for _ in range(count + LEAST_STEPS))

    def at(share: float) -> float:
        return steps[max(-int(-share * len(steps) // 1), 1) - 1]

    assert row.forward_ms == at(0.5)
    assert row.forward_spread == pytest.approx((at(0.75) - at(0.25)) / at(0.5))
