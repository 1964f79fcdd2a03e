import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, combination_fingerprint
from service.domain.tables import HISTOGRAM_BINS, DataType, Optimizer, PoolingMode, ReuseHistogram, Table
from service.storage.engine import build_engine
from service.storage.measurements import MeasurementRepository

WHEN = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=timezone(timedelta(hours=5, minutes=45)))


def random_table(rng: random.Random, name: str) -> Table:
    weights = [rng.random() for _ in range(HISTOGRAM_BINS)]
    fractions = tuple(weight / sum(weights) for weight in weights)
    return Table(
        name=name,
        num_embeddings=rng.choice([1, 2**31 + 5, rng.randrange(1, 10**7)]),
        embedding_dim=4 * rng.randrange(1, 64),
        pooling_factor=rng.choice([0.0, rng.random() * 100]),
        num_features=rng.randrange(1, 4),
        pooling_mode=rng.choice(list(PoolingMode)),
        data_type=rng.choice(list(DataType)),
        distinct_rows=rng.choice([None, rng.random() * 1e6]),
        reuse_histogram=rng.choice([None, ReuseHistogram(65536, fractions), ReuseHistogram(8192, (0.0,) * 17)]),
    )


def compute_measurement(index: int, seed: int = 0, campaign: str = "c", tables: int = 5) -> ComputeMeasurement:
    rng = random.Random(f"{seed}/{index}")
    return ComputeMeasurement(
        campaign=campaign,
        index=index,
        hardware="cpu-fbgemm",
        tables=tuple(random_table(rng, f"n{i}") for i in range(tables)),
        batch_size=rng.choice([2048, 65536]),
        optimizer=rng.choice(list(Optimizer)),
        forward_ms=rng.random() * 1e3,
        backward_ms=rng.random() / 3,
        forward_spread=0.0,
        backward_spread=rng.random(),
        repeats=rng.randrange(1, 9),
        environment={"torch": "2.13.0", "processor": "Xeon® 3"},
        measured_at=WHEN + timedelta(microseconds=index),
    )


def communication_measurement(index: int, campaign: str = "c") -> CommunicationMeasurement:
    rng = random.Random(index)
    ranks = rng.randrange(1, 9)
    return CommunicationMeasurement(
        campaign=campaign,
        index=index,
        hardware="cpu-fbgemm",
        widths=tuple(4 * rng.randrange(300) for _ in range(ranks)),
        batch_size=65536,
        start_delays_ms=tuple(rng.random() * 200 for _ in range(ranks)),
        forward_wait_ms=tuple(rng.random() * 200 for _ in range(ranks)),
        forward_transfer_ms=tuple(rng.random() * 100 for _ in range(ranks)),
        backward_ms=tuple(rng.random() for _ in range(ranks)),
        repeats=10,
        environment={},
        measured_at=WHEN,
    )


def nameless(measurement: ComputeMeasurement) -> ComputeMeasurement:
    return replace(measurement, tables=tuple(replace(table, name="") for table in measurement.tables))


