"""Campaigns: what is drawn, and that nothing measured is lost or measured twice."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from service.domain.measurements import ComputeMeasurement
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.campaign import BATCH_SIZES, MAX_TABLES, Campaign, CampaignSettings
from service.profiling.compute_bench import BenchSettings, ComputeBench, needed_bytes
from service.profiling.pools import generated_pool
from service.storage.measurements import MeasurementRepository

SETTINGS = CampaignSettings("cpu-fbgemm", 0, Optimizer.SGD, DataType.FP32, 32 * 2**20)
POOL = tuple(Table(f"t{i}", 200 * (i + 1), 16, 0.5 * i) for i in range(8))


def quick_bench() -> ComputeBench:
    return ComputeBench(BenchSettings(memory_bytes=SETTINGS.memory_bytes, warmup=0, repeats=2))


def test_combinations_are_within_memory_and_of_the_stated_sizes() -> None:
    settings = CampaignSettings("cpu-fbgemm", 3, Optimizer.SGD, DataType.FP32, 2 * 2**30)
    campaign = Campaign(generated_pool(), settings)
    drawn = [campaign.combination(i) for i in range(200)]
    sizes = [len(d.tables) for d in drawn]
    assert min(sizes) == 1
    assert max(sizes) == MAX_TABLES
    assert {d.batch_size for d in drawn} == set(BATCH_SIZES)
    assert all(needed_bytes(d.tables, d.batch_size, Optimizer.SGD) <= settings.memory_bytes for d in drawn)
    assert all(t.embedding_dim % 4 == 0 and 4 <= t.embedding_dim <= 128 for d in drawn for t in d.tables)


def test_a_position_always_draws_the_same_combination() -> None:
    first, again = Campaign(POOL, SETTINGS), Campaign(POOL, SETTINGS)
    other = Campaign(POOL, CampaignSettings("cpu-fbgemm", 1, Optimizer.SGD, DataType.FP32, SETTINGS.memory_bytes))
    assert first.name == again.name != other.name
    assert [first.combination(i) for i in range(5)] == [again.combination(i) for i in range(5)]
    assert [first.combination(i) for i in range(5)] != [other.combination(i) for i in range(5)]


def test_an_interrupted_campaign_goes_on_where_it_stopped(engine: Engine) -> None:
    store = MeasurementRepository(engine)
    campaign = Campaign(POOL, SETTINGS)

    def interrupt(_: object) -> None:
        if len(store.measured_indices(campaign.name)) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign.run(quick_bench(), store, 5, 60.0, interrupt)
    assert store.measured_indices(campaign.name) == {0, 1, 2}

    progress = campaign.run(quick_bench(), store, 5, 60.0)
    assert (progress.stored, progress.measured, progress.refused) == (3, 2, 0)
    assert store.measured_indices(campaign.name) == {0, 1, 2, 3, 4}
    kept = store.compute("cpu-fbgemm")
    assert [m.batch_size for m in kept] == [campaign.combination(i).batch_size for i in range(5)]
    assert all(m.forward_ms > 0 and m.backward_ms > 0 and m.environment["torch"] for m in kept)


def test_the_time_budget_stops_a_campaign(engine: Engine) -> None:
    progress = Campaign(POOL, SETTINGS).run(quick_bench(), MeasurementRepository(engine), 50, -1.0)
    assert progress.measured == 0


def test_tables_that_never_fit_leave_a_refused_position(engine: Engine) -> None:
    campaign = Campaign((Table("huge", 10**8, 128, 1.0),), SETTINGS)
    progress = campaign.run(quick_bench(), MeasurementRepository(engine), 2, 60.0)
    assert (progress.measured, progress.refused) == (0, 2)


def measurement(table: Table, index: int = 0) -> ComputeMeasurement:
    return ComputeMeasurement(
        "c", index, "cpu-fbgemm", (table, POOL[1]), 512, Optimizer.SGD, 1.0, 2.0, 0.1, 0.1, 5, {}, datetime.now(UTC)
    )


def test_the_part_of_a_combination_ignores_names_and_order_and_is_about_80_10_10() -> None:
    one = measurement(Table("x", 10, 8, 1.0))
    renamed = measurement(Table("y", 10, 8, 1.0))
    assert one.split is renamed.split
    parts = [measurement(Table("x", rows, 8, 1.0)).split.value for rows in range(10, 1010)]
    assert 0.74 < parts.count("train") / 1000 < 0.86
    assert 0.06 < parts.count("test") / 1000 < 0.14
