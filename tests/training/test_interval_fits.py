"""Error laws and novelty fitted to measurements: they hold on new ones, by construction never narrower when unlike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.arrays import Arrays
from service.cost_models.error_model import ErrorModel, device_novelty
from service.cost_models.novelty import Novelty
from service.domain.error_law import QUANTILES, ErrorLaw, probabilities
from service.domain.measurements import Split
from service.domain.tables import Optimizer, Table
from service.training.compute_dataset import measured_domain
from service.training.conformal import conformal_quantiles
from service.training.error_fit import fit_errors
from service.training.novelty_fit import fit_novelty
from tests.examples import examples
from tests.training.test_compute_training import synthetic

ROWS = 8_000


def drawn(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratios [N, 2], features [N, 2] and novelties [N]: skewed errors that grow with one feature and with novelty."""
    rng = np.random.default_rng(seed)
    features, novelty = rng.normal(size=(rows, 2)), rng.uniform(0, 1.3, size=rows)
    spread = 0.1 * np.exp(0.6 * features[:, 0] + 0.5 * np.minimum(novelty, 1)) * np.maximum(novelty, 1)
    errors = rng.gumbel(size=(rows, 2)) * spread[:, None]
    errors[:, 1] *= 2
    return errors, features, novelty


def fitted(seed: int, rows: int = ROWS) -> Arrays:
    ratios, features, novelty = drawn(seed, rows)
    return fit_errors(ratios, np.ones(ratios.shape, dtype=np.bool_), features, novelty, np.arange(rows))


def coverage(law: ErrorLaw, ratios: np.ndarray, cost: int) -> float:
    ones = np.ones(len(ratios))
    low, high = law.interval(ones, cost)
    return float(((low <= np.exp(ratios[:, cost])) & (np.exp(ratios[:, cost]) <= high)).mean())


def test_intervals_hold_nine_in_ten_new_values_overall_and_where_errors_are_small_or_large() -> None:
    model = ErrorModel("v", fitted(0), 2, 2, 0.0)
    ratios, features, novelty = drawn(1, 20_000)
    law = model.law(features, novelty)
    for cost in (0, 1):
        assert coverage(law, ratios, cost) == pytest.approx(0.9, abs=0.02)
        for rows in (features[:, 0] < -1, features[:, 0] > 1, novelty < 0.3, novelty > 1):
            of_slice = ErrorLaw(law.scales[rows], law.quantiles, 0.0)
            assert coverage(of_slice, ratios[rows], cost) == pytest.approx(0.9, abs=0.035)


def test_with_few_rows_intervals_hold_at_least_as_often_as_they_say_on_average() -> None:
    ratios, features, novelty = drawn(1, 5_000)
    found = []
    for seed in range(2, 32):
        law = ErrorModel("v", fitted(seed, 39), 2, 2, 0.0).law(features, novelty)
        found.append(coverage(law, ratios, 0))
    assert np.mean(found) > 0.88


def test_a_scale_that_learnt_noise_does_not_narrow_the_intervals() -> None:
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ratios, features, none = rng.normal(size=(1_060, 1)), rng.normal(size=(1_060, 12)), np.zeros(1_060)
        used = np.ones((60, 1), dtype=np.bool_)
        arrays = fit_errors(ratios[:60], used, features[:60], none[:60], np.arange(60))
        law = ErrorModel("v", arrays, 12, 1, 0.0).law(features[60:], none[60:])
        found.append(coverage(law, ratios[60:], 0))
    assert np.mean(found) > 0.89


def test_rows_of_one_group_tell_nothing_of_each_other() -> None:
    rng = np.random.default_rng(0)
    ratios, features = np.repeat(rng.normal(size=(60, 1)), 5, axis=0), np.repeat(rng.normal(size=(60, 12)), 5, axis=0)
    used, none = np.ones((300, 1), dtype=np.bool_), np.zeros(300)
    groups = np.repeat(np.arange(60), 5)
    # In the same order of rows, each of five copies would be in another fold.
    apart, together = (
        fit_errors(ratios, used, features, none, numbers)["errors.quantiles"][0] for numbers in (np.arange(300), groups)
    )
    assert together[-11] - together[10] > 1.05 * (apart[-11] - apart[10])
    # Too few groups are no folds.
    assert np.isfinite(fit_errors(ratios, used, features, none, np.zeros(300, dtype=int))["errors.quantiles"]).all()


