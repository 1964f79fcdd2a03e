"""Error laws: what they are given stays as it is, and both tails go on beyond it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.error_law import QUANTILES, ErrorLaw, normal_scores, probabilities


def law_of(quantiles: np.ndarray) -> ErrorLaw:
    return ErrorLaw(np.ones((1, 1)), quantiles[None], 0.0)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=300))
def test_quantiles_are_kept_and_what_is_less_probable_lies_further_out(drawn: list[float]) -> None:
    law = law_of(np.sort(np.array(drawn)))
    assert law.at(normal_scores(len(drawn)), 0) == pytest.approx(np.sort(drawn))
    values = law.at(np.linspace(-7, 7, 500), 0)
    assert (np.diff(values) >= -1e-9).all()
    assert values[0] <= min(drawn)
    assert values[-1] >= max(drawn)
    assert law_of(-np.sort(np.array(drawn))[::-1]).at(np.linspace(-7, 7, 500), 0) == pytest.approx(-values[::-1])


def test_an_exponential_tail_goes_on_as_it_is() -> None:
    at = probabilities(QUANTILES)
    law = law_of(np.where(at < 0.5, 0.0, -2.0 * np.log(2.0 * (1.0 - np.maximum(at, 0.5)))))
    # A standard normal variable is above 4 with probability 3.167e-5.
    assert law.at(np.array([4.0]), 0) == pytest.approx([-2.0 * np.log(2.0 * 3.167e-5)], rel=0.05)
    assert law.at(np.array([-4.0]), 0) == pytest.approx([0.0])
