"""Campaigns: what is drawn, and that nothing measured is lost or measured twice."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from service.domain.measurements import ComputeMeasurement, Split, table_part
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.campaign import Campaign, CampaignSettings
from service.profiling.combinations import BATCH_SIZES, DIMS, MAX_TABLES, MOST_WORK_BYTES, work_bytes
from service.profiling.compute_bench import BenchSettings, ComputeBench, needed_bytes
from service.profiling.pools import generated_pool
from service.storage.measurements import MeasurementRepository

SETTINGS = CampaignSettings("cpu-fbgemm", 0, (Optimizer.SGD,), (DataType.FP32,), 512 * 2**20)
POOL = tuple(Table(f"t{i}", 200 * (i + 1), 16, 0.05 * i) for i in range(8))


def quick_bench() -> ComputeBench:
    return ComputeBench(BenchSettings(memory_bytes=SETTINGS.memory_bytes, warmup=0, repeats=2))


def test_combinations_are_within_memory_and_of_the_stated_sizes() -> None:
    optimizers, data_types = (Optimizer.SGD, Optimizer.ADAGRAD), (DataType.FP32, DataType.FP16)
    settings = CampaignSettings("cpu-fbgemm", 3, optimizers, data_types, 2 * 2**30)
    campaign = Campaign(generated_pool(), settings)
    drawn = [campaign.combination(i) for i in range(400)]
    sizes = [len(d.tables) for d in drawn]
    assert min(sizes) == 1
    assert max(sizes) == MAX_TABLES
    assert {d.batch_size for d in drawn} > set(BATCH_SIZES)
    assert all(min(BATCH_SIZES) <= d.batch_size <= max(BATCH_SIZES) for d in drawn)
    assert all(needed_bytes(d.tables, d.batch_size, d.optimizer) <= settings.memory_bytes for d in drawn)
    assert all(work_bytes(d.tables, d.batch_size) <= MOST_WORK_BYTES for d in drawn)
    widths = {t.embedding_dim for d in drawn for t in d.tables}
    assert widths > set(DIMS)
    assert all(width % 4 == 0 and min(DIMS) <= width <= max(DIMS) for width in widths)
    assert {d.optimizer for d in drawn} == set(optimizers)
    assert [{t.data_type for t in d.tables} for d in drawn] == [{data_types[i // 50 % 2]} for i in range(400)]


def test_the_name_of_a_campaign_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would start the stored campaigns anew."""
    monkeypatch.setattr("service.profiling.campaign.device_name", lambda device: "a processor, 1 thread")
    optimizers = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD)
    settings = CampaignSettings("cpu-fbgemm", 2, optimizers, (DataType.FP32, DataType.FP16), 4 * 2**30)
    assert Campaign(generated_pool(), settings).name == "cpu-fbgemm-99d0755c5095"


def test_the_tables_of_a_combination_are_of_one_part() -> None:
    campaign = Campaign(generated_pool(), SETTINGS)
    parts = [{table_part(table) for table in campaign.combination(i).tables} for i in range(300)]
    assert all(len(found) == 1 for found in parts)
    shares = {part: sum(found == {part} for found in parts) / 300 for part in Split}
    assert 0.6 < shares[Split.TRAIN] < 0.8
    assert min(shares.values()) > 0.08


def test_a_position_always_draws_the_same_combination() -> None:
    first, again = Campaign(POOL, SETTINGS), Campaign(POOL, SETTINGS)
    other = Campaign(POOL, replace(SETTINGS, seed=1))
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


def measurement(*tables: Table) -> ComputeMeasurement:
    return ComputeMeasurement(
        "c", 0, "cpu-fbgemm", tables, 512, Optimizer.SGD, 1.0, 2.0, 0.1, 0.1, 5, {}, datetime.now(UTC)
    )


def test_a_combination_is_of_the_part_of_its_tables_whatever_their_width_and_precision() -> None:
    tables = [Table("x", rows, 8, 1.0) for rows in range(10, 1010)]
    parts = [measurement(table).split for table in tables]
    assert 0.64 < parts.count(Split.TRAIN) / 1000 < 0.76
    assert 0.11 < parts.count(Split.TEST) / 1000 < 0.19
    other = [measurement(replace(t, name="y", embedding_dim=64, data_type=DataType.FP16)).split for t in tables]
    assert parts == other
    test, train = tables[parts.index(Split.TEST)], tables[parts.index(Split.TRAIN)]
    assert measurement(test, test.sliced(4)).split is Split.TEST
    assert measurement(test, train).split is None
