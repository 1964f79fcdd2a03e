"""The compute model: its port's promises, and what it says it assumed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cost_models.compute import FUSION_LIMIT, ComputeModel
from service.cost_models.features import FEATURE_NAMES, FEATURES_VERSION, table_features
from service.domain.errors import DamagedArtifact
from service.domain.ports import Floats
from service.domain.tables import DataType, Optimizer, PoolingMode, ReuseHistogram, Table
from tests.cost_models.small_model import MEASURED, small_model, weights

CLOSE = 1 - 1e-6
"""Embeddings are stored in single precision."""

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
        features = table_features(odd, batch_size, Optimizer.ADAGRAD)
        assert features.shape == (4, len(FEATURE_NAMES))
        assert np.isfinite(features).all()


def test_a_narrow_row_takes_a_whole_cache_line() -> None:
    column = FEATURE_NAMES.index("row_lines_bytes")
    tables = [Table("t", 1000, dim, 4.0) for dim in (4, 16, 20)]
    assert table_features(tables, 1024, Optimizer.SGD)[:, column].tolist() == [0.25, 0.25, 0.5]


def drawn_tables(most: int) -> st.SearchStrategy[list[Table]]:
    """One to ``most`` tables of one precision."""
    table = st.builds(
        lambda rows, dim, pooling: Table("t", rows, 4 * dim, pooling),
        st.integers(1, 10**8), st.integers(1, 256), st.sampled_from([0.0, 0.01, 1.0, 7.5, 120.0]),
    )  # fmt: skip
    return st.lists(table, min_size=1, max_size=most)


BATCH = st.sampled_from([64, 1_000, 8_192, 131_072])
MODEL = st.builds(lambda seed: ComputeModel("v", weights(seed), FEATURES_VERSION, MEASURED), st.integers(0, 50))


def cost(model: ComputeModel, tables: Sequence[Table], batch_size: int) -> Floats:
    return model.head(model.encode(tables, batch_size, Optimizer.SGD).astype(np.float64).sum(axis=0))


@given(MODEL, drawn_tables(20), BATCH, st.data())
def test_more_tables_columns_or_lookups_never_cost_less(
    model: ComputeModel, tables: list[Table], batch_size: int, data: st.DataObject
) -> None:
    held = cost(model, tables, batch_size)
    added = data.draw(drawn_tables(3))
    assert (cost(model, [*tables, *added], batch_size) >= held * CLOSE).all()
    wider = [tables[0].sliced(tables[0].embedding_dim + 4 * data.draw(st.integers(1, 64))), *tables[1:]]
    assert (cost(model, wider, batch_size) >= held * CLOSE).all()
    busier = [replace(tables[0], pooling_factor=tables[0].pooling_factor * 1.5 + 0.1), *tables[1:]]
    assert (cost(model, busier, batch_size) >= held * CLOSE).all()
    assert (cost(model, tables, batch_size * 2) >= held * CLOSE).all()


@given(MODEL, drawn_tables(5), BATCH, st.data())
def test_a_table_costs_at_most_its_slices_on_one_device(
    model: ComputeModel, others: list[Table], batch_size: int, data: st.DataObject
) -> None:
    whole = data.draw(drawn_tables(1).filter(lambda drawn: drawn[0].embedding_dim > 4))[0]
    cut = 4 * data.draw(st.integers(1, whole.embedding_dim // 4 - 1))
    slices = [whole.sliced(cut), whole.sliced(whole.embedding_dim - cut)]
    assert (cost(model, [*others, whole], batch_size) <= cost(model, [*others, *slices], batch_size) / CLOSE).all()


@given(MODEL, drawn_tables(10), drawn_tables(10), BATCH)
def test_tables_together_cost_no_more_than_the_limit_lets_them(
    model: ComputeModel, some: list[Table], others: list[Table], batch_size: int
) -> None:
    together = cost(model, [*some, *others], batch_size)
    apart = cost(model, some, batch_size) + cost(model, others, batch_size)
    assert (together <= FUSION_LIMIT * apart / CLOSE).all()


@given(MODEL, drawn_tables(10), BATCH)
def test_the_additive_part_is_never_above_the_cost_and_at_most_the_limit_below(
    model: ComputeModel, tables: list[Table], batch_size: int
) -> None:
    sums = model.encode(tables, batch_size, Optimizer.SGD).sum(axis=0)
    ratio = model.head(sums) / model.additive(sums)
    assert (ratio >= CLOSE).all()
    assert (ratio <= FUSION_LIMIT / CLOSE).all()


def test_negative_weights_where_more_must_cost_more_are_refused() -> None:
    arrays = dict(weights())
    arrays["table.1.growing"] = -arrays["table.1.growing"]
    with pytest.raises(DamagedArtifact, match=r"table\.1\.growing hold negative numbers"):
        ComputeModel("v", arrays, FEATURES_VERSION, MEASURED)


def test_what_was_not_measured_is_priced_as_what_is_nearest() -> None:
    both = replace(MEASURED, optimizers=("sgd", "rowwise_adagrad"), data_types=("fp32", "fp16"))
    model = ComputeModel("v", weights(), FEATURES_VERSION, both)
    table = Table("t", 1000, 64, 1.0, data_type=DataType.BF16)
    half = replace(table, data_type=DataType.FP16)
    adam = model.encode([table], 8192, Optimizer.ADAM)
    assert np.array_equal(adam, model.encode([half], 8192, Optimizer.ROWWISE_ADAGRAD))
    assert not np.array_equal(adam, model.encode([half], 8192, Optimizer.SGD))
    said = model.assumptions([table], 8192, Optimizer.ADAM)
    assert any("the times for adam are those of rowwise_adagrad" in sentence for sentence in said)
    assert any("bf16 of t is priced as fp16" in sentence for sentence in said)


def test_a_pair_that_was_not_measured_together_is_said_by_name() -> None:
    apart = replace(
        MEASURED,
        optimizers=("sgd", "adam"),
        data_types=("fp32", "fp16"),
        pairs=(("sgd", "fp32"), ("sgd", "fp16"), ("adam", "fp32")),
    )
    model = ComputeModel("v", weights(), FEATURES_VERSION, apart).with_errors(weights())
    whole, half = Table("w", 1000, 64, 1.0), Table("h", 1000, 64, 1.0, data_type=DataType.FP16)
    (said,) = [said for said in model.assumptions([whole, half], 8192, Optimizer.ADAM) if "together" in said]
    assert said.startswith("fp16 of h was not measured with adam")
    assert not any("together" in said for said in model.assumptions([whole, half], 8192, Optimizer.SGD))
    known, new = (model.novelty([half], 8192, optimizer)[0] for optimizer in (Optimizer.SGD, Optimizer.ADAM))
    assert new == pytest.approx(known + 1.0)


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
        "the times for adagrad are those of sgd",
        "fp16 of half is priced as fp32",
        "sum pooling: so is mean priced",
        "shared serves several features",
    ):
        assert any(fragment in sentence for sentence in said), fragment


def test_nothing_is_assumed_of_what_was_measured() -> None:
    table = Table("t", 10_000, 64, 2.0, reuse_histogram=ReuseHistogram(8192, (1.0,) + (0.0,) * 16))
    assert small_model().assumptions([table], 8192, Optimizer.SGD) == []


def test_many_names_are_counted_not_listed() -> None:
    tables = [Table(f"t{i}", 1000, 64, 1.0) for i in range(40)]
    (said,) = small_model().assumptions(tables, 8192, Optimizer.SGD)
    assert "35 more" in said
