"""The compute model: its port's promises, and what it says it assumed."""

from dataclasses import replace

import numpy as np
import pytest

from service.cost_models.features import FEATURE_NAMES, table_features
from service.domain.tables import DataType, Optimizer, PoolingMode, ReuseHistogram, Table
from tests.cost_models.small_model import small_model

TABLES = [
    Table("a", 1_000_000, 64, 12.0),
    Table("b", 5_000, 16, 1.0),
    Table("c", 100, 128, 0.0),
]


def test_a_device_costs_the_head_of_the_sum_of_its_tables() -> None:
    model = small_model()
    embeddings = model.encode(TABLES, 8192, Optimizer.SGD)
    assert embeddings.shape == (3, 8)
    assert embeddings.dtype == np.float32
    costs = model.head(embeddings.sum(axis=0))
    assert costs.shape == (2,)
    assert (costs > 0).all()


def test_the_head_takes_any_leading_shape() -> None:
    model = small_model()
    sums = np.stack([model.encode(TABLES, 8192, Optimizer.SGD)[:2]] * 3)
    assert model.head(sums).shape == (3, 2, 2)
    assert model.head(sums)[1, 1] == pytest.approx(model.head(sums[1, 1]))


def test_an_empty_device_costs_nothing() -> None:
    assert small_model().head(np.zeros((4, 8), dtype=np.float32)).tolist() == [[0.0, 0.0]] * 4


def test_a_row_costs_the_same_whatever_it_is_priced_with() -> None:
    model = small_model()
    sums = np.abs(np.random.default_rng(0).normal(size=(133, 8))).astype(np.float32) * 1e4
    alone = np.stack([model.head(row) for row in sums])
    assert np.abs(model.head(sums) / alone - 1).max() < 1e-12


def test_the_order_of_tables_and_their_names_do_not_matter() -> None:
    model = small_model()
    renamed = [replace(t, name=t.name * 2) for t in reversed(TABLES)]
    forth, back = model.encode(TABLES, 2048, Optimizer.SGD), model.encode(renamed, 2048, Optimizer.SGD)
    assert np.array_equal(forth, back[::-1])


def test_a_hundred_tables_cost_finite_and_more_than_ten() -> None:
    model = small_model()
    ten, hundred = (model.head(model.encode(TABLES[:1] * n, 8192, Optimizer.SGD).sum(axis=0)) for n in (10, 100))
    assert np.isfinite(hundred).all()
    assert (hundred > ten).all()


def test_features_are_finite_and_named_for_any_legal_table() -> None:
    odd = [
        Table("zero", 1, 4, 0.0),
        Table("huge", 2 * 10**12, 1024, 1e6, num_features=100, data_type=DataType.FP16),
        Table("tiny", 1, 4, 1e-9),
        Table("one", 1, 4, 1.0, reuse_histogram=ReuseHistogram(64, (0.0,) * 6 + (1.0,) + (0.0,) * 10)),
    ]
    for batch_size in (1, 64, 131_072):
        features = table_features(odd, batch_size)
        assert features.shape == (4, len(FEATURE_NAMES))
        assert np.isfinite(features).all()


def test_a_narrow_row_gathers_a_whole_cache_line() -> None:
    column = FEATURE_NAMES.index("log2_gathered_lines")
    narrow, wide, wider = table_features([Table("t", 1000, dim, 4.0) for dim in (4, 16, 32)], 1024)[:, column]
    assert narrow == wide
    assert wider == pytest.approx(wide + 1, abs=0.01)


def test_what_was_assumed_is_said_by_name() -> None:
    histogram = ReuseHistogram(8192, (1.0,) + (0.0,) * 16)
    tables = [
        Table("plain", 1000, 64, 1.0),
        Table("known", 10**6, 64, 1.0, reuse_histogram=histogram),
        Table("wide", 10**6, 512, 1.0, reuse_histogram=histogram),
        Table("half", 10**6, 64, 1.0, data_type=DataType.FP16, reuse_histogram=histogram),
        Table("shared", 10**6, 64, 2.0, num_features=2, reuse_histogram=histogram),
        Table("mean", 10**6, 64, 1.0, pooling_mode=PoolingMode.MEAN, reuse_histogram=histogram),
    ]
    said = small_model().assumptions(tables, 131_072, Optimizer.ADAGRAD)
    for fragment in (
        "no reuse_histogram for plain:",
        "extrapolated from a smaller batch to 131072",
        "global_batch_size 131072 is outside the measured 2048 to 65536",
        "embedding_dim of wide is outside the measured 4 to 128",
        "adagrad",
        "half",
        "sum pooling: so is mean priced",
        "shared serve several features",
    ):
        assert any(fragment in sentence for sentence in said), fragment


def test_nothing_is_assumed_of_what_was_measured() -> None:
    table = Table("t", 10_000, 64, 2.0, reuse_histogram=ReuseHistogram(8192, (1.0,) + (0.0,) * 16))
    assert small_model().assumptions([table], 8192, Optimizer.SGD) == []


def test_many_names_are_counted_not_listed() -> None:
    tables = [Table(f"t{i}", 1000, 64, 1.0) for i in range(40)]
    (said,) = small_model().assumptions(tables, 8192, Optimizer.SGD)
    assert "35 more" in said
