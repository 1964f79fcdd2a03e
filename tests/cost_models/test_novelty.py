"""Novelty: small for what is like the measured tables, and growing with the distance from them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.novelty import QUANTITIES, UNSEEN, Novelty, nearest, novelty_quantities
from service.domain.tables import DataType, Optimizer, PoolingMode, Table
from tests.examples import examples

TABLE = Table("t", 1_000_000, 64, 4.0)
MEASURED = MeasuredDomain(
    batch_sizes=(8192, 8192),
    dims=(64, 64),
    rows=(1_000_000, 1_000_000),
    pooling_factors=(4.0, 4.0),
    optimizers=("adagrad", "sgd"),
    data_types=("bf16", "fp32"),
    pooling_modes=("sum",),
    pairs=(("adagrad", "fp32"), ("sgd", "bf16"), ("sgd", "fp32")),
)


def around(table: Table, batch_size: int = 8192) -> Novelty:
    """Novelty of what was measured at one table, in octaves."""
    arrays = {
        "novelty.mean": np.zeros(len(QUANTITIES)),
        "novelty.scale": np.ones(len(QUANTITIES)),
        "novelty.landmarks": novelty_quantities([table], batch_size),
        "novelty.unit": np.ones(1),
    }
    singles = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Novelty("v", singles, MEASURED)


def test_what_was_measured_is_not_new_whatever_its_name() -> None:
    found = around(TABLE).of([TABLE, replace(TABLE, name="other")], 8192, Optimizer.SGD)
    assert found == pytest.approx([0.0, 0.0], abs=1e-3)
    assert around(TABLE).of([], 8192, Optimizer.SGD).shape == (0,)


def test_each_thing_that_was_not_measured_adds_a_step() -> None:
    tables = [TABLE, replace(TABLE, pooling_mode=PoolingMode.MEAN)]
    assert around(TABLE).of(tables, 8192, Optimizer.ADAM) == pytest.approx([UNSEEN, 2 * UNSEEN], abs=1e-3)
    half = around(TABLE).of([replace(TABLE, data_type=DataType.FP16)], 8192, Optimizer.SGD)
    # Rows of half the bytes are an octave away.
    assert half == pytest.approx([UNSEEN + 1.0], abs=1e-3)


def test_a_precision_and_an_optimizer_that_were_never_measured_together_are_new() -> None:
    tables = [TABLE, replace(TABLE, data_type=DataType.BF16)]
    # Rows of half the bytes are an octave away.
    assert around(TABLE).of(tables, 8192, Optimizer.SGD) == pytest.approx([0.0, 1.0], abs=1e-3)
    assert around(TABLE).of(tables, 8192, Optimizer.ADAGRAD) == pytest.approx([0.0, 1.0 + UNSEEN], abs=1e-3)


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_farther_the_newer(near: int, far: int) -> None:
    near, far = min(near, far), max(near, far)
    for grown in ("embedding_dim", "num_features"):
        tables = [replace(TABLE, **{grown: getattr(TABLE, grown) << octaves}) for octaves in (near, far)]
        first, second = around(TABLE).of(tables, 8192, Optimizer.SGD)
        assert first <= second
        assert bool(first < second) is (near < far)


@settings(max_examples=examples(30))
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_distances_are_to_the_nearest(count: int, landmarks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, known = rng.normal(size=(count, 3)), rng.normal(size=(landmarks, 3))
    wanted = [min(float(np.linalg.norm(point - other)) for other in known) for point in points]
    assert nearest(points, known) == pytest.approx(wanted)


def test_tables_of_any_size_have_finite_novelty() -> None:
    odd = [Table("zero", 1, 4, 0.0), Table("huge", 2**40, 2**16, 1e6, num_features=10_000), Table("one", 1, 4, 1.0)]
    for batch_size in (1, 2**24):
        assert np.isfinite(around(TABLE).of(odd, batch_size, Optimizer.SGD)).all()
