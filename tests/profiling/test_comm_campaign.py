"""Campaigns of the collectives: what is drawn, and that nothing measured is lost or measured twice."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import Engine

from service.domain.errors import MeasurementRefused
from service.profiling.campaign import Progress
from service.profiling.combinations import BATCH_SIZES
from service.profiling.comm_bench import BENCH_VERSION, Exchange, ExchangeTiming
from service.profiling.comm_campaign import (
    IN_ONE_RUN,
    MOST_RANKS,
    MOST_SKEW_MS,
    REPEATS,
    CommunicationCampaign,
    default_ranks,
    exchange_environment,
    in_turn,
)
from service.storage.measurements import MeasurementRepository
from tests.profiling.made_up_bench import MadeUpBench

CAMPAIGN = CommunicationCampaign("cpu-fbgemm", ranks=4, seed=0)
DRAWN = [CAMPAIGN.exchange(i) for i in range(400)]


def share(conditions: Sequence[bool] | NDArray[np.bool_]) -> float:
    return float(np.mean(np.asarray(conditions)))


def test_widths_are_nearly_even_and_strongly_uneven_and_now_and_then_none() -> None:
    ratios = np.array([max(e.widths) / max(1, min(w for w in e.widths if w)) for e in DRAWN])
    assert share(ratios < 1.3) > 0.2
    assert share(ratios > 3) > 0.2
    assert 0.04 < share([0 in e.widths for e in DRAWN]) < 0.2
    assert all(len(e.widths) == 4 and sum(e.widths) > 0 for e in DRAWN)
    assert all(w >= 0 and w % 4 == 0 for e in DRAWN for w in e.widths)


def test_sizes_are_spread_and_all_ranks_together_stay_within_memory() -> None:
    volumes = [sum(e.widths) * e.batch_size * 4 for e in DRAWN]
    assert max(volumes) > 100 * min(volumes)
    assert {e.batch_size for e in DRAWN} == set(BATCH_SIZES)
    for ranks in (2, 6, 8, 16):
        campaign = CommunicationCampaign("cpu-fbgemm", ranks, 0)
        widest = max(max(e.widths) * e.batch_size for e in map(campaign.exchange, range(100)))
        assert 2 * ranks * 4 * widest <= 2**31


def test_a_third_start_together_and_the_others_within_a_skew() -> None:
    skews = np.array([max(e.start_delays_ms) for e in DRAWN])
    assert 0.25 < share(skews == 0) < 0.42
    assert skews.max() <= MOST_SKEW_MS
    assert share(skews > 40) > 0.05
    assert share((skews > 0) & (skews < 4)) > 0.05
    assert all(min(e.start_delays_ms) == 0 for e in DRAWN)


def test_a_position_always_draws_the_same_exchange() -> None:
    again = CommunicationCampaign("cpu-fbgemm", ranks=4, seed=0)
    other_seed = CommunicationCampaign("cpu-fbgemm", ranks=4, seed=1)
    other_ranks = CommunicationCampaign("cpu-fbgemm", ranks=2, seed=0)
    assert [again.exchange(i) for i in range(5)] == DRAWN[:5]
    assert [other_seed.exchange(i) for i in range(5)] != DRAWN[:5]
    assert CAMPAIGN.name == again.name
    assert len({CAMPAIGN.name, other_seed.name, other_ranks.name}) == 3


def test_a_campaign_stores_what_it_drew_and_goes_on_where_it_stopped(engine: Engine) -> None:
    store, bench = MeasurementRepository(engine), MadeUpBench()
    more = IN_ONE_RUN + 2
    assert [*CAMPAIGN.runs(store, 3, bench=bench)] == [Progress(0, 0, 0), Progress(3, 0, 0)]
    assert [*CAMPAIGN.runs(store, 3, bench=bench)] == [Progress(0, 0, 3)]
    told = [Progress(0, 0, 3), Progress(IN_ONE_RUN, 0, 3), Progress(more, 0, 3)]
    assert [*CAMPAIGN.runs(store, 3 + more, bench=bench)] == told
    assert [len(run) for run in bench.asked] == [3, IN_ONE_RUN, 2]
    kept = store.communication("cpu-fbgemm")
    assert [Exchange(m.widths, m.batch_size, m.start_delays_ms) for m in kept] == DRAWN[: 3 + more]
    for measurement, exchange in zip(kept, DRAWN, strict=False):
        (timing,) = bench([exchange])
        assert measurement.forward_wait_ms == timing.forward_wait_ms
        assert measurement.forward_transfer_ms == timing.forward_transfer_ms
        assert measurement.backward_ms == timing.backward_ms
    assert {(m.campaign, m.repeats) for m in kept} == {(CAMPAIGN.name, REPEATS)}


def test_a_bench_that_dies_leaves_what_was_measured_before(engine: Engine) -> None:
    store, bench = MeasurementRepository(engine), MadeUpBench()

    def dying(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        if bench.asked:
            raise MeasurementRefused("rank 1 of 4 was ended by SIGKILL")
        return bench(exchanges)

    with pytest.raises(MeasurementRefused, match="rank 1"):
        list(CAMPAIGN.runs(store, IN_ONE_RUN + 5, bench=dying))
    assert [*CAMPAIGN.runs(store, IN_ONE_RUN + 5, bench=bench)][-1] == Progress(5, 0, IN_ONE_RUN)


def test_the_time_budget_ends_a_campaign_after_the_run_in_hand(engine: Engine) -> None:
    store, bench = MeasurementRepository(engine), MadeUpBench()

    def slow(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        time.sleep(0.6)
        return bench(exchanges)

    for budget_s, reached in ((0.5, Progress(IN_ONE_RUN, 0, 0)), (-1.0, Progress(0, 0, IN_ONE_RUN))):
        assert [*CAMPAIGN.runs(store, 3 * IN_ONE_RUN, budget_s=budget_s, bench=slow)][-1] == reached


def test_the_exchanges_of_a_run_share_its_time_evenly(engine: Engine) -> None:
    store = MeasurementRepository(engine)

    def slow(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        time.sleep(0.5)
        return MadeUpBench()(exchanges)

    began = datetime.now(UTC)
    list(CAMPAIGN.runs(store, 6, bench=slow))
    ended = datetime.now(UTC)
    times = [m.measured_at for m in store.communication("cpu-fbgemm")]
    assert began < times[0]
    assert times[-1] <= ended
    gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
    assert min(gaps) >= 0.5 / 6
    assert max(gaps) - min(gaps) < 1e-3


def test_what_the_store_had_already_is_not_counted_as_measured(engine: Engine) -> None:
    store = MeasurementRepository(engine)

    def overtaken(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        list(CAMPAIGN.runs(store, 2, bench=MadeUpBench()))
        return MadeUpBench()(exchanges)

    assert [*CAMPAIGN.runs(store, 5, bench=overtaken)][-1] == Progress(3, 0, 0)


def test_numbers_of_ranks_are_measured_in_turn_and_one_that_is_refused_stops_no_other(engine: Engine) -> None:
    store, bench = MeasurementRepository(engine), MadeUpBench()

    def refusing(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        if len(exchanges[0].widths) == 3 and bench.asked:
            raise MeasurementRefused("rank 2 of 3 is stopped")
        return bench(exchanges)

    campaigns = [CommunicationCampaign("cpu-fbgemm", ranks, seed=0) for ranks in (2, 3, 4)]
    samples = 2 * IN_ONE_RUN
    told = list(in_turn({c.name: c.runs(store, samples, bench=refusing) for c in campaigns}))
    assert [len(run[0].widths) for run in bench.asked] == [2, 4, 2, 4]
    first, refused, last = (c.name for c in campaigns)
    assert [name for name, _ in told] == [first, refused, last] * 2 + [first, last]
    assert isinstance(told[4][1], MeasurementRefused)
    assert told[-2:] == [(first, Progress(samples, 0, 0)), (last, Progress(samples, 0, 0))]


def test_more_ranks_than_a_host_has_memory_for_are_refused() -> None:
    most = CommunicationCampaign("cpu-fbgemm", MOST_RANKS, seed=0)
    assert max(max(most.exchange(i).widths) for i in range(20)) >= 8
    with pytest.raises(MeasurementRefused, match=f"{MOST_RANKS + 1} ranks .* give at most {MOST_RANKS}"):
        CommunicationCampaign("cpu-fbgemm", MOST_RANKS + 1, seed=0)


def test_more_ranks_than_cores_are_marked() -> None:
    few, many = exchange_environment(1, "cpu"), exchange_environment(10_000, "cpu")
    assert set(few) == {"torch", "bench", "device", "python", "cores"}
    assert few["bench"] == str(BENCH_VERSION)
    assert int(few["cores"]) >= 1
    assert many == few | {"oversubscribed": "true"}


def test_the_cpu_is_measured_with_two_four_and_eight_ranks() -> None:
    assert default_ranks("cpu") == (2, 4, 8)
