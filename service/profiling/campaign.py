"""Measuring campaigns: which combinations are drawn, and the loop that measures and stores them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch

from service.domain.errors import MeasurementRefused
from service.domain.measurements import ComputeMeasurement, configuration_content
from service.domain.plan import content_hash
from service.domain.ports import MeasurementStore
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.compute_bench import BENCH_VERSION, ComputeBench, device_name, needed_bytes

DIMS = (4, 8, 16, 32, 64, 128)
"""Dims that NeuroShard augments its pool with."""

BATCH_SIZES = {2_048: 0.3, 8_192: 0.3, 32_768: 0.3, 65_536: 0.1}
"""Batch sizes and how often each is drawn; the largest takes the longest and tells the least per minute."""

MAX_TABLES = 15
_UNUSUAL_WIDTH_SHARE = 0.2
_REDRAWS = 20


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """What identifies a campaign: the same settings draw the same combinations.

    Attributes:
        hardware: name that the measurements are stored under.
        seed: seed of the draws.
        optimizer: optimizer fused into the backward pass.
        data_type: precision of the weights.
        memory_bytes: most that one combination may take.
        device: ``cpu`` or ``cuda`` that it is measured on; another processor's campaign is another one.
    """

    hardware: str
    seed: int
    optimizer: Optimizer
    data_type: DataType
    memory_bytes: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Combination:
    """Tables of one device and the batch that they are measured with."""

    tables: tuple[Table, ...]
    batch_size: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a campaign stands.

    Attributes:
        measured: measurements made by this run.
        refused: combinations that could not be measured.
        stored: measurements of the campaign in the store before this run.
        refusal: why the last of the refused ones was; empty without any.
    """

    measured: int
    refused: int
    stored: int
    refusal: str = ""


class Campaign:
    """Draws combinations as NeuroShard does: 1 to 15 tables of the pool, each with a random dim, within memory.

    A fifth of the tables gets a width that is no power of two, as slices of cut tables have.
    """

    def __init__(self, pool: Sequence[Table], settings: CampaignSettings) -> None:
        self._pool = [_with_type(table, settings.data_type) for table in pool]
        self.settings = settings
        self.name = self._name()

    def combination(self, index: int) -> Combination:
        """The combination at a position; the same for the same pool and settings."""
        rng = np.random.default_rng([self.settings.seed, index])
        sizes, weights = zip(*BATCH_SIZES.items(), strict=True)
        batch_size = int(rng.choice(sizes, p=weights))
        tables: list[Table] = []
        left = self.settings.memory_bytes
        for _ in range(int(rng.integers(1, MAX_TABLES + 1))):
            drawn = self._draw(rng, batch_size, left)
            if drawn is not None:
                tables.append(drawn)
                left -= needed_bytes([drawn], batch_size, self.settings.optimizer)
        return Combination(tuple(tables), batch_size)

    def run(
        self,
        bench: ComputeBench,
        store: MeasurementStore,
        samples: int,
        budget_s: float,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Measures positions 0 .. ``samples`` that the store lacks, each stored durably as it is made.

        Stops after ``budget_s`` seconds; a KeyboardInterrupt loses only the measurement in hand.
        """
        done = store.measured_indices(self.name)
        environment = bench.environment()
        started = time.monotonic()
        measured = refused = 0
        refusal = ""
        for index in range(samples):
            if time.monotonic() - started > budget_s:
                break
            if index in done:
                continue
            try:
                measured += store.add_compute(self._measure(bench, index, environment))
            except MeasurementRefused as error:
                refused, refusal = refused + 1, error.detail
            report(Progress(measured, refused, len(done), refusal))
        return Progress(measured, refused, len(done), refusal)

    def _measure(self, bench: ComputeBench, index: int, environment: dict[str, str]) -> ComputeMeasurement:
        drawn = self.combination(index)
        rng = np.random.default_rng([self.settings.seed, index, 1])
        if not drawn.tables:
            raise MeasurementRefused("no table of the pool fits in memory: allow more, or give smaller tables")
        timing = bench.measure(drawn.tables, drawn.batch_size, self.settings.optimizer, rng)
        return ComputeMeasurement(
            campaign=self.name,
            index=index,
            hardware=self.settings.hardware,
            tables=drawn.tables,
            batch_size=drawn.batch_size,
            optimizer=self.settings.optimizer,
            forward_ms=timing.forward.median_ms,
            backward_ms=timing.backward.median_ms,
            forward_spread=timing.forward.spread,
            backward_spread=timing.backward.spread,
            repeats=timing.repeats,
            environment=environment,
            measured_at=datetime.now(UTC),
        )

    def _draw(self, rng: np.random.Generator, batch_size: int, left: int) -> Table | None:
        for _ in range(_REDRAWS):
            table = self._pool[int(rng.integers(len(self._pool)))].sliced(_width(rng))
            if needed_bytes([table], batch_size, self.settings.optimizer) <= left:
                return table
        return None

    def _name(self) -> str:
        content = {
            "bench": BENCH_VERSION,
            "draws": [DIMS, sorted(BATCH_SIZES.items()), MAX_TABLES, _UNUSUAL_WIDTH_SHARE],
            "pool": [configuration_content(table) for table in self._pool],
            "hardware": self.settings.hardware,
            "device": device_name(torch.device(self.settings.device)),
            "seed": self.settings.seed,
            "optimizer": self.settings.optimizer.value,
            "memory_bytes": self.settings.memory_bytes,
        }
        return f"{self.settings.hardware}-{content_hash(content)[:12]}"


def _width(rng: np.random.Generator) -> int:
    dim = int(rng.choice(DIMS))
    if rng.uniform() >= _UNUSUAL_WIDTH_SHARE:
        return dim
    return 4 * int(rng.integers(1, max(DIMS) // 4 + 1))


def _with_type(table: Table, data_type: DataType) -> Table:
    return replace(table, data_type=data_type)
