"""The repository of measurements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, RowMapping, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from service.domain.measurements import (
    CommunicationMeasurement,
    ComputeMeasurement,
    combination_fingerprint,
    configuration_content,
    configured_table,
)
from service.domain.plan import content_hash
from service.domain.tables import Optimizer, Table
from service.storage.engine import storage_errors
from service.storage.rows import (
    CommunicationMeasurementRow,
    ComputeMeasurementRow,
    MeasuredTableRow,
    TableConfigurationRow,
)

_CHUNK = 500

_Key = tuple[str, int]
_Kind = TypeVar("_Kind", ComputeMeasurement, CommunicationMeasurement)
_MeasurementRow = type[ComputeMeasurementRow] | type[CommunicationMeasurementRow]


class MeasurementRepository:
    """Keeps measurements in Postgres, each under its campaign and index.

    Table names are not kept: a loaded table is named ``t<id of its configuration>``, everything else is as stored.
    """

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def add_compute(self, measurement: ComputeMeasurement) -> bool:
        """Stores a measurement durably; False, and nothing stored, where its campaign has that index already.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        return self.add_compute_many([measurement]) == 1

    def add_compute_many(self, measurements: Iterable[ComputeMeasurement]) -> int:
        """Stores those that are not there yet, some hundred a transaction; returns how many that were.

        Raises:
            StorageUnavailable: the database cannot be reached; measurements before it may be stored.
        """
        added = 0
        for chunk in _chunks(measurements):
            with storage_errors(), self._engine.begin() as connection:
                added += insert_compute(connection, chunk)
        return added

    def compute(self, hardware: str) -> list[ComputeMeasurement]:
        """All compute measurements of a hardware, by campaign and index.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            return _load_compute(connection, hardware)

    def measured_indices(self, campaign: str) -> set[int]:
        """Indices of a campaign's compute measurements.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        query = select(ComputeMeasurementRow.index).where(ComputeMeasurementRow.campaign == campaign)
        with storage_errors(), self._engine.connect() as connection:
            return set(connection.scalars(query))

    def add_communication(self, measurement: CommunicationMeasurement) -> bool:
        """Stores a measurement durably; False, and nothing stored, where its campaign has that index already.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        return self.add_communication_many([measurement]) == 1

    def add_communication_many(self, measurements: Iterable[CommunicationMeasurement]) -> int:
        """Stores those that are not there yet, some hundred a transaction; returns how many that were.

        Raises:
            StorageUnavailable: the database cannot be reached; measurements before it may be stored.
        """
        added = 0
        for chunk in _chunks(measurements):
            values = [_communication_values(measurement) for _, measurement in sorted(_by_key(chunk).items())]
            with storage_errors(), self._engine.begin() as connection:
                added += len(_insert_new(connection, CommunicationMeasurementRow, values))
        return added

    def communication(self, hardware: str) -> list[CommunicationMeasurement]:
        """All communication measurements of a hardware, by campaign and index.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            return [_communication(row) for row in _rows(connection, CommunicationMeasurementRow, hardware)]


def _chunks(measurements: Iterable[_Kind]) -> Iterator[list[_Kind]]:
    remaining = iter(measurements)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


def _by_key(measurements: Iterable[_Kind]) -> dict[_Key, _Kind]:
    """The first measurement under each campaign and index."""
    first: dict[_Key, _Kind] = {}
    for measurement in measurements:
        first.setdefault((measurement.campaign, measurement.index), measurement)
    return first


def _insert_new(connection: Connection, row: _MeasurementRow, values: Sequence[Mapping[str, Any]]) -> dict[_Key, int]:
    """Inserts what is not there yet; ids of what was inserted. Sorted values keep two writers from a deadlock."""
    statement = insert(row).on_conflict_do_nothing(index_elements=["campaign", "index"])
    inserted = connection.execute(statement.returning(row.id, row.campaign, row.index), values)
    return {(campaign, index): identity for identity, campaign, index in inserted}


def insert_compute(connection: Connection, measurements: Iterable[ComputeMeasurement]) -> int:
    """Stores, in the transaction of a connection, measurements that are not there yet; how many that were."""
    by_key = _by_key(measurements)
    ids = _insert_new(connection, ComputeMeasurementRow, [_compute_values(by_key[key]) for key in sorted(by_key)])
    prints = {key: [content_hash(configuration_content(table)) for table in by_key[key].tables] for key in ids}
    contents = {
        fingerprint: configuration_content(table)
        for key in ids
        for fingerprint, table in zip(prints[key], by_key[key].tables, strict=True)
    }
    configurations = _configuration_ids(connection, contents)
    tables = [
        {
            "measurement_id": identity,
            "position": position,
            "configuration_id": configurations[fingerprint],
            "embedding_dim": by_key[key].tables[position].embedding_dim,
        }
        for key, identity in ids.items()
        for position, fingerprint in enumerate(prints[key])
    ]
    if tables:
        connection.execute(insert(MeasuredTableRow), tables)
    return len(ids)


