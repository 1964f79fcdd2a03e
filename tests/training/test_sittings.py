"""Sittings: a machine that was slower on one day is told, and taken out."""

from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, Split, comparable
from service.training.compute_trainer import ComputeTraining
from service.training.sittings import Sitting, sittings, without_factors
from tests.training.test_compute_training import NOW, synthetic

QUICK = ComputeTraining(epochs=30)
SLOWER = 1.3


def two_days(first: int, second: int) -> list[ComputeMeasurement]:
    """Rows a second apart, the first of them a day earlier, when everything took ``SLOWER`` times as long."""
    rows = [replace(row, measured_at=NOW + timedelta(seconds=i)) for i, row in enumerate(synthetic(first + second))]
    return [
        times(replace(row, measured_at=row.measured_at - timedelta(days=1)), SLOWER) for row in rows[:first]
    ] + rows[first:]


def times(row: ComputeMeasurement, factor: float) -> ComputeMeasurement:
    return replace(row, forward_ms=row.forward_ms * factor, backward_ms=row.backward_ms * factor)


def test_a_slower_day_is_told_and_taken_out() -> None:
    rows = two_days(400, 300)
    first, second = sittings(rows, QUICK)
    assert (first.rows, second.rows) == (400, 300)
    assert first.factor == pytest.approx(SLOWER, rel=0.05)
    assert second.factor == 1.0
    clean = without_factors(rows, [first, second])
    assert clean[0].forward_ms == rows[0].forward_ms / first.factor
    assert clean[400:] == rows[400:]


def test_what_models_chose_to_measure_tells_nothing_of_the_machine() -> None:
    rows = two_days(300, 300)
    chosen = [replace(row, environment={**row.environment, CHOSEN_BY: "models"}) for row in rows[300:]]
    assert [sitting.factor for sitting in sittings(rows[:300] + chosen, QUICK)] == [1.0, 1.0]


def test_the_test_part_has_no_say() -> None:
    rows = two_days(200, 200)
    changed = [times(row, 5.0) if row.split is Split.TEST else row for row in rows]
    assert sittings(changed, QUICK) == sittings(rows, QUICK)


def test_a_sitting_too_small_to_tell_is_left_as_it_is() -> None:
    found = sittings(two_days(40, 300), QUICK)
    assert [sitting.factor for sitting in found] == [1.0, 1.0]


def test_a_pause_of_more_than_five_minutes_ends_a_sitting() -> None:
    minutes = [0, 4, 9, 15, 16]
    rows = [
        replace(row, measured_at=NOW + timedelta(minutes=at))
        for row, at in zip(synthetic(len(minutes)), minutes, strict=True)
    ]
    assert [sitting.rows for sitting in sittings(rows[::-1], QUICK)] == [3, 2]


def test_a_sitting_is_read_from_a_manifest_as_it_was_written() -> None:
    sitting = Sitting(NOW, NOW + timedelta(hours=1), 7, 1.25)
    assert Sitting.from_dict(sitting.as_dict()) == sitting


def test_rows_of_another_device_are_not_comparable() -> None:
    theirs, ours = two_days(3, 2)[:3], two_days(3, 2)[3:]
    theirs = [replace(row, environment={**row.environment, "device": "another"}) for row in theirs]
    assert comparable(theirs + ours) == ours
