"""What a model is least certain about, and that choices are unlike each other."""

from dataclasses import replace

import numpy as np
import pytest

from service.domain.error_law import QUANTILES, ErrorLaw, probabilities
from service.domain.ports import Floats
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.combinations import Combination
from service.profiling.uncertainty import most_uncertain, spread_out, uncertainties
from tests.fakes import FakeCompute

SMALL = Combination((Table("a", 1_000, 16, 1.0), Table("b", 2_000, 16, 2.0)), 512, Optimizer.SGD)
NONE = np.zeros((0, 1))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class Unsure(FakeCompute):
    """The fake, with a scale of the total's error."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def errors(self, *_: object) -> ErrorLaw:
        return ErrorLaw(np.array([[9.0, 9.0, self.scale]]), np.tile(probabilities(QUANTILES) - 0.5, (3, 1)), 0.2)


def test_the_width_is_that_of_the_total() -> None:
    # The 5% and the 95% quantile are 0.9 apart; the mean of the fake's novelties is 0.00015.
    assert uncertainties(Unsure(0.2), [SMALL])[0] == pytest.approx(0.2 * 0.9 * 1.00015)
    assert uncertainties(Unsure(0.6), [SMALL, SMALL]) == pytest.approx([0.6 * 0.9 * 1.00015] * 2)


def test_new_tables_are_uncertain_even_where_nothing_was_measured() -> None:
    new = replace(SMALL, tables=tuple(replace(t, num_embeddings=10**7) for t in SMALL.tables))

    class Nothing(FakeCompute):
        def novelty(self, tables: object, batch_size: int, optimizer: Optimizer) -> Floats:
            return np.array([np.inf, 0.0])

    known, unknown = uncertainties(FakeCompute(), [SMALL, new])
    assert unknown > 1.9 * known
    assert np.isfinite(uncertainties(Nothing(), [SMALL])).all()


def test_the_largest_scores_are_chosen_where_all_are_far_apart() -> None:
    far = np.eye(4) * 100
    assert spread_out(np.array([1.0, 4.0, 2.0, 3.0]), far, 2, np.zeros((0, 4))) == [1, 3]


def test_what_is_alike_is_chosen_once() -> None:
    points = np.array([[0.0], [0.01], [0.02], [1.0], [2.0]])
    scores = np.array([3.0, 2.9, 2.8, 1.0, 1.0])
    assert spread_out(scores, points, 3, NONE) == [0, 3, 4]


def test_what_was_chosen_before_is_not_chosen_again() -> None:
    points = np.array([[0.0], [1.0], [2.0]])
    assert spread_out(np.array([2.0, 1.0, 1.0]), points, 1, np.array([[0.0], [2.0]])) == [1]


def test_no_more_are_chosen_than_there_are_and_none_twice() -> None:
    alike = np.zeros((3, 2))
    assert sorted(spread_out(np.ones(3), alike, 10, np.zeros((0, 2)))) == [0, 1, 2]
    assert most_uncertain(FakeCompute(), [], 5, [], rng()) == []


def test_equal_combinations_are_not_measured_twice_in_a_round() -> None:
    other = replace(SMALL, batch_size=4_096)
    third = replace(SMALL, tables=tuple(replace(t, data_type=DataType.FP16) for t in SMALL.tables))
    found = most_uncertain(FakeCompute(), [SMALL, SMALL, other, third], 3, [], rng())
    assert sorted(found) in ([0, 2, 3], [1, 2, 3])
    assert most_uncertain(FakeCompute(), [SMALL, other], 1, [SMALL], rng()) == [1]


def test_draws_follow_the_uncertainty() -> None:
    new = replace(SMALL, batch_size=4_096, tables=tuple(replace(t, num_embeddings=10**8) for t in SMALL.tables))
    first = [most_uncertain(FakeCompute(), [SMALL, new], 1, [], np.random.default_rng(i))[0] for i in range(400)]
    # The novelty of the tables is 0 and, at most, 4: one is drawn five times as often as the other.
    assert first.count(1) / 400 == pytest.approx(5 / 6, abs=0.06)
