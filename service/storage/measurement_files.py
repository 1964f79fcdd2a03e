"""Measurements as a compressed file beside the models: what ``db seed`` loads and ``db export`` writes."""

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from service.domain.errors import DamagedArtifact
from service.domain.measurements import (
    CommunicationMeasurement,
    ComputeMeasurement,
    Kind,
    configuration_content,
    configured_table,
)
from service.domain.plan import content_hash
from service.domain.tables import Optimizer, Table

FORMAT = 3
"""Layout of the file; raised when it changes."""


def write_measurements(
    path: str, compute: Sequence[ComputeMeasurement], communication: Sequence[CommunicationMeasurement]
) -> None:
    """Writes measurements as gzipped JSON; every table configuration once, and the part of every measurement.

    Args:
        path: any fsspec location.
        compute: combinations of one hardware.
        communication: exchanges of one hardware.
    """
    configurations: dict[str, dict[str, Any]] = {}
    position: dict[str, int] = {}

    def member(table: Table) -> list[int]:
        content = configuration_content(table)
        key = content_hash(content)
        position.setdefault(key, len(position))
        configurations[key] = content
        return [position[key], table.embedding_dim]

    rows = [
        {**_common(m), "tables": [member(t) for t in m.tables], "optimizer": m.optimizer.value,
         "forward_ms": m.forward_ms, "backward_ms": m.backward_ms, "forward_spread": m.forward_spread,
         "backward_spread": m.backward_spread}
        for m in compute
    ]  # fmt: skip
    exchanges = [
        {**_common(m), "widths": m.widths, "start_delays_ms": m.start_delays_ms, "forward_wait_ms": m.forward_wait_ms,
         "forward_transfer_ms": m.forward_transfer_ms, "backward_ms": m.backward_ms}
        for m in communication
    ]  # fmt: skip
    content = {"format": FORMAT, "configurations": list(configurations.values()), "compute": rows,
               "communication": exchanges}  # fmt: skip
    buffer = io.BytesIO()
    # mtime 0: the same measurements make the same file.
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed:
        packed.write(json.dumps(content, separators=(",", ":"), allow_nan=False).encode())
    files, target = url_to_fs(path, auto_mkdir=True)
    unfinished = f"{target}.unfinished"
    files.pipe_file(unfinished, buffer.getvalue())
    files.mv(unfinished, target)


def read_measurements(path: str) -> tuple[list[ComputeMeasurement], list[CommunicationMeasurement]]:
    """Reads what ``write_measurements`` wrote; tables are named by the position of their configuration.

    Raises:
        DamagedArtifact: the file is missing, damaged or of another format.
    """
    try:
        with fsspec.open(path, "rb") as file:
            content = json.loads(gzip.decompress(file.read()))
        if content["format"] != FORMAT:
            raise DamagedArtifact(
                f"{path}: format {content['format']} is not {FORMAT}, which this code reads: take the file of this "
                "release, or write it anew with its `shardwright db export` from the database that holds the "
                "measurements"
            )
        tables = [configured_table(f"t{i}", c) for i, c in enumerate(content["configurations"])]
        compute = [_in_its_part(_compute(row, tables), row) for row in content["compute"]]
        return compute, [_in_its_part(_exchange(row), row) for row in content["communication"]]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedArtifact(f"{path} cannot be read as measurements: {error!r}") from error


def _common(m: ComputeMeasurement | CommunicationMeasurement) -> dict[str, Any]:
    return {
        "campaign": m.campaign,
        "index": m.index,
        "hardware": m.hardware,
        "batch_size": m.batch_size,
        "repeats": m.repeats,
        "environment": dict(m.environment),
        "measured_at": m.measured_at.isoformat(),
        "split": m.split.value if m.split else None,
    }


def _compute(row: dict[str, Any], tables: Sequence[Table]) -> ComputeMeasurement:
    return ComputeMeasurement(
        tables=tuple(tables[i].sliced(dim) for i, dim in row["tables"]),
        optimizer=Optimizer(row["optimizer"]),
        forward_ms=row["forward_ms"],
        backward_ms=row["backward_ms"],
        forward_spread=row["forward_spread"],
        backward_spread=row["backward_spread"],
        **_read_common(row),
    )


def _exchange(row: dict[str, Any]) -> CommunicationMeasurement:
    return CommunicationMeasurement(
        widths=tuple(row["widths"]),
        start_delays_ms=tuple(row["start_delays_ms"]),
        forward_wait_ms=tuple(row["forward_wait_ms"]),
        forward_transfer_ms=tuple(row["forward_transfer_ms"]),
        backward_ms=tuple(row["backward_ms"]),
        **_read_common(row),
    )


def _in_its_part(found: Kind, row: dict[str, Any]) -> Kind:
    if (found.split.value if found.split else None) != row["split"]:
        raise ValueError(f"{found.campaign} {found.index} is in part {row['split']}, its content says {found.split}")
    return found


def _read_common(row: dict[str, Any]) -> dict[str, Any]:
    names = ("campaign", "index", "hardware", "batch_size", "repeats", "environment")
    return {name: row[name] for name in names} | {"measured_at": datetime.fromisoformat(row["measured_at"])}
