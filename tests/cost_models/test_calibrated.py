"""The calibrated compute model, whatever coefficients it was given: more work never costs less."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.analytic_work import BAGS, EMBEDDING_SIZE, LOOKUPS, ROWS_AGAIN, ROWS_FIRST, TABLES
from service.cost_models.calibrated import KINDS, WEIGHT_SHAPES, CalibratedCompute, Calibration
from service.cost_models.measured_domain import MeasuredDomain
from service.domain.ports import Embeddings
from service.domain.tables import HISTOGRAM_BINS, DataType, Optimizer, Table
from tests.training.data_sheet_machine import ANALYTIC

NOTHING = MeasuredDomain((0, 0), (0, 0), (0, 0), (0.0, 0.0), (), (), (), ())
KIND = KINDS.index((Optimizer.ADAGRAD, DataType.FP32))
SIZES = (0.0, 0.0, 0.0, 0.0, 1.0, 3e5, 2e7, 4e9)
"""From nothing to far beyond the cache; most often nothing, so that something fits in the cache."""


def with_coefficients(seed: int) -> CalibratedCompute:
    """Positive ones, from a hundredth to a hundred times the data sheet's."""
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(2 if axis == "Q" else int(axis) for axis in shape) for name, shape in WEIGHT_SHAPES.items()}
    weights = {name: rng.normal(0.0, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return CalibratedCompute("v", ANALYTIC, weights, Calibration(30, "a processor", NOTHING))


@st.composite
def works(draw: st.DrawFn) -> Embeddings:
    """Work of a device whose tables are all of one kind."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=EMBEDDING_SIZE, max_size=EMBEDDING_SIZE))
    work = np.zeros(EMBEDDING_SIZE + len(KINDS), dtype=np.float32)
    work[:EMBEDDING_SIZE] = sizes
    work[[TABLES, BAGS]] = draw(st.integers(1, 9))
    work[EMBEDDING_SIZE + KIND] = work[LOOKUPS] + work[BAGS]
    return work


@given(seed=st.integers(0, 1_000), work=works(), more=works())
def test_more_work_of_any_kind_never_costs_less(seed: int, work: Embeddings, more: Embeddings) -> None:
    model = with_coefficients(seed)
    both = (work.astype(np.float64) + more).astype(np.float32)
    assert (model.head(both) >= model.head(work) * (1 - 1e-6)).all()


@given(seed=st.integers(0, 1_000), pushed=st.integers(0, HISTOGRAM_BINS - 2), size=st.sampled_from(SIZES))
def test_work_that_pushes_other_rows_out_of_the_cache_never_costs_less(seed: int, pushed: int, size: float) -> None:
    model = with_coefficients(seed)
    before = np.zeros(EMBEDDING_SIZE + len(KINDS), dtype=np.float32)
    before[[TABLES, BAGS, EMBEDDING_SIZE + KIND]] = 1
    before[ROWS_FIRST.start + pushed], before[ROWS_AGAIN.start + pushed] = 3e5, 4e9
    after = before.copy()
    after[ROWS_FIRST.stop - 1] += size
    assert (model.head(after) >= model.head(before) * (1 - 1e-6)).all()


@settings(deadline=None)
@given(seed=st.integers(0, 1_000), rows=st.lists(st.sampled_from([100, 20_000, 10**6]), min_size=2, max_size=12))
def test_a_table_more_never_makes_a_device_cheaper(seed: int, rows: list[int]) -> None:
    model = with_coefficients(seed)
    tables = [Table(f"t{i}", count, 64, 20.0) for i, count in enumerate(rows)]
    sums = np.cumsum(model.encode(tables, 8_192, Optimizer.ADAGRAD), axis=0)
    assert (np.diff(model.head(sums), axis=0) >= 0).all()
