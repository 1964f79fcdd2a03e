"""How many rows reach an error, along a curve."""

import numpy as np
import pytest

from benchmarks.active_campaign import rows_for

SIZES = (200, 400, 800)
ERRORS = np.array([0.2, 0.1, 0.08])


@pytest.mark.parametrize(
    ("error", "rows"), [(0.3, 200), (0.2, 200), (0.15, 300), (0.1, 400), (0.09, 600), (0.08, 800), (0.07, np.inf)]
)
def test_rows_are_read_from_the_curve(error: float, rows: float) -> None:
    assert rows_for(error, SIZES, ERRORS) == pytest.approx(rows)


def test_a_curve_that_rises_first_is_read_where_it_comes_down() -> None:
    assert rows_for(0.15, SIZES, np.array([0.2, 0.3, 0.1])) == pytest.approx(700)
