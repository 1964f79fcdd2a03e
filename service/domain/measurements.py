"""What the profiler measured: values that storage keeps and training reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from service.domain.plan import content_hash
from service.domain.tables import DataType, Optimizer, PoolingMode, ReuseHistogram, Table


class Split(StrEnum):
    """Parts of the measurements; frozen, because a row's part follows from what was measured."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


CHOSEN_BY = "chosen_by"
"""Names, in the environment of a measurement, the models, or requests, that chose it; absent from random draws."""

NOISY = "noisy"
"""Marks, in the environment of a measurement, that its repeats disagreed: it stays out of training."""

STANDS_FOR = "stands_for"
"""Names, in the environment of a measurement, the part of a table whose rows were cut for it."""


@dataclass(frozen=True, slots=True)
class ComputeMeasurement:
    """One combination of tables on one device, measured with the fused operator.

    Attributes:
        campaign: name of the campaign that drew it.
        index: position in the campaign; (campaign, index) is unique.
        hardware: what was measured, for example ``cpu-fbgemm``.
        tables: what the device held; names play no part.
        batch_size: global batch size.
        optimizer: optimizer fused into the backward pass.
        forward_ms: median over the repeats, milliseconds.
        backward_ms: median over the repeats, milliseconds.
        forward_spread: interquartile range over the repeats, relative to the median.
        backward_spread: interquartile range over the repeats, relative to the median.
        repeats: timed repeats.
        environment: versions of libraries and the processor's name; ``CHOSEN_BY`` where it was not drawn at random.
        measured_at: when, with time zone.
    """

    campaign: str
    index: int
    hardware: str
    tables: tuple[Table, ...]
    batch_size: int
    optimizer: Optimizer
    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float
    repeats: int
    environment: Mapping[str, str]
    measured_at: datetime

    @property
    def chosen(self) -> bool:
        """Whether models or requests chose the combination, rather than chance."""
        return CHOSEN_BY in self.environment

    @property
    def split(self) -> Split | None:
        """Part that all its tables belong to (see ``table_part``); None where they are of several.

        So a table that is judged on was never trained on, at whatever width, precision or batch size. A combination
        that mixes parts is of no use: in training it would tell of tables that are judged on. So is a table with cut
        rows that is of another part than it was with all of them.
        """
        parts = {table_part(table) for table in self.tables}
        if STANDS_FOR in self.environment:
            parts.add(Split(self.environment[STANDS_FOR]))
        return parts.pop() if len(parts) == 1 else None


@dataclass(frozen=True, slots=True)
class CommunicationMeasurement:
    """One forward and one backward all-to-all over D ranks.

    Attributes:
        campaign: name of the campaign that drew it.
        index: position in the campaign; (campaign, index) is unique.
        hardware: what was measured.
        widths: pooled output columns that each rank holds; D entries.
        batch_size: global batch size.
        start_delays_ms: how long each rank slept before its forward exchange; D entries.
        forward_wait_ms: median of each rank's time from its own start of the forward exchange to the last rank's,
            milliseconds; D entries.
        forward_transfer_ms: median of each rank's time from the last rank's start to its own end; D entries.
        backward_ms: the same for the backward exchange, which all start together; D entries.
        repeats: timed repeats.
        environment: versions of libraries and the processor's name.
        measured_at: when, with time zone.
    """

    campaign: str
    index: int
    hardware: str
    widths: tuple[int, ...]
    batch_size: int
    start_delays_ms: tuple[float, ...]
    forward_wait_ms: tuple[float, ...]
    forward_transfer_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    repeats: int
    environment: Mapping[str, str]
    measured_at: datetime

    @property
    def split(self) -> Split:
        """Part that this exchange belongs to: 80% train, 10% validation, 10% test; the order of ranks plays no part."""
        ranks = sorted(zip(self.widths, self.start_delays_ms, strict=True))
        bucket = int(content_hash({"ranks": ranks, "batch_size": self.batch_size})[:8], 16) % 10
        return Split.TEST if bucket == 0 else Split.VALIDATION if bucket == 1 else Split.TRAIN


Kind = TypeVar("Kind", ComputeMeasurement, CommunicationMeasurement)


def comparable(measurements: Sequence[Kind]) -> list[Kind]:
    """Those by the newest version of the bench, on the device that was measured last: others' times do not mix.

    Those whose repeats disagreed are left out.
    """
    clean = [m for m in measurements if NOISY not in m.environment]
    newest = max((_bench(m.environment) for m in clean), default=0)
    found = [m for m in clean if _bench(m.environment) == newest]
    last = max(found, key=lambda m: m.measured_at, default=None)
    return [m for m in found if last is None or m.environment.get("device") == last.environment.get("device")]


def configuration_content(table: Table) -> dict[str, object]:
    """What identifies a table's configuration apart from its name and dim, as JSON-like content."""
    histogram = table.reuse_histogram
    return {
        "num_embeddings": table.num_embeddings,
        "pooling_factor": table.pooling_factor,
        "num_features": table.num_features,
        "pooling_mode": table.pooling_mode.value,
        "data_type": table.data_type.value,
        "distinct_rows": table.distinct_rows,
        "histogram_batch_size": histogram.batch_size if histogram else None,
        "fractions": list(histogram.fractions) if histogram else None,
    }


def configured_table(name: str, content: Mapping[str, Any]) -> Table:
    """The table of ``configuration_content``, under a name; its dim is still to be set by ``sliced``."""
    fractions = content["fractions"]
    histogram = None if fractions is None else ReuseHistogram(content["histogram_batch_size"], tuple(fractions))
    return Table(
        name=name,
        num_embeddings=content["num_embeddings"],
        embedding_dim=0,
        pooling_factor=content["pooling_factor"],
        num_features=content["num_features"],
        pooling_mode=PoolingMode(content["pooling_mode"]),
        data_type=DataType(content["data_type"]),
        distinct_rows=content["distinct_rows"],
        reuse_histogram=histogram,
    )


def combination_fingerprint(tables: tuple[Table, ...], batch_size: int, optimizer: Optimizer) -> str:
    """Hash of a combination that ignores names and order; 32 hex digits."""
    members = sorted(content_hash(configuration_content(t) | {"embedding_dim": t.embedding_dim}) for t in tables)
    return content_hash({"tables": members, "batch_size": batch_size, "optimizer": optimizer.value})


def table_part(table: Table) -> Split:
    """Part of a table, whatever its width, precision and pooling mode: 70% train, 15% each of the others."""
    bucket = _bucket(table)
    return Split.TEST if bucket < 3 else Split.VALIDATION if bucket < 6 else Split.TRAIN


def table_half(table: Table) -> Split:
    """Half of a table, train or test; frozen as ``table_part`` is, whose other parts are all in the test half."""
    return Split.TEST if _bucket(table) < 10 else Split.TRAIN


def _bucket(table: Table) -> int:
    """One of twenty, by what a table is apart from its name, width, precision and pooling mode."""
    content = configuration_content(table)
    del content["data_type"], content["pooling_mode"]
    return int(content_hash(content)[:8], 16) % 20


def _bench(environment: Mapping[str, str]) -> int:
    # The first exchanges were stored without their version.
    return int(environment.get("bench", "1"))
