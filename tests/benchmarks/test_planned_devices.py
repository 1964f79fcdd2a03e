"""Planned devices: equally many rows each way, both ways' plans of the same tasks, and errors with their sign."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import planned_devices
from benchmarks.held_rows import HeldRows
from benchmarks.own_rows import OwnRows
from benchmarks.planned_devices import CHOSEN, DRAWN, PLANNED_BY, RANDOM, as_many, combinations, log_errors, measure
from service.cost_models.compute import ComputeModel
from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, Split, table_part
from service.domain.ports import Embeddings, Floats
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.campaign import CampaignSettings
from service.profiling.combinations import Combination
from service.profiling.compute_bench import BenchSettings, ComputeBench
from service.profiling.pools import generated_pool
from tests.fakes import FakeCompute, fake_models

SETTINGS = CampaignSettings("cpu-fbgemm", 0, (Optimizer.SGD,), (DataType.FP32, DataType.FP16), 2**30)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def rows(count: int, chosen_by: str | None = None) -> list[ComputeMeasurement]:
    environment = {CHOSEN_BY: chosen_by} if chosen_by else {}
    table = Table("t", 1_000, 16, 2.0)
    return [
        ComputeMeasurement("c", i, "cpu-fbgemm", (table,), 512, Optimizer.SGD, 1.0, 3.0, 0.1, 0.1, 5, environment, NOW)
        for i in range(count)
    ]


@pytest.mark.parametrize(("random", "chosen", "kept"), [(10, 3, 7), (10, 0, 10), (4, 6, 0)])
def test_both_ways_train_on_equally_many_rows(random: int, chosen: int, kept: int) -> None:
    known = OwnRows(rows(random), rows(chosen, "models"), [], [])
    found = as_many(known)
    assert {len(part) for part in found.values()} == {random}
    assert found[RANDOM] == known.random
    assert [row.chosen for row in found[CHOSEN]] == [False] * kept + [True] * (random - kept)


class Turned(FakeCompute):
    """A model that finds wide tables cheap, so that its plans are others."""

    def head(self, sums: Embeddings) -> Floats:
        costs = super().head(sums)
        return costs / (1.0 + costs)


def test_each_model_plans_the_same_tasks_of_held_out_tables() -> None:
    communication = fake_models().communication
    found = combinations(generated_pool(), SETTINGS, {RANDOM: FakeCompute(), CHOSEN: Turned()}, communication, 12)
    by_name = {name: [c for told, c in found if told == name] for name in (*PLANNED_BY.values(), DRAWN)}
    assert [len(each) for each in by_name.values()] == [12, 12, 12]
    assert {table_part(table) for _, c in found for table in c.tables} == {Split.TEST}
    one, other = (by_name[name] for name in PLANNED_BY.values())
    assert one != other
    # The whole first task is among the devices of both.
    batch_size, optimizer = one[0].batch_size, one[0].optimizer
    tasks = [
        {t.name: t for c in each if (c.batch_size, c.optimizer) == (batch_size, optimizer) for t in c.tables}
        for each in (one, other)
    ]
    assert tasks[0]
    assert {name: t.num_embeddings for name, t in tasks[0].items()} == {
        name: t.num_embeddings for name, t in tasks[1].items()
    }
    precisions = [c.tables[0].data_type for _, c in found]
    assert sum(a is not b for a, b in pairwise(precisions)) == 1


def test_refusals_are_said_once_for_each_campaign() -> None:
    bench = ComputeBench(BenchSettings(memory_bytes=2**24, warmup=0, repeats=2, least_repeats=2))
    small = Combination((Table("t", 100, 16, 1.0),), 64, Optimizer.SGD)
    huge = replace(small, tables=(Table("t", 10**8, 64, 1.0),))
    store = HeldRows()
    said = measure(bench, SETTINGS, [(DRAWN, small), (DRAWN, huge), (DRAWN, huge)], store)
    assert [row.index for row in store.rows] == [0]
    assert len(said) == 1
    assert said[0].startswith(f"{DRAWN}: 2 refused")


def test_what_was_measured_before_ctrl_c_is_kept() -> None:
    class Stopped(ComputeBench):
        def measure(self, tables: object, batch_size: int, *others: object) -> object:  # type: ignore[override]
            if batch_size == 128:
                raise KeyboardInterrupt
            return super().measure(tables, batch_size, *others)  # type: ignore[arg-type]

    bench = Stopped(BenchSettings(memory_bytes=2**24, warmup=0, repeats=2, least_repeats=2))
    small = Combination((Table("t", 100, 16, 1.0),), 64, Optimizer.SGD)
    store = HeldRows()
    with pytest.raises(KeyboardInterrupt):
        measure(bench, SETTINGS, [(DRAWN, small), (DRAWN, replace(small, batch_size=128))], store)
    assert len(store.rows) == 1


def test_prices_that_are_too_low_have_a_bias_below_zero() -> None:
    class Half(FakeCompute):
        def head(self, sums: Embeddings) -> Floats:
            return np.array([0.5, 1.5])

    model: ComputeModel = Half()  # type: ignore[assignment]
    found = log_errors(model, rows(3))
    assert (found.mape, found.bias) == pytest.approx((0.5, np.log(0.5)))
    assert planned_devices.CAMPAIGNS == ("planned-by-random", "planned-by-chosen", DRAWN)
