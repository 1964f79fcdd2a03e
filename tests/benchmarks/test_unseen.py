"""What is left out of training and has no held-out rows is said, without a training."""

import pytest

from benchmarks import unseen
from benchmarks.own_rows import OwnRows, Rows
from service.cost_models.compute import ComputeModel
from service.domain.measurements import Split
from tests.training.data_sheet_machine import synthetic

ROWS = synthetic(80)
KNOWN = OwnRows(
    [row for row in ROWS if row.split is Split.TRAIN], [], [], [row for row in ROWS if row.split is Split.TEST]
)


def test_a_range_without_held_out_rows_is_not_trained_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def noted(rows: Rows) -> ComputeModel:
        trained.append(len(rows))
        raise LookupError

    monkeypatch.setattr(unseen, "trained", noted)
    model: ComputeModel = None  # type: ignore[assignment]
    none = unseen.LeftOut("batch size 7", lambda row: row.batch_size == 7)
    assert unseen.row_of(none, KNOWN, model, 0.1) == "| batch size 7 | none | - | - | - |"
    assert trained == []
    some = unseen.LeftOut("batch size 1,024", lambda row: row.batch_size == 1_024)
    with pytest.raises(LookupError):
        unseen.row_of(some, KNOWN, model, 0.1)
    assert trained == [sum(row.batch_size != 1_024 for row in KNOWN.random)]
