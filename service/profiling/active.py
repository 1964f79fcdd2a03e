"""Active campaigns: rounds of what the models are least certain about and of the devices of their own plans."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.errors import MeasurementRefused
from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, Split, table_part
from service.domain.plan import content_hash
from service.domain.ports import CostModels, MeasurementStore
from service.domain.tables import DataType, Table
from service.profiling.campaign import CampaignSettings, MeasuringRun, Progress, campaign_content
from service.profiling.combinations import Combination, random_combination
from service.profiling.compute_bench import ComputeBench
from service.profiling.planned import planned_devices
from service.profiling.uncertainty import most_uncertain

ROUND = 50
"""Combinations that are chosen together, by one state of the models."""

PLANNED_SHARE = 0.5
"""Part of a round that are devices of plans."""

CANDIDATES = 10
"""Random combinations that are looked at for each one chosen."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Models that choose.

    Attributes:
        models: price the plans and say how certain they are.
        name: what identifies them; other weights have another name.
        learnt: how many combinations of each campaign the compute model was trained on, by the campaign's name.
    """

    models: CostModels
    name: str
    learnt: Mapping[str, int]


class ActiveCampaign:
    """Chooses combinations of the train part alone, so that the held-out parts stay as random as they were.

    Raises:
        MeasurementRefused: no table of the pool is of the train part.
    """

    def __init__(self, pool: Sequence[Table], settings: CampaignSettings) -> None:
        self._pool = [table for table in pool if table_part(table) is Split.TRAIN]
        if not self._pool:
            raise MeasurementRefused("no table of the pool is of the train part: give a larger pool")
        self.settings = settings
        content = {**campaign_content(pool, settings), "active": [ROUND, PLANNED_SHARE, CANDIDATES]}
        self.name = f"{settings.hardware}-active-{content_hash(content)[:12]}"

    def choices(
        self, first: int, chooser: Chooser, before: Sequence[Combination], count: int = ROUND
    ) -> list[Combination]:
        """What is measured next; the same for the same arguments, pool and settings.

        Combinations of one precision follow each other, since the bench fills its memory anew for another one. Their
        order is drawn, so that a round that is cut short does not always lack the same ones.

        Args:
            first: position in the campaign of the first one.
            chooser: the models that choose.
            before: what was chosen earlier and these models have not learnt from.
            count: how many.

        Raises:
            MeasurementRefused: no table of the pool fits in memory.
        """
        rng = np.random.default_rng([self.settings.seed, first, 2])
        planned = planned_devices(rng, self._pool, self.settings, chooser.models, round(PLANNED_SHARE * count))
        wanted = count - len(planned)
        settings = self.settings
        kinds = (settings.optimizers, settings.data_types, settings.memory_bytes)
        drawn = [random_combination(rng, self._pool, *kinds) for _ in range(CANDIDATES * wanted)]
        candidates = [combination for combination in drawn if combination.tables]
        uncertain = most_uncertain(chooser.models.compute, candidates, wanted, [*before, *planned], rng)
        both = [*planned, *(candidates[i] for i in uncertain)]
        if not both:
            raise MeasurementRefused("no table of the pool fits in memory: allow more, or give smaller tables")
        turn = dict(zip(DataType, rng.permutation(len(DataType)), strict=True))
        shuffled = [both[i] for i in rng.permutation(len(both))]
        return sorted(shuffled, key=lambda combination: turn[combination.tables[0].data_type])

    def run(
        self,
        bench: ComputeBench,
        store: MeasurementStore,
        chooser_of: Callable[[int, float], Chooser],
        samples: int,
        budget_s: float,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Measures round after round until ``samples`` positions are stored or refused, each stored as it is made.

        A campaign that was stopped goes on behind its last position, with a new round. Stops after ``budget_s``
        seconds; a KeyboardInterrupt loses only the measurement in hand.

        Args:
            bench: measures.
            store: keeps the measurements, and says which there are.
            chooser_of: the models for the next round, by how many measurements of the campaign are stored and the
                seconds that are left.
            samples: combinations to have in the end.
            budget_s: seconds after which no measurement is begun.
            report: called after every measurement.
        """
        ends = time.monotonic() + budget_s
        run = MeasuringRun(bench, store, self.name, self.settings, report)
        stored = sorted((m for m in store.compute(self.settings.hardware) if m.campaign == self.name), key=_position)
        measured = [Combination(m.tables, m.batch_size, m.optimizer) for m in stored]
        refused: list[Combination] = []
        index = max(run.done, default=-1) + 1
        left = samples - len(run.done)
        while left > 0 and time.monotonic() <= ends:
            chooser = chooser_of(len(measured), ends - time.monotonic())
            before = [*measured[chooser.learnt.get(self.name, 0) :], *refused]
            for combination in self.choices(index, chooser, before, min(ROUND, left)):
                if time.monotonic() > ends:
                    break
                was_measured = run.measure(index, combination, {CHOSEN_BY: chooser.name})
                (measured if was_measured else refused).append(combination)
                index, left = index + 1, left - 1
        return run.progress


def _position(measurement: ComputeMeasurement) -> int:
    return measurement.index
