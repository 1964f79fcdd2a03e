"""The file of measurements beside the models: written, read and refused."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from service.domain.errors import DamagedArtifact
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.tables import DataType, Optimizer, ReuseHistogram, Table
from service.storage.measurement_files import read_measurements, write_measurements
from service.storage.measurements import MeasurementRepository

MADE = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
PLAIN = Table("x", 1000, 16, 2.5)
RICH = Table("y", 50, 64, 1.0, 2, data_type=DataType.FP16, distinct_rows=40.0,
             reuse_histogram=ReuseHistogram(65536, (1.0,) + (0.0,) * 16))  # fmt: skip


def compute(index: int, *tables: Table) -> ComputeMeasurement:
    values = (1.25, 2.5, 0.01, 0.02, 11, {"torch": "2"}, MADE)
    return ComputeMeasurement("c", index, "cpu-x", tables, 2048, Optimizer.SGD, *values)


def exchange(index: int) -> CommunicationMeasurement:
    values = ((0.0, 7.5), (7.4, 0.0), (0.1, 0.2), (0.3, 0.4), 9, {"cores": "2"}, MADE)
    return CommunicationMeasurement("e", index, "cpu-x", (4, 8), 2048, *values)


def written(path: Path) -> str:
    write_measurements(str(path), [compute(0, PLAIN, RICH), compute(1, PLAIN.sliced(32))], [exchange(0)])
    return str(path)


def test_measurements_survive_the_file_and_the_database(engine: Engine, tmp_path: Path) -> None:
    measured, exchanged = read_measurements(written(tmp_path / "all.json.gz"))
    assert [m.index for m in measured] == [0, 1]
    assert [(t.num_embeddings, t.embedding_dim, t.data_type) for t in measured[0].tables] == [
        (1000, 16, DataType.FP32),
        (50, 64, DataType.FP16),
    ]
    assert [m.split for m in measured] == [compute(0, PLAIN, RICH).split, compute(1, PLAIN.sliced(32)).split]
    assert exchanged == [exchange(0)]

    store = MeasurementRepository(engine)
    assert (store.add_compute_many(measured), store.add_communication_many(exchanged)) == (2, 1)
    assert (store.add_compute_many(measured), store.add_communication_many(exchanged)) == (0, 0)
    again = tmp_path / "again.json.gz"
    write_measurements(str(again), store.compute("cpu-x"), store.communication("cpu-x"))
    assert again.read_bytes() == (tmp_path / "all.json.gz").read_bytes()


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "all.json.gz"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedArtifact, match=r"all\.json\.gz"):
        read_measurements(str(path))
    with pytest.raises(DamagedArtifact, match=r"none\.json\.gz"):
        read_measurements(str(tmp_path / "none.json.gz"))


def test_bytes_that_are_no_longer_what_was_packed_are_refused(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "all.json.gz"))
    packed = path.read_bytes()
    header, trailer = 10, 8
    for place in range(header, len(packed) - trailer):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        with pytest.raises(DamagedArtifact, match=r"all\.json\.gz"):
            read_measurements(str(path))


def other(split: str) -> str:
    """A part that a combination does not belong to."""
    return "test" if split == "train" else "train"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda content: content.update(format=9), "format 9"),
        (
            lambda content: content.update(format=1),
            "format 1 is not 3.*the file of this release.*`shardwright db export`",
        ),
        (lambda content: content["communication"][0].pop("forward_wait_ms"), "forward_wait_ms"),
        (lambda content: content["compute"][0].update(split=other(content["compute"][0]["split"])), "part"),
        (lambda content: content["communication"][0].update(split=other(exchange(0).split.value)), "e 0 is in part"),
        (lambda content: content["compute"][0].update(tables=[[7, 16]]), "IndexError"),
        (lambda content: content.pop("communication"), "communication"),
    ],
)
def test_an_edited_file_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], object], said: str) -> None:
    path = Path(written(tmp_path / "all.json.gz"))
    content = json.loads(gzip.decompress(path.read_bytes()))
    edit(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(DamagedArtifact, match=said):
        read_measurements(str(path))
