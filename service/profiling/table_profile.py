"""What the worker pool measures of a table: alone, at its width and at those that plans cut it to."""

import platform
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from service.domain.errors import MeasurementRefused
from service.domain.measurements import CHOSEN_BY, NOISY, STANDS_FOR, ComputeMeasurement, table_part
from service.domain.plan import Problem, content_hash
from service.domain.profiles import MeasuredProfile, ProfileSettings, TableProfile, campaign_of
from service.domain.tables import Table
from service.domain.topology import Topology
from service.profiling.compute_bench import BenchSettings, ComputeBench, ComputeTiming
from service.profiling.memory_limit import limit_own_memory
from service.profiling.rows_cap import capped, rows_cap

_DRIVER = Path("/proc/driver/nvidia/version")


class OperatorBench:
    """Profiles tables with the real operator; one to a process, whose memory it limits."""

    def __init__(self, settings: ProfileSettings) -> None:
        """Takes the memory.

        Raises:
            MeasurementRefused: the device does not have it.
        """
        if settings.device == "cpu":
            # An arena for weights, and as much again for what may be beside them.
            limit_own_memory(2 * settings.memory_bytes)
        self._settings = settings
        self._bench = ComputeBench(BenchSettings(device=settings.device, memory_bytes=settings.memory_bytes))
        self._environment = _environment(self._bench)

    def __call__(self, profile: TableProfile, first_index: int) -> MeasuredProfile:
        """Measures a table at each of its widths.

        Args:
            profile: what is measured.
            first_index: position of the first measurement in the profile's campaign.

        Raises:
            MeasurementRefused: the operator cannot run the table here, or it does not fit however few rows are kept.
        """
        table, rows = _cut_to_memory(profile, self._settings.memory_bytes)
        environment = dict(self._environment)
        if rows is not None:
            environment |= {STANDS_FOR: table_part(profile.table).value, "rows": f"{rows} of {_rows(profile)}"}
        measurements = []
        for offset, width in enumerate(profile.widths):
            piece = (table.sliced(width),)
            rng = np.random.default_rng([int(profile.key[:8], 16), first_index + offset])
            timing = self._bench.measure(piece, profile.batch_size, profile.optimizer, rng)
            noise = self._noise(timing)
            measurements.append(_measurement(profile, first_index + offset, piece, timing, environment | noise))
        return MeasuredProfile(tuple(measurements), rows)

    def _noise(self, timing: ComputeTiming) -> dict[str, str]:
        widest = max(timing.forward.spread, timing.backward.spread)
        return {NOISY: f"{widest:.2f}"} if widest > self._settings.noisy_spread else {}


def _rows(profile: TableProfile) -> int:
    return profile.table.num_embeddings


def _cut_to_memory(profile: TableProfile, limit_bytes: int) -> tuple[Table, int | None]:
    """The table with as many of its rows as fit, and how many those are where they are not all."""
    topology = Topology(profile.hardware, (limit_bytes,))
    problem = Problem((profile.table,), topology, profile.batch_size, profile.optimizer)
    try:
        cap = rows_cap(problem, [[profile.table]], limit_bytes, shared=True)
    except MeasurementRefused as error:
        raise MeasurementRefused(
            f"the table needs {error.data['needed_bytes'] / 2**30:.2f} GiB however few rows are kept, the worker may "
            f"use {limit_bytes / 2**30:.2f} GiB: start one with more --memory-gib, or ask for a smaller batch",
            **error.data,
        ) from error
    (table,) = capped(problem, cap).tables
    return table, None if cap is None else table.num_embeddings


def _measurement(
    profile: TableProfile, index: int, tables: tuple[Table, ...], timing: ComputeTiming, environment: Mapping[str, str]
) -> ComputeMeasurement:
    return ComputeMeasurement(
        campaign=campaign_of(profile.key),
        index=index,
        hardware=profile.hardware,
        tables=tables,
        batch_size=profile.batch_size,
        optimizer=profile.optimizer,
        forward_ms=timing.forward.median_ms,
        backward_ms=timing.backward.median_ms,
        forward_spread=timing.forward.spread,
        backward_spread=timing.backward.spread,
        repeats=timing.repeats,
        environment=environment,
        measured_at=datetime.now(UTC),
    )


def _environment(bench: ComputeBench) -> dict[str, str]:
    """What a bench says of itself, the driver, and a hash of all that; and the machine's name."""
    found = bench.environment() | {"kernel": platform.release()}
    if bench.settings.device != "cpu":
        found["cuda"] = str(torch.version.cuda)
        if _DRIVER.is_file():
            found["driver"] = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    told = {"fingerprint": content_hash(found)[:12], "host": socket.gethostname()}
    # Requests bring what models know least: what they err by on it is not the machine's pace.
    return found | told | {CHOSEN_BY: "requests"}
