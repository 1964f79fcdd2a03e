"""Campaigns of the collectives: what is drawn, and that nothing measured is lost or measured twice."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import Engine

from service.domain.errors import MeasurementRefused
from service.profiling.campaign import BATCH_SIZES, Progress
from service.profiling.comm_bench import BENCH_VERSION, Exchange, ExchangeTiming
from service.profiling.comm_campaign import (
    IN_ONE_RUN,
    MOST_SKEW_MS,
    REPEATS,
    CommunicationCampaign,
    default_ranks,
    exchange_environment,
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
    store, bench, told = MeasurementRepository(engine), MadeUpBench(), list[Progress]()
    more = IN_ONE_RUN + 2
    assert CAMPAIGN.run(store, 3, bench=bench, report=told.append) == Progress(3, 0, 0)
    assert CAMPAIGN.run(store, 3, bench=bench, report=told.append) == Progress(0, 0, 3)
    assert CAMPAIGN.run(store, 3 + more, bench=bench, report=told.append) == Progress(more, 0, 3)
    assert told == [Progress(3, 0, 0), Progress(IN_ONE_RUN, 0, 3), Progress(more, 0, 3)]
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
        CAMPAIGN.run(store, IN_ONE_RUN + 5, bench=dying)
    assert CAMPAIGN.run(store, IN_ONE_RUN + 5, bench=bench) == Progress(5, 0, IN_ONE_RUN)


def test_the_time_budget_ends_a_campaign_after_the_run_in_hand(engine: Engine) -> None:
    store, bench = MeasurementRepository(engine), MadeUpBench()

    def slow(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        time.sleep(0.6)
        return bench(exchanges)

    assert CAMPAIGN.run(store, 3 * IN_ONE_RUN, budget_s=0.5, bench=slow) == Progress(IN_ONE_RUN, 0, 0)
    assert CAMPAIGN.run(store, 3 * IN_ONE_RUN, budget_s=-1.0, bench=slow) == Progress(0, 0, IN_ONE_RUN)


def test_more_ranks_than_cores_are_marked() -> None:
    few, many = exchange_environment(1, "cpu"), exchange_environment(10_000, "cpu")
    assert set(few) == {"torch", "bench", "device", "python", "cores"}
    assert few["bench"] == str(BENCH_VERSION)
    assert int(few["cores"]) >= 1
    assert many == few | {"oversubscribed": "true"}


def test_the_cpu_is_measured_with_two_four_and_eight_ranks() -> None:
    assert default_ranks("cpu") == (2, 4, 8)