def test_rows_that_do_not_count_change_nothing() -> None:
    ratios, features, novelty = drawn(0, 400)
    used = np.ones(ratios.shape, dtype=np.bool_)
    used[::4, 1] = False
    spoilt = np.where(used, ratios, 50.0)
    ours, theirs = (fit_errors(values, used, features, novelty, np.arange(400)) for values in (ratios, spoilt))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(0, 3),
    st.lists(st.floats(-9, 9), min_size=2, max_size=2),
    st.floats(0, 50),
    st.floats(0, 50),
)
def test_intervals_never_shrink_as_novelty_grows_and_widen_beyond_1(
    seed: int, features: list[float], one: float, other: float
) -> None:
    law = ErrorModel("v", fitted(seed, 60), 2, 2, 0.0).law(
        np.array([features] * 3), np.array([*sorted((one, other)), 60.0])
    )
    assert (np.diff(law.scales, axis=0) >= -1e-12).all()
    assert (law.scales[2] > law.scales[1] * 1.1).all()


def ends_of(quantiles: np.ndarray) -> tuple[float, float]:
    """The 5% and the 95% quantile, which a law keeps as they are."""
    at = probabilities(QUANTILES).round(9).tolist()
    told = quantiles[at.index(0.05)], quantiles[at.index(0.95)]
    low, high = ErrorLaw(np.ones((1, 1)), quantiles[None] / 1e3, 0.0).interval(np.ones(1), 0)
    assert (min(told[0] / 1e3, 0), told[1] / 1e3) == pytest.approx((np.log(low[0]), np.log(high[0])))
    return told


def test_ends_of_an_interval_are_the_order_statistics_that_conformal_prediction_asks_for() -> None:
    found = conformal_quantiles(np.arange(1.0, 20.0)[::-1])
    # Of 19 values the next lies below the largest with probability 19 / 20.
    assert ends_of(found) == (1.0, 19.0)
    assert (np.diff(found) >= 0).all()
    assert np.array_equal(conformal_quantiles(-np.arange(1.0, 20.0)), -found[::-1])
    assert ends_of(conformal_quantiles(np.arange(1.0, 501.0))) == (25.0, 476.0)
    # Three values bound no 90%: what there is is told.
    assert conformal_quantiles(np.array([2.0, 1.0, 3.0]))[[0, -1]].tolist() == [1.0, 3.0]


def test_novelty_is_ordinary_for_held_out_tables_and_not_for_others() -> None:
    rows = synthetic(300)
    train, validation, test = ([row for row in rows if row.split is split] for split in Split)
    novelty = Novelty("v", fit_novelty(train, validation), measured_domain(train))

    def of(measured: list) -> np.ndarray:  # type: ignore[type-arg]
        return np.concatenate([novelty.of(row.tables, row.batch_size, row.optimizer) for row in measured])

    assert of(train).max() < 0.5
    assert (of(test) <= 1).mean() > 0.8
    unlike = [Table("wide", 10**6, 4096, 4.0), Table("many", 10**6, 64, 4.0, num_features=64)]
    assert (novelty.of(unlike, 8192, Optimizer.SGD) > 2).all()
    assert (novelty.of([row.tables[0] for row in train[:5]], 64, Optimizer.SGD) > 1).all()


def test_a_device_is_as_new_as_the_tables_that_move_its_bytes() -> None:
    rows = synthetic(120)
    train, validation = ([row for row in rows if row.split is split] for split in (Split.TRAIN, Split.VALIDATION))
    novelty = Novelty("v", fit_novelty(train, validation), measured_domain(train))
    known = train[0].tables[0]
    unlike = replace(known, embedding_dim=4096)
    batch = train[0].batch_size
    alone, mixed, empty = device_novelty(novelty, [[unlike], [unlike, known], []], batch, Optimizer.SGD)
    assert alone == pytest.approx(novelty.of([unlike], batch, Optimizer.SGD)[0])
    assert 0.9 * alone < mixed < alone
    assert empty == 0.0
