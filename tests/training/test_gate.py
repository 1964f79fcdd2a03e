"""The gate: better on all held-out rows, and no worse on those that the serving version knew."""

from collections.abc import Mapping
from math import nan

import numpy as np
import pytest

from service.training.gate import Both, Earlier, Verdict, judge_costs, judge_policies
from service.training.slices import Judged

ROWS = 200
MEASURED = np.exp(np.random.default_rng(0).normal(size=ROWS))


def _judged(error: float, rows: int = ROWS, covered: float = 0.9, shuffled: bool = False) -> dict[str, Judged]:
    """Predictions that are off by an error, half of them above; so many are covered."""
    measured = MEASURED[:rows]
    predicted = measured * (1 + error * np.where(np.arange(rows) % 2, 1, -1))
    within = np.arange(rows) < round(covered * rows)
    return {"total": Judged(predicted[::-1] if shuffled else predicted, measured, within, {})}


SERVING = _judged(0.10)


def _verdict(
    new: Mapping[str, Judged], before: Mapping[str, Judged], known: int = ROWS, pace: float = 1.0, margin: float = 0.01
) -> Verdict:
    return judge_costs(("total",), Both(new, SERVING), Earlier(Both(before, SERVING), known, pace), margin)


def test_a_better_version_passes_with_what_it_was_judged_by() -> None:
    verdict = _verdict(_judged(0.08), _judged(0.10), pace=1.05)
    assert verdict.better
    assert verdict.reason == "its error on 200 held-out rows is 8.00%, the serving version's 10.00%"
    assert verdict.comparison["held_out"]["new"]["total"]["mape"] == pytest.approx(0.08)
    assert verdict.comparison["earlier"]["serving"]["total"]["mape"] == pytest.approx(0.10)
    assert (verdict.comparison["pace"], verdict.comparison["margin"]) == (1.05, 0.01)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (_verdict(_judged(0.0995), _judged(0.09)), "not lower by 1.0%"),
        (_verdict(_judged(0.08), _judged(0.09), margin=0.3), "not lower by 30.0%"),
        (_verdict(_judged(0.08), _judged(0.103)), "when the serving version was trained is 10.30%"),
        (_verdict(_judged(0.08), _judged(0.09, shuffled=True)), "Kendall's tau of total on those rows"),
        (_verdict(_judged(0.08), _judged(0.09, covered=0.7)), "hold 70.0% of those rows"),
        (_verdict(_judged(0.08), _judged(0.09, covered=1.0)), "hold 100.0% of those rows"),
        (_verdict(_judged(0.08), _judged(0.09), pace=1.11), "take 1.11 times as long"),
        (_verdict(_judged(0.08), _judged(0.09), pace=0.9), "take 0.90 times as long"),
        (_verdict(_judged(nan), _judged(0.09)), "its error on 200 held-out rows is nan%"),
    ],
)
def test_each_condition_refuses(verdict: Verdict, said: str) -> None:
    assert not verdict.better
    assert said in verdict.reason


@pytest.mark.parametrize(
    "verdict",
    [
        _verdict(_judged(0.0985), _judged(0.1015)),
        _verdict(_judged(0.0), _judged(0.0), margin=0.99),
        _verdict(_judged(0.08), _judged(0.09), pace=1.09),
        _verdict(_judged(0.08), _judged(0.09, covered=0.78)),
    ],
)
def test_what_is_within_the_limits_passes(verdict: Verdict) -> None:
    assert verdict.better, verdict.reason


def _uneven(error: float) -> dict[str, Judged]:
    """As ``_judged``, but half of the rows are off by much more than the others, in turns."""
    judged = _judged(error)["total"]
    off = np.where(np.arange(ROWS) // 2 % 2, 0.05, -0.05)
    return {
        "total": Judged(
            judged.predicted + judged.measured * off * np.sign(judged.predicted - judged.measured),
            judged.measured,
            judged.covered,
            {},
        )
    }


def test_what_chance_makes_of_the_earlier_error_passes_up_to_as_much_again() -> None:
    # The standard error of the difference is 0.05 / sqrt(200) = 0.35% of what was measured, more than 2% of 10%.
    said = "higher by more than the 0.40% that are let pass"
    assert said not in _verdict(_judged(0.08), _uneven(0.1035)).reason
    assert said in _verdict(_judged(0.08), _uneven(0.1045)).reason


def test_intervals_that_are_no_further_off_than_those_that_serve_pass() -> None:
    narrow = _judged(0.10, covered=0.6)
    better, worse = (
        judge_costs(
            ("total",), Both(_judged(0.08), narrow), Earlier(Both(_judged(0.09, covered=covered), narrow), ROWS)
        )
        for covered in (0.65, 0.55)
    )
    assert better.better
    assert not worse.better


def test_earlier_rows_that_cannot_be_compared_any_more_refuse() -> None:
    both = Both(_judged(0.08), SERVING)
    verdict = judge_costs(("total",), both, Earlier(None, known=40))
    assert not verdict.better
    assert "of 40 held-out rows" in verdict.reason
    assert judge_costs(("total",), both, Earlier(None)).better
    few = Both(_judged(0.5, rows=6), _judged(0.1, rows=6))
    assert judge_costs(("total",), both, Earlier(few, known=6)).better
    assert not judge_costs(("total",), both, Earlier(few, known=7)).better


def test_a_few_held_out_rows_judge_nothing() -> None:
    verdict = judge_costs(("total",), Both(_judged(0.01, rows=9), _judged(0.1, rows=9)), Earlier(None))
    assert not verdict.better
    assert "there are 9 held-out rows" in verdict.reason


def test_the_error_is_the_mean_of_all_costs_that_are_named() -> None:
    new, serving = ({"a": _judged(a)["total"], "b": _judged(b)["total"]} for a, b in ((0.05, 0.14), (0.10, 0.10)))
    assert judge_costs(("a", "b"), Both(new, serving), Earlier(None)).better
    assert not judge_costs(("b",), Both(new, serving), Earlier(None)).better


def test_a_policy_must_be_better_on_average_and_no_worse_in_any_family() -> None:
    serving = {"even": 0.96, "tight": 0.98}
    better = judge_policies({"even": 0.90, "tight": 0.99}, serving)
    assert better.better
    assert better.comparison["mean"] == {"new": 0.945, "serving": 0.97}
    for new, said in (
        ({"even": 0.955, "tight": 0.975}, "not lower by 1.0%"),
        ({"even": 0.8, "tight": 1.0}, "on tight"),
    ):
        verdict = judge_policies(new, serving)
        assert not verdict.better
        assert said in verdict.reason
