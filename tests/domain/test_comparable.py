"""Which measurements are trained on together."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from service.domain.measurements import NOISY, STANDS_FOR, ComputeMeasurement, Split, comparable, table_part
from service.domain.tables import Optimizer, Table

TABLE = Table("t", 1000, 64, 2.0)
CLEAN = ComputeMeasurement(
    "c", 0, "cpu-x", (TABLE,), 512, Optimizer.SGD, 1.0, 2.0, 0.1, 0.1, 9, {"bench": "1", "device": "d"},
    datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip


def test_repeats_that_disagreed_are_left_out_and_do_not_say_which_device_was_measured_last() -> None:
    noisy = replace(
        CLEAN, environment={"bench": "2", "device": "other", NOISY: "0.5"}, measured_at=datetime(2026, 2, 1, tzinfo=UTC)
    )
    assert comparable([CLEAN, noisy]) == [CLEAN]
    assert comparable([noisy]) == []


@pytest.mark.parametrize("part", list(Split))
def test_a_table_with_cut_rows_is_of_use_only_in_the_part_of_the_whole_one(part: Split) -> None:
    cut = replace(CLEAN, environment={**CLEAN.environment, STANDS_FOR: part.value})
    assert cut.split == (part if part is table_part(TABLE) else None)
