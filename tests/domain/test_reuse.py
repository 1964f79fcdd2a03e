"""The law that carries a reuse histogram to another batch size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.id_counts import BIN_HIGH, BIN_LOW, bin_of, count_law, id_counts
from service.domain.reuse import ReuseBasis, reuse_fault, reuse_profile, zipf_bins
from service.domain.tables import HISTOGRAM_BINS, ReuseHistogram, Table
from tests.examples import examples

BASE = 65_536


def table(counts: np.ndarray, rows: int = 1_000_000, distinct: bool = True) -> Table:
    """A table whose ids occur ``counts`` times in a batch of ``BASE`` samples."""
    fractions = np.bincount(bin_of(counts), minlength=HISTOGRAM_BINS) / len(counts)
    return Table(
        "t",
        rows,
        16,
        float(counts.sum()) / BASE,
        distinct_rows=float(len(counts)) if distinct else None,
        reuse_histogram=ReuseHistogram(BASE, tuple(float(f) for f in fractions)),
    )


def zipf_counts(rows: int, lookups: int, exponent: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    share = np.arange(1, rows + 1) ** -exponent
    counts = rng.multinomial(lookups, share / share.sum())
    return np.asarray(counts[counts > 0])


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.1, 1.5])
@pytest.mark.parametrize("ratio", [2, 8, 64])
def test_a_smaller_batch_matches_dropping_lookups_at_random(exponent: float, ratio: int) -> None:
    counts = zipf_counts(100_000, 600_000, exponent, seed=1)
    rng = np.random.default_rng(2)
    draws = rng.binomial(counts, 1 / ratio, size=(20, len(counts)))
    by_bin = np.bincount(bin_of(draws[draws > 0]), minlength=HISTOGRAM_BINS) / 20
    expected = by_bin / by_bin.sum()

    profile = reuse_profile(table(counts), BASE // ratio)

    assert profile.basis is ReuseBasis.THINNED
    assert profile.distinct == pytest.approx(by_bin.sum(), rel=0.03)
    assert np.abs(profile.fractions - expected).sum() < 0.05
    assert profile.lookups == pytest.approx(counts.sum() / ratio, abs=1)


@pytest.mark.parametrize("exponent", [0.8, 1.1])
def test_a_larger_batch_is_extrapolated_within_what_one_batch_can_tell(exponent: float) -> None:
    counts = zipf_counts(2_000_000, 600_000, exponent, seed=3)
    larger = zipf_counts(2_000_000, 1_200_000, exponent, seed=4)

    profile = reuse_profile(table(counts, rows=2_000_000), 2 * BASE)

    assert profile.basis is ReuseBasis.EXTRAPOLATED
    assert profile.distinct == pytest.approx(len(larger), rel=0.1)
    assert profile.distinct > len(counts)


def test_a_larger_batch_never_needs_more_ids_than_rows() -> None:
    counts = np.ones(1_000, dtype=np.int64)
    assert reuse_profile(table(counts, rows=1_200), 16 * BASE).distinct == 1_200


def test_at_its_own_batch_size_the_histogram_is_left_alone() -> None:
    spec = table(zipf_counts(10_000, 50_000, 1.0, seed=5))
    profile = reuse_profile(spec, BASE)
    assert spec.reuse_histogram is not None
    assert profile.basis is ReuseBasis.MEASURED
    assert profile.fractions == pytest.approx(spec.reuse_histogram.fractions)


def test_without_lookups_nothing_repeats() -> None:
    profile = reuse_profile(Table("t", 100, 16, 0.0), 1024)
    assert (profile.lookups, profile.distinct, float(profile.fractions.sum())) == (0, 0.0, 0.0)


def test_without_a_histogram_ids_follow_a_zipf_law_and_distinct_rows_pins_it() -> None:
    assumed = reuse_profile(Table("t", 1_000_000, 16, 4.0), 8192)
    pinned = reuse_profile(Table("t", 1_000_000, 16, 4.0, distinct_rows=9_000.0), 8192)
    assert assumed.basis is ReuseBasis.ASSUMED
    assert assumed.distinct == pytest.approx(len(zipf_counts(1_000_000, 4 * 8192, 1.05, seed=6)), rel=0.05)
    assert pinned.distinct == 9_000


@pytest.mark.parametrize("distinct", [1.0, 10.0, 262_144.0])
def test_distinct_rows_pins_the_ends_as_well(distinct: float) -> None:
    assert reuse_profile(Table("t", 1_000_000, 16, 4.0, distinct_rows=distinct), BASE).distinct == distinct


def test_a_batch_without_a_whole_lookup_is_legal() -> None:
    histogram = ReuseHistogram(64, (1.0,) + (0.0,) * 16)
    rare = Table("t", 1_000, 16, 1e-4, reuse_histogram=histogram)
    assert [reuse_profile(rare, batch).lookups for batch in (64, 4_096, 65_536)] == [0, 0, 7]


def test_one_hot_id_keeps_all_lookups_in_any_batch() -> None:
    spec = table(np.array([BASE]), rows=100)
    for batch in (64, 8192, BASE, 4 * BASE):
        profile = reuse_profile(spec, batch)
        assert profile.distinct == 1
        assert profile.fractions[bin_of(np.array([batch]))[0]] == 1.0


def test_without_distinct_rows_a_few_ids_show_in_the_fractions() -> None:
    counts = np.array([1, 1, 3, 40, 900])
    assert reuse_profile(table(counts, distinct=False), BASE).distinct == 5


def test_every_bin_in_use_holds_an_id_at_least() -> None:
    counts = np.concatenate([np.ones(5_000, dtype=np.int64), [40_000]])
    assert reuse_profile(table(counts, distinct=False), BASE).distinct >= 5_000


@pytest.mark.parametrize("rows", [4, 400])
def test_a_histogram_that_needs_more_ids_than_rows_is_a_fault(rows: int) -> None:
    spec = table(np.ones(5_000, dtype=np.int64), rows=rows, distinct=False)
    fault = reuse_fault(spec)
    assert fault is not None
    assert str(rows) in fault


def test_distinct_rows_outside_what_the_bins_allow_is_a_fault() -> None:
    counts = np.full(1_000, 3)
    spec = table(counts)
    assert reuse_fault(spec) is None
    wrong = Table("t", spec.num_embeddings, 16, spec.pooling_factor, distinct_rows=100.0,
                  reuse_histogram=spec.reuse_histogram)  # fmt: skip
    assert "distinct_rows" in str(reuse_fault(wrong))


@settings(max_examples=examples(60), deadline=None)
@given(
    counts=st.lists(st.integers(1, 40_000), min_size=1, max_size=300),
    ratio=st.sampled_from([1, 3, 8, 100]),
)
def test_any_histogram_converts_to_fractions_of_at_most_as_many_ids(counts: list[int], ratio: int) -> None:
    spec = table(np.array(counts))
    profile = reuse_profile(spec, BASE // ratio)
    if profile.lookups:
        assert profile.fractions.sum() == pytest.approx(1.0)
        assert (profile.fractions >= 0).all()
        assert 1 <= profile.distinct <= len(counts) * 1.05 + 1


@settings(max_examples=examples(60), deadline=None)
@given(counts=st.lists(st.integers(1, 200_000), min_size=1, max_size=500))
def test_whole_counts_have_the_histogram_and_the_lookups_asked_for(counts: list[int]) -> None:
    wanted = np.array(counts)
    fractions = np.bincount(bin_of(wanted), minlength=HISTOGRAM_BINS) / len(wanted)
    found = id_counts(fractions, float(len(wanted)), int(wanted.sum()), rows=10**6)
    assert np.bincount(bin_of(found), minlength=HISTOGRAM_BINS) / len(found) == pytest.approx(fractions, abs=0.02)
    if len(found) == len(wanted):
        assert found.sum() == wanted.sum()


def test_the_count_law_gives_the_ids_their_lookups() -> None:
    fractions = np.zeros(HISTOGRAM_BINS)
    fractions[[0, 4, 9]] = 0.5, 0.3, 0.2
    law = count_law(fractions, 1_000.0, 60_000)
    assert law.ids.sum() == pytest.approx(1_000)
    assert law.ids @ law.counts == pytest.approx(60_000, rel=0.01)
    assert (law.counts >= BIN_LOW[law.bins] - 0.5).all()
    assert (law.counts <= BIN_HIGH[law.bins] + 0.5).all()


def test_zipf_bins_agree_with_drawing_from_the_law() -> None:
    distinct, by_bin = zipf_bins(50_000, 200_000, 1.2)
    counts = zipf_counts(50_000, 200_000, 1.2, seed=7)
    drawn = np.bincount(bin_of(counts), minlength=HISTOGRAM_BINS) / len(counts)
    assert distinct == pytest.approx(len(counts), rel=0.03)
    assert np.abs(by_bin / by_bin.sum() - drawn).sum() < 0.06


@settings(deadline=None, max_examples=examples(300))
@given(
    shares=st.lists(
        st.one_of(st.just(0.0), st.floats(0.001, 1.0), st.floats(-300, -3).map(lambda exponent: 10.0**exponent)),
        min_size=HISTOGRAM_BINS,
        max_size=HISTOGRAM_BINS,
    ).filter(any),
    rows=st.integers(1, 10**9),
    pooling_factor=st.floats(1e-4, 1e3),
    counted=st.integers(1, 131_072),
    batch_size=st.integers(1, 1_000_000),
)
def test_fractions_as_small_as_numbers_go_are_noise(
    shares: list[float], rows: int, pooling_factor: float, counted: int, batch_size: int
) -> None:
    fractions = tuple(share / sum(shares) for share in shares)
    drawn = Table("t", rows, 16, pooling_factor, reuse_histogram=ReuseHistogram(counted, fractions))
    if reuse_fault(drawn):
        return
    profile = reuse_profile(drawn, batch_size)
    assert 0 <= profile.distinct <= min(profile.lookups, 1.01 * rows)
    if profile.lookups:
        assert profile.distinct > 0
        assert profile.fractions.sum() == pytest.approx(1.0)
        assert profile.fractions.min() >= 0


def test_a_bin_of_a_millionth_of_an_id_does_not_fail_a_small_batch() -> None:
    fractions = [0.0] * HISTOGRAM_BINS
    fractions[6], fractions[12] = 1.0, 4e-21
    drawn = Table("t", 10**7, 16, 129.2, reuse_histogram=ReuseHistogram(131_072, tuple(fractions)))
    assert reuse_fault(drawn) is None
    assert reuse_profile(drawn, 8).distinct > 0
