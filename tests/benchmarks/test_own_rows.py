"""Rows of a measurement file by part, chosen ones apart, all of one time of the machine."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from benchmarks.own_rows import own_rows
from service.domain.measurements import CHOSEN_BY, Split
from service.storage.measurement_files import write_measurements
from tests.training.data_sheet_machine import NOW, synthetic


def test_chosen_rows_are_told_by_what_chose_them(tmp_path: Path) -> None:
    rows = [replace(row, measured_at=NOW + timedelta(seconds=i)) for i, row in enumerate(synthetic(60))]
    train = [row for row in rows if row.split is Split.TRAIN]
    chosen = {row.index for row in train[::3]}
    rows = [
        replace(row, environment={**row.environment, CHOSEN_BY: "models"}) if row.index in chosen else row
        for row in rows
    ]
    path = tmp_path / "rows.json.gz"
    write_measurements(str(path), rows[::-1], [])
    found = own_rows(str(path))
    assert [row.index for row in found.chosen] == sorted(chosen)
    assert len(found.random) == len(train) - len(chosen)
    assert [row.index for row in found.test] == [row.index for row in rows if row.split is Split.TEST]
    assert {row.measured_at for row in (*found.train, *found.held_out)} == {rows[-1].measured_at}
