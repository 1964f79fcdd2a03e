"""Placements measured for policies that learn: what is asked of the bench, what comes of it, and the real operator."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from service.domain.errors import MeasurementRefused
from service.domain.plan import Constraints, Problem
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology
from service.profiling.comm_bench import Exchange, ExchangeTimes
from service.profiling.placement_meter import PlacementMeter, PlacementMeterSettings
from service.search.workspace import Workspace
from service.training.meters import Placed
from tests.fakes import fake_models
from tests.search import oracle

MIB = 2**20
QUICK = PlacementMeterSettings(warmup=1, repeats=3, memory_bytes=32 * MIB)


class ColumnsExchange:
    """Exchanges that take a millisecond for each column, backward half of that and later in each repeat."""

    def __init__(self, repeats: int = 3) -> None:
        self.repeats = repeats
        self.asked: list[tuple[Exchange, ...]] = []

    def __call__(self, exchanges: Sequence[Exchange]) -> list[ExchangeTimes]:
        self.asked.append(tuple(exchanges))
        found = []
        for exchange in exchanges:
            columns = np.repeat(np.array(exchange.widths, dtype=np.float64)[:, None], self.repeats, axis=1)
            found.append(ExchangeTimes(np.zeros_like(columns), columns, columns / 2 + np.arange(self.repeats)))
        return found


def _space(*tables: Table, devices: int = 2, batch_size: int = 256, hardware: str = "fake") -> Workspace:
    constraints = Constraints(count_buffers=False)
    topology = Topology(hardware, (2**30,) * devices)
    problem = Problem(tables, topology, batch_size, Optimizer.SGD, constraints)
    return Workspace.of(problem, oracle.whole(problem), fake_models())


A, B, C = Table("a", 5_000, 16, 3.0), Table("b", 300, 64, 1.5), Table("c", 40, 8, 1.0)


def _placed(space: Workspace, *devices: int) -> Placed:
    return space, np.array(devices)


def test_placements_are_measured_with_the_real_operator() -> None:
    space, exchange = _space(A, B, C), ColumnsExchange()
    together, apart = PlacementMeter(QUICK, exchange_bench=exchange)([_placed(space, 0, 0, 0), _placed(space, 0, 1, 1)])
    assert together.compute.shape == apart.compute.shape == (2, 2)
    assert (together.compute[0] > 0).all()
    assert together.compute[1].tolist() == [0.0, 0.0]
    assert (apart.compute > 0).all()
    # Half a millisecond a column, and one more in the median of three repeats.
    assert together.exchange.tolist() == [88 / 2 + 1, 1]
    assert apart.exchange.tolist() == [16 / 2 + 1, 72 / 2 + 1]
    # The device with all columns is the slowest in every repeat: its own parts are the step.
    # A busy machine may make that of one repeat the median, or a compute longer: it is never less than the exchanges.
    assert 88 / 2 + 1 + 88 < together.plan < 1.5 * (together.compute[0].sum() + 88 / 2 + 1 + 88)
    assert apart.plan < together.plan


def test_ranks_are_started_once_for_all_placements_on_as_many_devices_at_a_batch_size() -> None:
    two, three, smaller = _space(A, B), _space(A, B, C, devices=3), _space(B, C, batch_size=64)
    exchange, reported = ColumnsExchange(), []
    meter = PlacementMeter(QUICK, lambda done, of: reported.append((done, of)), exchange)
    placed = [_placed(two, 0, 1), _placed(three, 0, 1, 2), _placed(smaller, 1, 0), _placed(two, 1, 1)]
    found = meter(placed)
    assert [[(each.widths, each.batch_size) for each in asked] for asked in exchange.asked] == [
        *[[((16, 64), 256), ((0, 80), 256)]] * 2,
        *[[((16, 64, 8), 256)]] * 2,
        *[[((8, 64), 64)]] * 2,
    ]
    assert [times.exchange.tolist() for times in found] == [[9, 33], [9, 33, 5], [5, 33], [1, 41]]
    assert reported == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert meter([]) == []


def test_without_exchanges_a_step_is_the_largest_compute() -> None:
    exchange = ColumnsExchange()
    meter = PlacementMeter(replace(QUICK, repeats=1, exchanges=False), exchange_bench=exchange)
    (times,) = meter([_placed(_space(A, B, C, devices=3), 0, 1, 1)])
    assert exchange.asked == []
    assert times.exchange.tolist() == [0.0, 0.0, 0.0]
    assert times.plan == times.compute.sum(axis=1).max() > 0


def test_real_ranks_exchange() -> None:
    (times,) = PlacementMeter(replace(QUICK, repeats=2))([_placed(_space(A, B), 0, 1)])
    assert (times.exchange > 0).all()
    assert times.plan > (times.compute.sum(axis=1) + times.exchange).max() * 0.5
    assert times.plan > times.compute.sum(axis=1).max()


def test_rows_are_cut_by_the_task_alone() -> None:
    wide = _space(Table("big", 100_000, 64, 1.0), Table("other", 100_000, 64, 1.0))
    meter = PlacementMeter(replace(QUICK, repeats=1, exchanges=False))
    cut = meter._cut(wide.problem)
    assert 50_000 < cut.tables[0].num_embeddings < 32 * MIB // (2 * 64 * 4)
    # On two devices each would fit with all of its rows: the placement does not decide.
    times = meter([_placed(wide, 0, 1), _placed(wide, 0, 0)])
    assert all(each.plan > 0 for each in times)
    assert meter._cut(_space(A, B).problem) == _space(A, B).problem


def test_what_cannot_be_measured_is_refused_with_its_tables_named() -> None:
    meter = PlacementMeter(QUICK, exchange_bench=ColumnsExchange())
    mixed = _space(A, replace(B, data_type=DataType.FP16))
    with pytest.raises(MeasurementRefused, match=r"one data_type.*fp32: a; fp16: b"):
        meter([_placed(mixed, 0, 1)])
    bf16 = _space(*(replace(table, data_type=DataType.BF16) for table in (A, B)))
    with pytest.raises(MeasurementRefused, match=r"plan 1, device 0 \(bf16, sum: a\).*fp16"):
        meter([_placed(_space(A), 0), _placed(bf16, 0, 1)])
    with pytest.raises(MeasurementRefused, match=r"h100 is a GPU.*--device cuda"):
        meter([_placed(_space(A, hardware="h100"), 0)])
    with pytest.raises(MeasurementRefused, match="however few rows"):
        meter([_placed(_space(replace(A, embedding_dim=64), batch_size=2**18), 0)])
    with pytest.raises(MeasurementRefused, match="repeats is 0 and warmup 1: give at least 1 and 0"):
        PlacementMeter(replace(QUICK, repeats=0))
    with pytest.raises(MeasurementRefused, match="free: allow less"):
        PlacementMeter(replace(QUICK, memory_bytes=2**50))
