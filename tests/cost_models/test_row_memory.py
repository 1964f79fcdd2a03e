"""Rows of tables are made once, whatever the tables are called and whoever asks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from service.cost_models import row_memory
from service.cost_models.row_memory import RowMemory
from service.domain.ports import Floats
from service.domain.tables import Optimizer, Table

TABLES = [Table(f"t{rows}", rows, 4, 1.0) for rows in range(1, 41)]


class Made:
    """Makes the rows of tables, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tables: Sequence[Table]) -> Floats:
        self.count += len(tables)
        return np.array([[float(table.num_embeddings), 1.0] for table in tables])


def test_each_row_is_made_once_and_comes_in_the_order_asked_for() -> None:
    memory, made = RowMemory[Floats](), Made()
    first = memory.rows(TABLES, 512, Optimizer.SGD, made)
    assert made.count == 40
    renamed = [replace(table, name="x") for table in reversed(TABLES)]
    np.testing.assert_array_equal(memory.rows(renamed, 512, Optimizer.SGD, made), first[::-1])
    assert made.count == 40
    memory.rows(TABLES[:1], 1024, Optimizer.SGD, made)
    memory.rows(TABLES[:1], 512, Optimizer.ADAM, made)
    memory.rows([replace(TABLES[0], embedding_dim=8)], 512, Optimizer.SGD, made)
    assert made.count == 43


def test_rows_are_right_also_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "KEPT_TABLES", 10)
    memory, made = RowMemory[Floats](), Made()
    for start in (0, 4, 8, 0):
        rows = memory.rows(TABLES[start : start + 8], 512, Optimizer.SGD, made)
        assert rows[:, 0].tolist() == [table.num_embeddings for table in TABLES[start : start + 8]]
    # Of each eight, the four of the eight before were still known; the first eight were not any more.
    assert made.count == 8 + 4 + 4 + 8
    assert len(memory.rows(TABLES, 512, Optimizer.SGD, made)) == 40