def _configuration_ids(connection: Connection, contents: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    """Ids of configurations by fingerprint; those that are not there yet are inserted."""
    row = TableConfigurationRow
    if contents:
        new = [{"fingerprint": fingerprint, **contents[fingerprint]} for fingerprint in sorted(contents)]
        connection.execute(insert(row).on_conflict_do_nothing(index_elements=["fingerprint"]), new)
    known = connection.execute(select(row.fingerprint, row.id).where(row.fingerprint == func.any(list(contents))))
    return dict(known.all())


def _compute_values(measurement: ComputeMeasurement) -> dict[str, Any]:
    return {
        "campaign": measurement.campaign,
        "index": measurement.index,
        "hardware": measurement.hardware,
        "batch_size": measurement.batch_size,
        "optimizer": measurement.optimizer.value,
        "forward_ms": measurement.forward_ms,
        "backward_ms": measurement.backward_ms,
        "forward_spread": measurement.forward_spread,
        "backward_spread": measurement.backward_spread,
        "repeats": measurement.repeats,
        "environment": dict(measurement.environment),
        "measured_at": measurement.measured_at,
        "combination": combination_fingerprint(measurement.tables, measurement.batch_size, measurement.optimizer),
    }


def _communication_values(measurement: CommunicationMeasurement) -> dict[str, Any]:
    return {
        "campaign": measurement.campaign,
        "index": measurement.index,
        "hardware": measurement.hardware,
        "widths": list(measurement.widths),
        "batch_size": measurement.batch_size,
        "start_delays_ms": list(measurement.start_delays_ms),
        "forward_wait_ms": list(measurement.forward_wait_ms),
        "forward_transfer_ms": list(measurement.forward_transfer_ms),
        "backward_ms": list(measurement.backward_ms),
        "repeats": measurement.repeats,
        "environment": dict(measurement.environment),
        "measured_at": measurement.measured_at,
    }


def _rows(connection: Connection, row: _MeasurementRow, hardware: str) -> Sequence[RowMapping]:
    # Sorted by bytes, so that every database gives training the same order.
    order = row.campaign.collate("C"), row.index
    return connection.execute(select(row.__table__).where(row.hardware == hardware).order_by(*order)).mappings().all()


def _load_compute(connection: Connection, hardware: str) -> list[ComputeMeasurement]:
    measurements = _rows(connection, ComputeMeasurementRow, hardware)
    members = _members(connection, hardware)
    configurations = _configurations(connection)
    tables = {
        (identity, dim): replace(configurations[identity], embedding_dim=dim)
        for identity, dim in {member for held in members.values() for member in held}
    }
    return [
        _compute(values, tuple(tables[member] for member in members.get(values["id"], ()))) for values in measurements
    ]


def _members(connection: Connection, hardware: str) -> dict[int, list[tuple[int, int]]]:
    """Configuration and dim of each table of each measurement, by the measurement's id and in order."""
    row = MeasuredTableRow
    query = (
        select(
            row.measurement_id,
            func.array_agg(aggregate_order_by(row.configuration_id, row.position)),
            func.array_agg(aggregate_order_by(row.embedding_dim, row.position)),
        )
        .join(ComputeMeasurementRow, ComputeMeasurementRow.id == row.measurement_id)
        .where(ComputeMeasurementRow.hardware == hardware)
        .group_by(row.measurement_id)
    )
    return {identity: list(zip(ids, dims, strict=True)) for identity, ids, dims in connection.execute(query)}


def _configurations(connection: Connection) -> dict[int, Table]:
    """Every configuration by id, as a table whose dim is still to be set."""
    rows = connection.execute(select(TableConfigurationRow.__table__)).mappings()
    return {values["id"]: configured_table(f"t{values['id']}", dict(values)) for values in rows}


def _compute(values: RowMapping, tables: tuple[Table, ...]) -> ComputeMeasurement:
    return ComputeMeasurement(
        campaign=values["campaign"],
        index=values["index"],
        hardware=values["hardware"],
        tables=tables,
        batch_size=values["batch_size"],
        optimizer=Optimizer(values["optimizer"]),
        forward_ms=values["forward_ms"],
        backward_ms=values["backward_ms"],
        forward_spread=values["forward_spread"],
        backward_spread=values["backward_spread"],
        repeats=values["repeats"],
        environment=values["environment"],
        measured_at=values["measured_at"],
    )


def _communication(values: RowMapping) -> CommunicationMeasurement:
    return CommunicationMeasurement(
        campaign=values["campaign"],
        index=values["index"],
        hardware=values["hardware"],
        widths=tuple(values["widths"]),
        batch_size=values["batch_size"],
        start_delays_ms=tuple(values["start_delays_ms"]),
        forward_wait_ms=tuple(values["forward_wait_ms"]),
        forward_transfer_ms=tuple(values["forward_transfer_ms"]),
        backward_ms=tuple(values["backward_ms"]),
        repeats=values["repeats"],
        environment=values["environment"],
        measured_at=values["measured_at"],
    )