def test_compute_measurements_come_back_equal_but_for_names(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    stored = [compute_measurement(i, tables=i % 7) for i in range(40)]
    assert [repository.add_compute(measurement) for measurement in stored] == [True] * 40
    loaded = repository.compute("cpu-fbgemm")
    assert [nameless(m) for m in loaded] == [nameless(m) for m in stored]
    assert [m.split for m in loaded] == [m.split for m in stored]
    assert all(table.name.startswith("t") for m in loaded for table in m.tables)


def test_many_at_once_store_the_same_as_one_by_one(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    stored = [compute_measurement(i, tables=3) for i in range(1100)]
    assert repository.add_compute_many(reversed(stored)) == 1100
    assert [nameless(m) for m in repository.compute("cpu-fbgemm")] == [nameless(m) for m in stored]
    assert repository.add_compute_many([*stored, compute_measurement(1100)]) == 1
    assert repository.measured_indices("c") == set(range(1101))


def test_the_first_measurement_under_an_index_stays(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    first, second = compute_measurement(0, seed=1), compute_measurement(0, seed=2)
    assert repository.add_compute(first)
    assert not repository.add_compute(second)
    assert repository.add_compute_many([second, compute_measurement(1), compute_measurement(1, seed=3)]) == 1
    assert [nameless(m) for m in repository.compute("cpu-fbgemm")] == [
        nameless(first),
        nameless(compute_measurement(1)),
    ]


def test_a_measurement_is_there_for_another_engine_as_soon_as_add_returns(engine: Engine, database_url: str) -> None:
    MeasurementRepository(engine).add_compute(compute_measurement(0))
    other = build_engine(database_url)
    assert MeasurementRepository(other).measured_indices("c") == {0}
    other.dispose()


def test_a_table_of_two_dims_has_one_configuration(engine: Engine) -> None:
    table = random_table(random.Random(0), "a")
    pair = replace(compute_measurement(0), tables=(table, table.sliced(4), table))
    repository = MeasurementRepository(engine)
    repository.add_compute(pair)
    (loaded,) = repository.compute("cpu-fbgemm")
    assert [t.embedding_dim for t in loaded.tables] == [table.embedding_dim, 4, table.embedding_dim]
    assert len({t.name for t in loaded.tables}) == 1


def test_the_combination_is_stored_as_the_domain_hashes_it(engine: Engine) -> None:
    measurement = compute_measurement(0)
    MeasurementRepository(engine).add_compute(measurement)
    with engine.connect() as connection:
        stored = connection.scalar(text("SELECT combination FROM compute_measurements"))
    assert stored == combination_fingerprint(measurement.tables, measurement.batch_size, measurement.optimizer)


def test_measurements_are_ordered_by_campaign_and_index_whatever_the_order_of_adding(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    keys = [("b", 0), ("B", 1), ("a", 10), ("a", 9), ("_", 3)]
    for campaign, index in keys:
        repository.add_compute(compute_measurement(index, campaign=campaign))
        repository.add_communication(communication_measurement(index, campaign=campaign))
    assert [(m.campaign, m.index) for m in repository.compute("cpu-fbgemm")] == sorted(keys)
    assert [(m.campaign, m.index) for m in repository.communication("cpu-fbgemm")] == sorted(keys)


def test_communication_measurements_come_back_equal(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    stored = [communication_measurement(i) for i in range(20)]
    assert repository.add_communication(stored[0])
    assert not repository.add_communication(replace(stored[0], repeats=99))
    assert repository.add_communication_many(reversed(stored)) == 19
    assert repository.communication("cpu-fbgemm") == stored


def test_hardware_is_kept_apart(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    repository.add_compute(compute_measurement(0))
    repository.add_compute(replace(compute_measurement(1), hardware="h200"))
    repository.add_communication(communication_measurement(0))
    assert [m.index for m in repository.compute("h200")] == [1]
    assert repository.communication("h200") == []


def test_an_empty_database_has_nothing(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    assert repository.add_compute_many([]) == 0
    assert repository.compute("cpu-fbgemm") == []
    assert repository.measured_indices("c") == set()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: replace(m, forward_ms=-1.0),
        lambda m: replace(m, forward_ms=float("nan")),
        lambda m: replace(m, backward_ms=float("inf")),
        lambda m: replace(m, batch_size=0),
        lambda m: replace(m, repeats=0),
        lambda m: replace(m, tables=(*m.tables, replace(m.tables[0], embedding_dim=0))),
        lambda m: replace(m, tables=(*m.tables, replace(m.tables[0], num_embeddings=0))),
    ],
)
def test_an_impossible_measurement_is_refused_whole(
    engine: Engine, spoil: Callable[[ComputeMeasurement], ComputeMeasurement]
) -> None:
    repository = MeasurementRepository(engine)
    with pytest.raises(IntegrityError):
        repository.add_compute(spoil(compute_measurement(0)))
    assert repository.compute("cpu-fbgemm") == []
    assert repository.add_compute(compute_measurement(0))


@pytest.mark.parametrize("name", ["start_delays_ms", "forward_wait_ms", "forward_transfer_ms", "backward_ms"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda times: times[1:],
        lambda times: (-1.0, *times[1:]),
        lambda times: (*times[:-1], float("nan")),
        lambda times: (float("inf"), *times[1:]),
    ],
)
def test_an_impossible_exchange_is_refused_whole(
    engine: Engine, name: str, spoil: Callable[[tuple[float, ...]], tuple[float, ...]]
) -> None:
    repository, whole = MeasurementRepository(engine), communication_measurement(0)
    changed: dict[str, Any] = {name: spoil(getattr(whole, name))}
    with pytest.raises(IntegrityError):
        repository.add_communication(replace(whole, **changed))
    assert repository.communication("cpu-fbgemm") == []
    assert repository.add_communication(whole)


def test_writers_of_the_same_measurements_at_once_neither_lose_nor_double_any(database_url: str) -> None:
    engine = build_engine(database_url, pool_size=6)
    repository, barrier = MeasurementRepository(engine), Barrier(6)
    stored = [compute_measurement(i, tables=2) for i in range(500)]

    def add(seed: int) -> int:
        mixed = random.Random(seed).sample(stored, len(stored))
        barrier.wait()
        return repository.add_compute_many(mixed)

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(add, range(6))) == 500
    assert [nameless(m) for m in repository.compute("cpu-fbgemm")] == [nameless(m) for m in stored]
    engine.dispose()


def test_times_are_the_same_instant_whatever_the_zone(engine: Engine) -> None:
    repository = MeasurementRepository(engine)
    repository.add_compute(compute_measurement(0))
    (loaded,) = repository.compute("cpu-fbgemm")
    assert loaded.measured_at.astimezone(UTC) == WHEN.astimezone(UTC)
