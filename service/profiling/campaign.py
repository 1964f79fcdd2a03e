"""Measuring campaigns: what identifies them, and the loop that measures their combinations and stores them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch

from service.domain.errors import MeasurementRefused
from service.domain.measurements import ComputeMeasurement, Split, configuration_content, table_part
from service.domain.plan import content_hash
from service.domain.ports import MeasurementStore
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.combinations import (
    BATCH_SIZES,
    DIMS,
    LOOKUP_BYTES,
    MAX_TABLES,
    MOST_WORK_BYTES,
    UNUSUAL_SHARE,
    Combination,
    drawn_combination,
)
from service.profiling.compute_bench import BENCH_VERSION, ComputeBench, device_name

PARTS = {Split.TRAIN: 0.7, Split.VALIDATION: 0.15, Split.TEST: 0.15}
"""Parts that the tables of a combination are all of, and how often each is drawn."""

_BLOCK = 50


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """What identifies a campaign: the same settings draw the same combinations.

    Attributes:
        hardware: name that the measurements are stored under.
        seed: seed of the draws.
        optimizers: optimizers fused into the backward pass, each as often as the others.
        data_types: precisions of the weights, in blocks of positions that take turns.
        memory_bytes: most that one combination may take.
        device: ``cpu`` or ``cuda`` that it is measured on; another processor's campaign is another one.
    """

    hardware: str
    seed: int
    optimizers: tuple[Optimizer, ...]
    data_types: tuple[DataType, ...]
    memory_bytes: int
    device: str = "cpu"


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


class MeasuringRun:
    """Measures combinations of one campaign, each stored durably as it is made, and counts them.

    Attributes:
        done: positions that were stored before.
        progress: where the campaign stands.
    """

    def __init__(
        self,
        bench: ComputeBench,
        store: MeasurementStore,
        campaign: str,
        settings: CampaignSettings,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._bench = bench
        self._store = store
        self._campaign = campaign
        self._settings = settings
        self._report = report
        self._environment = bench.environment()
        self.done = store.measured_indices(campaign)
        self.progress = Progress(measured=0, refused=0, stored=len(self.done))

    def measure(self, index: int, combination: Combination, facts: Mapping[str, str] | None = None) -> bool:
        """Measures and stores one; False where it was refused, which ``progress`` tells.

        Args:
            index: its position in the campaign.
            combination: what is measured.
            facts: what its environment says besides libraries and device.
        """
        try:
            found = self._measured(index, combination, {**self._environment, **(facts or {})})
        except MeasurementRefused as error:
            self.progress = replace(self.progress, refused=self.progress.refused + 1, refusal=error.detail)
            self._report(self.progress)
            return False
        added = self._store.add_compute(found)
        self.progress = replace(self.progress, measured=self.progress.measured + added)
        self._report(self.progress)
        return True

    def _measured(self, index: int, combination: Combination, environment: Mapping[str, str]) -> ComputeMeasurement:
        if not combination.tables:
            raise MeasurementRefused("no table of the pool fits in memory: allow more, or give smaller tables")
        rng = np.random.default_rng([self._settings.seed, index, 1])
        timing = self._bench.measure(combination.tables, combination.batch_size, combination.optimizer, rng)
        return ComputeMeasurement(
            campaign=self._campaign,
            index=index,
            hardware=self._settings.hardware,
            tables=combination.tables,
            batch_size=combination.batch_size,
            optimizer=combination.optimizer,
            forward_ms=timing.forward.median_ms,
            backward_ms=timing.backward.median_ms,
            forward_spread=timing.forward.spread,
            backward_spread=timing.backward.spread,
            repeats=timing.repeats,
            environment=environment,
            measured_at=datetime.now(UTC),
        )


class Campaign:
    """Draws combinations as NeuroShard does: 1 to 15 tables of the pool, each with a random dim, within memory.

    A fifth of the tables gets a width that is no power of two, as slices of cut tables have, and a fifth of the
    combinations such a batch size. All tables of a combination are of one part of the split.
    """

    def __init__(self, pool: Sequence[Table], settings: CampaignSettings) -> None:
        self._parts = {part: [t for t in pool if table_part(t) is part] for part in PARTS}
        self.settings = settings
        self.name = f"{settings.hardware}-{content_hash(campaign_content(pool, settings))[:12]}"

    def combination(self, index: int) -> Combination:
        """The combination at a position; the same for the same pool and settings."""
        settings = self.settings
        rng = np.random.default_rng([settings.seed, index])
        # One after the other they would have the bench fill its memory anew every time.
        data_type = settings.data_types[index // _BLOCK % len(settings.data_types)]
        optimizer = settings.optimizers[int(rng.integers(len(settings.optimizers)))]
        return drawn_combination(rng, self._part(rng), optimizer, data_type, settings.memory_bytes)

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
        run = MeasuringRun(bench, store, self.name, self.settings, report)
        started = time.monotonic()
        for index in range(samples):
            if time.monotonic() - started > budget_s:
                break
            if index not in run.done:
                run.measure(index, self.combination(index))
        return run.progress

    def _part(self, rng: np.random.Generator) -> list[Table]:
        """Tables of a part, of those that the pool has any of."""
        weights = np.array([share if self._parts[part] else 0.0 for part, share in PARTS.items()])
        return self._parts[list(PARTS)[int(rng.choice(len(PARTS), p=weights / weights.sum()))]]


def campaign_content(pool: Sequence[Table], settings: CampaignSettings) -> dict[str, object]:
    """What identifies the draws of a campaign and what they are measured with, as JSON-like content."""
    return {
        "bench": BENCH_VERSION,
        "draws": [
            sorted(DIMS.items()),
            sorted(BATCH_SIZES.items()),
            list(PARTS.values()),
            MAX_TABLES,
            UNUSUAL_SHARE,
            MOST_WORK_BYTES,
            LOOKUP_BYTES,
        ],
        "pool": [configuration_content(table) for table in pool],
        "hardware": settings.hardware,
        "device": device_name(torch.device(settings.device)),
        "seed": settings.seed,
        "optimizers": [optimizer.value for optimizer in settings.optimizers],
        "data_types": [data_type.value for data_type in settings.data_types],
        "memory_bytes": settings.memory_bytes,
    }
