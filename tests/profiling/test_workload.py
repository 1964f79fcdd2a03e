"""Index streams have the pooling factor and the reuse histogram that were asked for."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import shared_data
from service.domain.reuse import reuse_profile
from service.domain.tables import Table
from service.profiling.pools import generated_pool
from service.profiling.workload import index_stream, measured_histogram

POOL_SAMPLE = 50


def chosen_tables(pool: tuple[Table, ...]) -> list[Table]:
    """50 tables with at least 10,000 lookups in a batch of 65,536, drawn from a pool."""
    busy = [table for table in pool if table.lookups(65_536) >= 10_000]
    order = np.random.default_rng(0).permutation(len(busy))[:POOL_SAMPLE]
    return [busy[i] for i in order]


def check(tables: list[Table], batch_size: int) -> None:
    rng = np.random.default_rng(1)
    for table in tables:
        stream = index_stream(table, batch_size, rng)
        wanted = reuse_profile(table, batch_size)
        histogram = np.array(measured_histogram(stream.indices))
        assert np.abs(histogram - wanted.fractions).sum() <= 0.05, table.name
        assert len(stream.indices) == pytest.approx(table.pooling_factor * batch_size, rel=0.02), table.name
        assert stream.indices.min() >= 0
        assert stream.indices.max() < table.num_embeddings


@pytest.mark.parametrize("batch_size", [65_536, 8_192])
def test_streams_of_the_public_pool_measure_back(batch_size: int) -> None:
    if not shared_data.present():
        pytest.skip("the public pool is not on this machine")
    check(chosen_tables(shared_data.pool()), batch_size)


@pytest.mark.parametrize("batch_size", [8_192, 2_048])
def test_streams_of_the_generated_pool_measure_back(batch_size: int) -> None:
    check(chosen_tables(generated_pool()), batch_size)


def test_bags_tile_the_stream_and_differ_by_one_lookup_at_most() -> None:
    table = Table("t", 1_000, 16, 2.3, num_features=3)
    stream = index_stream(table, 128, np.random.default_rng(0))
    lengths = np.diff(stream.offsets)
    assert len(lengths) == 3 * 128
    assert stream.offsets[-1] == len(stream.indices) == table.lookups(128)
    assert lengths.max() - lengths.min() <= 1


def test_a_table_without_lookups_has_empty_bags() -> None:
    stream = index_stream(Table("t", 100, 16, 0.0), 64, np.random.default_rng(0))
    assert len(stream.indices) == 0
    assert not stream.offsets.any()
    assert measured_histogram(stream.indices) == (0.0,) * 17


def test_the_same_seed_draws_the_same_stream_and_another_does_not() -> None:
    table = replace(generated_pool()[3], num_embeddings=5_000, reuse_histogram=None, distinct_rows=None)
    first, again, other = (index_stream(table, 512, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.indices, again.indices)
    assert not np.array_equal(first.indices, other.indices)
