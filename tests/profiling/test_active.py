"""Active campaigns: what is chosen, and that a stopped one goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy import Engine

from service.domain.errors import MeasurementRefused
from service.domain.measurements import CHOSEN_BY, Split, table_part
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.active import ActiveCampaign, Chooser
from service.profiling.campaign import CampaignSettings, Progress
from service.profiling.combinations import MAX_TABLES, MOST_WORK_BYTES, Combination, work_bytes
from service.profiling.compute_bench import BenchSettings, ComputeBench, needed_bytes
from service.profiling.planned import DEVICES, planned_devices
from service.profiling.pools import generated_pool
from service.storage.measurements import MeasurementRepository
from tests.fakes import FakeCompute, fake_models

OPTIMIZERS, DATA_TYPES = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD), (DataType.FP32, DataType.FP16)
SETTINGS = CampaignSettings("cpu-fbgemm", 0, OPTIMIZERS, DATA_TYPES, 2**30)
POOL = generated_pool(400)
SMALL_SETTINGS = CampaignSettings("cpu-fbgemm", 0, (Optimizer.SGD,), (DataType.FP32,), 2**29)
SMALL_POOL = tuple(Table(f"t{i}", 100 + i, 16, 0.002 * i) for i in range(60))


def chooser(name: str = "fake/compute/1", learnt: Mapping[str, int] | None = None) -> Chooser:
    return Chooser(fake_models(), name, learnt or {})


def always(measured: int, left_s: float) -> Chooser:
    return chooser()


def by(wanted: Chooser, measured: int, left_s: float) -> Chooser:
    return wanted


def quick_bench() -> ComputeBench:
    return ComputeBench(BenchSettings(memory_bytes=SMALL_SETTINGS.memory_bytes, warmup=0, repeats=2, least_repeats=2))


def test_a_round_is_of_train_tables_within_memory_and_work_and_changes_the_precision_once() -> None:
    found = ActiveCampaign(POOL, SETTINGS).choices(0, chooser(), [], 20)
    assert len(found) == 20
    assert {table_part(t) for c in found for t in c.tables} == {Split.TRAIN}
    assert all(needed_bytes(c.tables, c.batch_size, c.optimizer) <= SETTINGS.memory_bytes for c in found)
    assert all(work_bytes(c.tables, c.batch_size) <= MOST_WORK_BYTES for c in found)
    precisions = [{t.data_type for t in c.tables} for c in found]
    assert all(len(each) == 1 for each in precisions)
    assert sum(one != other for one, other in pairwise(precisions)) == 1
    assert {c.optimizer for c in found} == set(OPTIMIZERS)
    assert len({(c.tables, c.batch_size) for c in found}) == 20


def test_choices_follow_from_the_position_the_models_and_what_was_chosen_before() -> None:
    campaign, again = ActiveCampaign(POOL, SETTINGS), ActiveCampaign(POOL, SETTINGS)
    found = campaign.choices(0, chooser(), [], 10)
    assert found == again.choices(0, chooser(), [], 10)
    assert found != campaign.choices(10, chooser(), [], 10)
    assert found != campaign.choices(0, chooser(), found, 10)
    assert campaign.name != ActiveCampaign(POOL, replace(SETTINGS, seed=1)).name
    assert campaign.name.startswith("cpu-fbgemm-active-")


def test_planned_devices_are_those_of_whole_plans_and_hold_more_than_random_combinations() -> None:
    found = planned_devices(np.random.default_rng(1), POOL, replace(SETTINGS, memory_bytes=2**32), fake_models(), 40)
    assert len(found) == 40
    assert max(len(c.tables) for c in found) > MAX_TABLES
    assert all(needed_bytes(c.tables, c.batch_size, c.optimizer) <= 2**32 for c in found)
    assert all(work_bytes(c.tables, c.batch_size) <= MOST_WORK_BYTES for c in found)
    # The devices of a plan share its batch size and optimizer, and none of its tables is held twice.
    first = [c for c in found if (c.batch_size, c.optimizer) == (found[0].batch_size, found[0].optimizer)]
    assert DEVICES[0] <= len(first) <= DEVICES[1]
    assert len({t.name for c in first for t in c.tables}) >= 10
    costs = [FakeCompute().head(FakeCompute().encode(c.tables, c.batch_size, c.optimizer).sum(axis=0)) for c in first]
    assert max(float(c.sum()) for c in costs) < 3 * np.mean([c.sum() for c in costs])


def test_a_pool_without_train_tables_or_that_never_fits_is_refused() -> None:
    test = tuple(table for table in POOL if table_part(table) is Split.TEST)
    with pytest.raises(MeasurementRefused, match="train part"):
        ActiveCampaign(test, SETTINGS)
    huge = tuple(Table(f"huge{i}", 10**9 + i, 128, 1.0) for i in range(10))
    with pytest.raises(MeasurementRefused, match="fits in memory"):
        ActiveCampaign(huge, SETTINGS).choices(0, chooser(), [], 4)


def test_a_stopped_campaign_goes_on_behind_its_last_position(engine: Engine) -> None:
    store = MeasurementRepository(engine)
    campaign = ActiveCampaign(SMALL_POOL, SMALL_SETTINGS)

    def interrupt(progress: Progress) -> None:
        if progress.measured == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign.run(quick_bench(), store, always, 6, 60.0, interrupt)
    assert store.measured_indices(campaign.name) == {0, 1, 2}
    before = store.compute("cpu-fbgemm")

    progress = campaign.run(quick_bench(), store, always, 6, 60.0)
    assert (progress.stored, progress.measured, progress.refused) == (3, 3, 0)
    kept = store.compute("cpu-fbgemm")
    assert kept[:3] == before
    assert [m.index for m in kept] == [0, 1, 2, 3, 4, 5]
    assert {m.campaign for m in kept} == {campaign.name}
    assert all(m.split is Split.TRAIN for m in kept)
    assert {m.environment[CHOSEN_BY] for m in kept} == {"fake/compute/1"}
    assert len({(tuple(t.nameless() for t in m.tables), m.batch_size) for m in kept}) == 6


def test_every_round_asks_for_the_models_and_says_which_chose(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.profiling.active.ROUND", 2)
    asked: list[int] = []

    def chooser_of(measured: int, left_s: float) -> Chooser:
        assert 0.0 < left_s <= 60.0
        asked.append(measured)
        return chooser(f"version {len(asked)}")

    store = MeasurementRepository(engine)
    campaign = ActiveCampaign(SMALL_POOL, SMALL_SETTINGS)
    campaign.run(quick_bench(), store, chooser_of, 5, 60.0)
    assert asked == [0, 2, 4]
    named = [m.environment[CHOSEN_BY] for m in store.compute("cpu-fbgemm")]
    assert named == ["version 1"] * 2 + ["version 2"] * 2 + ["version 3"]


def test_the_precision_that_comes_first_is_drawn() -> None:
    campaign = ActiveCampaign(POOL, SETTINGS)
    first = {campaign.choices(start, chooser(), [], 4)[0].tables[0].data_type for start in range(12)}
    assert first == set(DATA_TYPES)


def test_a_campaign_that_goes_on_avoids_what_the_models_have_not_learnt_from(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MeasurementRepository(engine)
    campaign = ActiveCampaign(SMALL_POOL, SMALL_SETTINGS)
    campaign.run(quick_bench(), store, always, 4, 60.0)
    chosen = [Combination(m.tables, m.batch_size, m.optimizer) for m in store.compute("cpu-fbgemm")]
    given: list[Sequence[Combination]] = []
    choices = ActiveCampaign.choices

    def noted(
        self: ActiveCampaign, first: int, models: Chooser, before: Sequence[Combination], count: int
    ) -> list[Combination]:
        given.append(list(before))
        return choices(self, first, models, before, count)

    monkeypatch.setattr(ActiveCampaign, "choices", noted)
    for learnt, samples in ((0, 5), (3, 6), (6, 7)):
        other = chooser("another version", {campaign.name: learnt, "another campaign": 100})
        campaign.run(quick_bench(), store, partial(by, other), samples, 60.0)
    first, second, third = given
    assert first == chosen
    assert second[0] == chosen[3]
    assert (len(second), len(third)) == (2, 0)


def test_the_time_budget_stops_an_active_campaign(engine: Engine) -> None:
    campaign = ActiveCampaign(SMALL_POOL, SMALL_SETTINGS)
    progress = campaign.run(quick_bench(), MeasurementRepository(engine), always, 50, -1.0)
    assert (progress.measured, progress.refused) == (0, 0)
