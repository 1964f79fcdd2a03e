"""Quality by hand-computed numbers, and slices that lose no row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.training.slices import LEAST_ROWS, Attribute, Judged, Quality, quality

MEASURED = np.array([10.0] * 5 + [20.0] * 5)
COVERED = np.array([False, True] * 5)
PREDICTED = np.array([11.0, 9.0, 10.0, 10.0, 10.0, 22.0, 18.0, 20.0, 20.0, 25.0])


def test_quality_is_what_is_computed_by_hand() -> None:
    found = quality(PREDICTED, MEASURED, COVERED)
    # Tau-b: all 25 pairs of a 10 and a 20 agree; 20 pairs are tied as measured, 3 + 1 as predicted, of 45.
    assert found.tau == pytest.approx(25 / np.sqrt((45 - 20) * (45 - 4)))
    assert (found.rows, found.mse, found.coverage) == (10, 3.5, 0.5)
    assert (found.mape, found.median_ape, found.bias) == pytest.approx((0.065, 0.05, 0.025))


def test_few_rows_are_counted_alone_and_rows_that_cannot_be_ranked_have_no_tau() -> None:
    assert quality(PREDICTED[1:], MEASURED[1:], COVERED[1:]) == Quality(LEAST_ROWS - 1)
    found = quality(np.full(LEAST_ROWS, 12.0), np.full(LEAST_ROWS, 10.0), COVERED)
    assert found.tau is None
    assert (found.mape, found.bias) == pytest.approx((0.2, 0.2))


def test_a_coverage_that_chance_does_not_explain_is_marked() -> None:
    def marked(rows: int, covered: int) -> bool | None:
        ones = np.ones(rows)
        return quality(ones, ones, np.arange(rows) < covered).coverage_off

    # Of 400 rows a binomial law has 348 to 371 covered in 95% of cases.
    assert [marked(400, covered) for covered in (346, 349, 360, 371, 373)] == [True, False, False, False, True]
    assert marked(399, 300) is None
    assert quality(PREDICTED, MEASURED, COVERED).as_dict()["coverage_off"] is None


def test_a_slice_starts_at_its_edge_and_names_are_slices_of_their_own() -> None:
    found = Attribute(np.array([1, 2, 3, 4, 90]), (2.0, 4.0)).slices()
    assert {called: rows.tolist() for called, rows in found.items()} == {
        "<2": [True, False, False, False, False],
        "2 to <4": [False, True, True, False, False],
        "4 or more": [False, False, False, True, True],
    }
    assert {c: int(rows.sum()) for c, rows in Attribute(np.array(["b", "a", "b"])).slices().items()} == {"a": 1, "b": 2}


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.sets(st.integers(-20, 20).map(lambda power: 2.0**power), max_size=6).map(lambda edges: tuple(sorted(edges))),
)
def test_slices_partition_the_rows(values: list[float], edges: tuple[float, ...]) -> None:
    slices = Attribute(np.array(values), edges).slices()
    assert (np.sum([*slices.values()], axis=0) == 1).all()
    assert all(rows.any() for rows in slices.values())


def test_a_slice_is_judged_on_its_rows_alone() -> None:
    twice, other = np.tile(PREDICTED, 2), np.concatenate([MEASURED, 2 * MEASURED])
    covered = np.concatenate([COVERED, ~COVERED & (PREDICTED > 10)])
    found = Judged(twice, other, covered, {"half": Attribute(np.repeat(["first", "second"], 10))}).sliced()["half"]
    assert found["first"] == quality(PREDICTED, MEASURED, COVERED)
    assert found["second"].bias == pytest.approx(1.025 / 2 - 1)
    assert found["second"].coverage == pytest.approx(0.3)
