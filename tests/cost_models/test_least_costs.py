"""What compute models say that devices cost at least: against devices that hold tables, slices and more."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.analytic import AnalyticCompute
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import PROCESSORS
from service.cost_models.features import FEATURES_VERSION
from service.domain.ports import ComputeCostModel, Integers
from service.domain.tables import DataType, Optimizer, Table
from tests.cost_models.small_model import MEASURED, weights
from tests.cost_models.test_calibrated import with_coefficients
from tests.examples import examples
from tests.fakes import FakeCompute

CLOSE = 1 + 1e-6
BATCH = 8_192
GRID = 8


def _learned(seed: int) -> ComputeModel:
    # A head that moves between its limits over the loads that are drawn here.
    arrays = dict(weights(seed))
    arrays["head.1.growing"] = 3 * arrays["head.1.growing"]
    arrays["head.1.bias"] = arrays["head.1.bias"] - np.float32(2.0)
    return ComputeModel("v", arrays, FEATURES_VERSION, MEASURED)


MODELS: st.SearchStrategy[ComputeCostModel] = st.one_of(
    st.builds(_learned, st.integers(0, 999)),
    st.builds(lambda name: AnalyticCompute("v", PROCESSORS[name]), st.sampled_from(["h100", "l4", "cpu-fbgemm"])),
    st.builds(with_coefficients, st.integers(0, 999)),
    st.builds(FakeCompute),
)
OPTIMIZERS = st.sampled_from(list(Optimizer))


@st.composite
def tables(draw: st.DrawFn, most: int) -> list[Table]:
    """From tables that any cache holds to those that none does."""
    one = st.builds(
        Table,
        st.just(""),
        st.sampled_from([100, 20_000, 500_000, 10**8]),
        st.integers(1, 40).map(lambda units: 4 * units),
        st.sampled_from([0.0, 0.3, 2.0, 30.0]),
        data_type=st.sampled_from(list(DataType)),
    )
    drawn = draw(st.lists(one, min_size=1, max_size=most))
    return [replace(table, name=f"t{i}") for i, table in enumerate(drawn)]


def _widths(tables: Sequence[Table]) -> Integers:
    """Up to ``GRID`` widths that are told apart."""
    dims = np.array([table.embedding_dim for table in tables])[:, None]
    return np.asarray(np.minimum(-(-dims * np.arange(1, GRID + 1) // (4 * GRID)) * 4, dims))


def _cost(model: ComputeCostModel, held: Sequence[Table], optimizer: Optimizer) -> float:
    if not held:
        return 0.0
    sums = model.encode(held, BATCH, optimizer).astype(np.float64).sum(axis=0)
    return float(model.head(sums.astype(np.float32)).sum())


@settings(max_examples=examples(120), deadline=None)
@given(model=MODELS, kinds=tables(3), devices=st.integers(2, 6), optimizer=OPTIMIZERS)
def test_the_dearest_device_of_an_even_placement_is_no_cheaper(
    model: ComputeCostModel, kinds: list[Table], devices: int, optimizer: Optimizer
) -> None:
    held = kinds * devices
    whole = np.full(len(held), GRID - 1)
    costs = model.least_costs(held, _widths(held), BATCH, optimizer)
    assert costs.shared(np.arange(len(held)), whole, devices) <= _cost(model, kinds, optimizer) * CLOSE


@settings(max_examples=examples(120), deadline=None)
@given(model=MODELS, held=tables(12), devices=st.integers(2, 4), optimizer=OPTIMIZERS, seed=st.integers(0, 999))
def test_the_dearest_device_of_any_placement_is_no_cheaper(
    model: ComputeCostModel, held: list[Table], devices: int, optimizer: Optimizer, seed: int
) -> None:
    rng, grid = np.random.default_rng(seed), _widths(held)
    limits = rng.integers(0, GRID, len(held))
    on_devices: list[list[Table]] = [[] for _ in range(devices)]
    for table, widest in zip(held, grid[np.arange(len(held)), limits], strict=True):
        columns, left = np.zeros(devices, dtype=np.int64), table.embedding_dim
        if widest * devices < left:
            return
        for device in rng.permutation(devices).tolist():
            columns[device] = min(left, int(widest))
            left -= columns[device]
        for device, width in enumerate(columns.tolist()):
            on_devices[device] += [table.sliced(width)] if width else []
    dearest = max(_cost(model, each, optimizer) for each in on_devices)
    costs = model.least_costs(held, grid, BATCH, optimizer)
    assert costs.shared(np.arange(len(held)), limits, devices) <= dearest * CLOSE


@settings(max_examples=examples(120), deadline=None)
@given(model=MODELS, held=tables(6), optimizer=OPTIMIZERS, data=st.data())
def test_a_device_with_more_on_it_is_no_cheaper_than_a_table_alone(
    model: ComputeCostModel, held: list[Table], optimizer: Optimizer, data: st.DataObject
) -> None:
    first, grid = held[0], _widths(held)
    width = 4 * data.draw(st.integers(1, first.embedding_dim // 4))
    narrower = int((grid[0] < width).sum())
    costs = model.least_costs(held, grid, BATCH, optimizer)
    others = data.draw(st.lists(st.sampled_from(held[1:]), unique=True)) if len(held) > 1 else []
    assert costs.alone[0, narrower] <= _cost(model, [first.sliced(width), *others], optimizer) * CLOSE


@given(model=MODELS, held=tables(6), optimizer=OPTIMIZERS)
def test_whole_tables_together_cost_no_more_than_a_device_that_holds_them_all(
    model: ComputeCostModel, held: list[Table], optimizer: Optimizer
) -> None:
    costs = model.least_costs(held, _widths(held), BATCH, optimizer)
    some, every = costs.together([(0,), range(len(held))])
    assert some <= every * CLOSE
    assert every <= _cost(model, held, optimizer) * CLOSE


@pytest.mark.parametrize("seed", range(5))
def test_equal_tables_leave_nothing_unknown_of_the_learned_model(seed: int) -> None:
    model, held = _learned(seed), [Table(f"t{i}", 50_000, 64, 3.0) for i in range(32)]
    costs = model.least_costs(held, np.full((32, 1), 64), BATCH, Optimizer.SGD)
    bound = costs.shared(np.arange(32), np.zeros(32, dtype=np.int64), 4)
    assert bound == pytest.approx(_cost(model, held[:8], Optimizer.SGD), rel=1e-2)


def test_devices_share_a_working_set_larger_than_all_their_caches() -> None:
    model, table = AnalyticCompute("v", PROCESSORS["h100"]), Table("t", 10**7, 128, 30.0)
    held = [replace(table, name=f"t{i}", distinct_rows=200_000.0) for i in range(8)]
    costs = model.least_costs(held, np.full((8, 1), 128), BATCH, Optimizer.SGD)
    bound = costs.shared(np.arange(8), np.zeros(8, dtype=np.int64), 4)
    assert bound == pytest.approx(_cost(model, held[:2], Optimizer.SGD), rel=1e-2)


def test_tables_that_no_device_may_hold_enough_of_cannot_be_shared() -> None:
    model, held = _learned(0), [Table(f"t{i}", 50_000, 64, 3.0) for i in range(3)]
    costs = model.least_costs(held, np.array([[4, 64]] * 3), BATCH, Optimizer.SGD)
    assert costs.shared(np.arange(3), np.zeros(3, dtype=np.int64), 2) == float("inf")
