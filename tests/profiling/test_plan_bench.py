"""Carrying plans out: composed and summarised by hand-computed values, measured with the real operator."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.domain.costs import DeviceCost
from service.domain.errors import InvalidRequest, MeasurementRefused
from service.domain.plan import Problem, Shard
from service.domain.reuse import reuse_profile
from service.domain.tables import DataType, Optimizer, PoolingMode, Table
from service.domain.topology import Topology
from service.profiling.comm_bench import Exchange, ExchangeTiming
from service.profiling.compute_bench import BenchSettings, ComputeBench
from service.profiling.plan_bench import (
    CarriedOut,
    GivenPlan,
    PlanBench,
    PlanBenchSettings,
    exchanged_costs,
    lookups_of,
    plan_order,
    start_delays,
)
from service.profiling.plan_summary import (
    DeviceComparison,
    PlanComparison,
    errors,
    ordering,
    spread,
    summary_of,
)
from service.profiling.pools import generated_pool
from service.profiling.rows_cap import capped, least_rows, needed_memory, rows_cap
from service.profiling.workload import index_stream
from service.usecases.validate import problem_faults
from tests.fakes import fake_models

POOL = generated_pool(60)
QUICK = PlanBenchSettings(repeats=3, memory_bytes=32 * 2**20)


class FakeExchange:
    """Exchanges that take a millisecond for each column, backward half of that; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Exchange, ...]] = []

    def __call__(self, exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        self.asked.append(tuple(exchanges))
        return [
            ExchangeTiming(
                forward_wait_ms=tuple(max(e.start_delays_ms) - late for late in e.start_delays_ms),
                forward_transfer_ms=tuple(float(width) for width in e.widths),
                backward_ms=tuple(width / 2 for width in e.widths),
            )
            for e in exchanges
        ]


def problem(*tables: Table, devices: int = 2, optimizer: Optimizer = Optimizer.SGD) -> Problem:
    return Problem(tables, Topology("fake", (2**40,) * devices), 256, optimizer)


SMALL = problem(Table("a", 5_000, 16, 3.0), Table("b", 300, 64, 1.5))
APART = GivenPlan("apart", (Shard("a", 0, 16, 0), Shard("b", 0, 64, 1)))
CUT = GivenPlan("cut", (Shard("a", 0, 16, 0), Shard("b", 0, 32, 0), Shard("b", 32, 64, 1)))
TOGETHER = GivenPlan("together", (Shard("a", 0, 16, 0), Shard("b", 0, 32, 0), Shard("b", 32, 64, 0)))


def test_a_device_starts_its_forward_exchange_after_its_compute_and_the_backward_exchange() -> None:
    assert start_delays(np.array([[1.0, 2.0], [4.0, 3.0]]), (10.0, 5.0)) == (1.0, 0.0)


def test_a_plan_is_composed_of_its_compute_and_of_exchanges_with_its_start_delays() -> None:
    exchange = FakeExchange()
    compute = np.array([[[1.0, 2.0], [4.0, 3.0]], [[5.0, 5.0], [0.0, 0.0]]])
    first, second = exchanged_costs(compute, [(8, 4), (12, 0)], 256, exchange)
    assert exchange.asked[0] == (Exchange((8, 4), 256, (0.0, 0.0)), Exchange((12, 0), 256, (0.0, 0.0)))
    assert exchange.asked[1] == (Exchange((8, 4), 256, (0.0, 2.0)), Exchange((12, 0), 256, (16.0, 0.0)))
    assert first == (DeviceCost(1.0, 2.0, 2.0, 8.0, 4.0), DeviceCost(4.0, 3.0, 0.0, 4.0, 2.0))
    assert second == (DeviceCost(5.0, 5.0, 0.0, 12.0, 6.0), DeviceCost(0.0, 0.0, 16.0, 0.0, 0.0))
    assert [cost.total for cost in first] == [17.0, 13.0]


def test_one_device_exchanges_nothing() -> None:
    exchange = FakeExchange()
    assert exchanged_costs(np.array([[[1.0, 2.0]]]), [(8,)], 256, exchange) == [(DeviceCost(1.0, 2.0, 0.0, 0.0, 0.0),)]
    assert exchange.asked == []


@given(st.integers(1, 7))
def test_every_repeat_runs_all_plans_and_each_comes_first_equally_often(plans: int) -> None:
    orders = [plan_order(plans, repeat) for repeat in range(3 * plans)]
    assert all(sorted(order) == list(range(plans)) for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {3}


def test_a_table_is_looked_up_alike_whole_and_cut_and_unlike_another() -> None:
    whole = Table("a", 5_000, 16, 3.0)
    stream, of_slice = lookups_of(whole, 256, 0), lookups_of(whole.sliced(4), 256, 0)
    assert np.array_equal(stream.indices, of_slice.indices)
    assert np.array_equal(stream.offsets, of_slice.offsets)
    assert not np.array_equal(stream.indices, lookups_of(replace(whole, name="b"), 256, 0).indices)
    assert not np.array_equal(stream.indices, lookups_of(whole, 256, 1).indices)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = errors([11.0, 9.0, 15.0], [10.0, 10.0, 10.0])
    assert found.count == 3
    assert found.mape == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert found.bias == pytest.approx(0.5 / 3)


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread(np.array([8.0, 9.0, 10.0, 11.0, 12.0])) == pytest.approx(0.2)
    assert spread(np.zeros(5)) == 0.0


def test_orders_are_compared_pair_by_pair() -> None:
    found = ordering(["x", "y", "z"], [1.0, 2.0, 3.0], [5.0, 4.0, 6.0])
    assert found.by_prediction == ("x", "y", "z")
    assert found.by_measurement == ("y", "x", "z")
    assert (found.pairs, found.pairs_ordered_the_same) == (3, 2)
    assert found.kendall_tau == pytest.approx(1 / 3)
    assert (found.best_picked, found.regret_ms) == (False, 1.0)


def test_pairs_that_the_prediction_does_not_tell_apart_do_not_count() -> None:
    found = ordering(["x", "y", "z"], [1.0, 1.0, 3.0], [4.0, 5.0, 6.0])
    assert (found.pairs, found.pairs_ordered_the_same) == (2, 2)
    assert (found.best_picked, found.regret_ms) == (True, 0.0)
    assert ordering(["x", "y"], [1.0, 1.0], [4.0, 5.0]).kendall_tau is None


def comparison(name: str, *devices: tuple[DeviceCost, DeviceCost]) -> PlanComparison:
    return PlanComparison(name, tuple(DeviceComparison(p, m, 0.0) for p, m in devices), 0.0, ())


def test_the_summary_leaves_out_the_compute_of_empty_devices() -> None:
    empty = DeviceCost(0.0, 0.0, 3.0, 1.0, 0.0)
    plan = comparison("x", (DeviceCost(1.0, 2.0, 0.0, 1.0, 0.0), DeviceCost(2.0, 2.0, 0.0, 1.0, 0.0)), (empty, empty))
    found = summary_of([plan])
    assert (found.compute.count, found.device_total.count, found.plan.count) == (1, 2, 1)
    assert (found.compute.mape, found.compute.bias) == (0.25, -0.25)
    assert (found.device_total.mape, found.device_total.bias) == pytest.approx((0.1, -0.1))
    assert (found.plan.mape, found.plan.bias) == pytest.approx((0.2, -0.2))
    assert found.order is None


def test_the_cap_is_the_most_rows_that_fit_where_the_largest_device_counts() -> None:
    # 16 columns of fp32 are 64 bytes a row; without lookups every table may be cut to a single row.
    tables = Table("a", 1_000, 16, 0.0), Table("b", 400, 16, 0.0), Table("c", 100, 16, 0.0)
    devices = [[tables[0], tables[2]], [tables[1]]]
    case = problem(*tables)
    buffers = needed_memory(devices, 256, Optimizer.SGD, shared=True) - 1_100 * 64
    assert rows_cap(case, devices, buffers + 1_100 * 64, shared=True) is None
    cut = rows_cap(case, devices, buffers + 700 * 64 + 63, shared=True)
    assert cut is not None
    assert (cut.cap, dict(cut.tables)) == (600, {"a": 1_000})
    assert [table.num_embeddings for table in capped(case, cut).tables] == [600, 400, 100]
    assert "a were cut to 600" in cut.sentence()
    apart = rows_cap(case, devices, buffers + 700 * 64, shared=False)
    assert apart is not None
    assert (apart.cap, dict(apart.tables)) == (300, {"a": 1_000, "b": 400})


def test_what_does_not_fit_with_the_fewest_rows_is_refused_with_the_numbers() -> None:
    with pytest.raises(MeasurementRefused, match="however few rows") as refused:
        rows_cap(SMALL, [list(SMALL.tables)], 1_000, shared=True)
    fewest = [replace(table, num_embeddings=least_rows(table, 256)) for table in SMALL.tables]
    needed = needed_memory([fewest], 256, Optimizer.SGD, shared=True)
    assert refused.value.data == {"needed_bytes": needed, "limit_bytes": 1_000}


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.lists(st.sampled_from(POOL), min_size=1, max_size=4, unique_by=lambda table: table.name),
    told=st.lists(st.sampled_from(["all", "histogram", "distinct", "nothing"]), min_size=4, max_size=4),
    batch_size=st.sampled_from([64, 8_192, 65_536, 131_072]),
    share=st.floats(0.0, 1.0),
)
def test_cut_tables_are_sound_and_their_ids_repeat_as_before(
    chosen: list[Table], told: list[str], batch_size: int, share: float
) -> None:
    tables = tuple(_telling(table, what, batch_size) for table, what in zip(chosen, told, strict=False))
    whole = replace(problem(*tables), global_batch_size=batch_size)
    assume(not problem_faults(whole))
    fewest = [[replace(table, num_embeddings=least_rows(table, batch_size)) for table in tables]]
    least, most = (needed_memory(d, batch_size, Optimizer.SGD, shared=True) for d in (fewest, [tables]))
    cap = rows_cap(whole, [tables], int(least + share * (most - least)), shared=True)
    cut = capped(whole, cap)
    assert problem_faults(cut) == []
    assert needed_memory([cut.tables], batch_size, Optimizer.SGD, shared=True) <= least + share * (most - least)
    for before, after in zip(tables, cut.tables, strict=True):
        assert (before.num_embeddings > after.num_embeddings) == (cap is not None and before.name in cap.tables)
        was, now = reuse_profile(before, batch_size), reuse_profile(after, batch_size)
        assert now.lookups == was.lookups
        assert now.distinct == pytest.approx(was.distinct)
        if before.reuse_histogram:
            assert now.fractions == pytest.approx(was.fractions)


def _telling(table: Table, what: str, batch_size: int) -> Table:
    """The table with its distinct rows, its histogram, both or neither told."""
    if what == "distinct":
        silent = replace(table, distinct_rows=None, reuse_histogram=None)
        return replace(silent, distinct_rows=reuse_profile(silent, batch_size).distinct or None)
    return replace(
        table,
        distinct_rows=table.distinct_rows if what == "all" else None,
        reuse_histogram=table.reuse_histogram if what in ("all", "histogram") else None,
    )


@pytest.fixture(scope="module")
def carried_out() -> CarriedOut:
    return PlanBench(QUICK, exchange_bench=FakeExchange()).carry_out(SMALL, [APART, CUT, TOGETHER], fake_models())


def test_plans_are_carried_out_with_the_real_operator(carried_out: CarriedOut) -> None:
    assert [plan.name for plan in carried_out.plans] == ["apart", "cut", "together"]
    costs = [[device.measured for device in plan.devices] for plan in carried_out.plans]
    assert all(0 < cost.forward_compute < 1_000 for cost in [*costs[0], *costs[1]])
    assert all(0 < cost.backward_compute < 1_000 for cost in [*costs[0], *costs[1]])
    assert [cost.forward_transfer for cost in costs[1]] == [48.0, 32.0]
    for plan in costs:
        started = [c.forward_compute + c.backward_compute + c.backward_comm for c in plan]
        assert [c.forward_wait for c in plan] == pytest.approx([max(started) - s for s in started])
    assert carried_out.rows_capped is None
    assert carried_out.repeats == 3
    assert carried_out.environment["device"]
    assert carried_out.summary.order is not None
    assert set(carried_out.summary.order.by_measurement) == {"apart", "cut", "together"}


def test_an_empty_device_computes_nothing_and_waits(carried_out: CarriedOut) -> None:
    busy, empty = carried_out.plans[2].devices
    assert (empty.measured.forward_compute, empty.measured.backward_compute, empty.compute_spread) == (0.0, 0.0, 0.0)
    assert (empty.predicted.forward_compute, empty.predicted.backward_compute) == (0.0, 0.0)
    assert empty.measured.forward_wait > busy.measured.forward_compute
    assert (busy.measured.forward_transfer, empty.measured.forward_transfer) == (80.0, 0.0)


def test_what_was_measured_and_priced_is_cut_alike() -> None:
    wide = problem(Table("big", 400_000, 64, 1.0), Table("b", 300, 64, 1.0), optimizer=Optimizer.ROWWISE_ADAGRAD)
    plan = GivenPlan("only", (Shard("big", 0, 64, 0), Shard("b", 0, 64, 1)))
    found = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange()).carry_out(wide, [plan], fake_models())
    cap = found.rows_capped
    assert cap is not None
    assert dict(cap.tables) == {"big": 400_000}
    assert 90_000 < cap.cap < 32 * 2**20 // (64 * 4 + 4)
    assert found.assumptions[0] == cap.sentence()
    fewer = replace(wide, tables=(replace(wide.tables[0], num_embeddings=cap.cap), wide.tables[1]))
    compute = fake_models().compute
    forward = compute.head(compute.encode([fewer.tables[0]], 256))[0, 0]
    assert found.plans[0].devices[0].predicted.forward_compute == pytest.approx(forward, abs=1e-3)


def test_more_ranks_than_cores_are_said_to_be_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    found = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange()).carry_out(SMALL, [APART], fake_models())
    assert (found.cores, found.oversubscribed) == (1, True)
    assert "2 ranks exchanged on 1 cores" in found.assumptions[-1]


def test_prepared_steps_share_the_memory_of_weights_and_state() -> None:
    bench = ComputeBench(BenchSettings(memory_bytes=2**20))
    rng = np.random.default_rng(0)

    def prepared(table: Table) -> list[int]:
        step = bench.prepare([table], 64, Optimizer.ROWWISE_ADAGRAD, lambda t: index_stream(t, 64, rng))
        assert min(step.run()) > 0
        return [step._operator.weights_host.data_ptr(), step._operator.momentum1_host.data_ptr()]

    assert prepared(Table("large", 500, 16, 2.0)) == prepared(Table("small", 100, 8, 1.0))


FP16 = replace(SMALL.tables[1], data_type=DataType.FP16)
MEAN = replace(SMALL.tables[1], pooling_mode=PoolingMode.MEAN)
BF16 = tuple(replace(table, data_type=DataType.BF16) for table in SMALL.tables)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (problem(SMALL.tables[0], FP16), "one data_type.*fp32: a; fp16: b"),
        (problem(SMALL.tables[0], MEAN), r"plan together, device 0 \(fp32, sum: a; fp32, mean: b\): .*pooling_mode"),
        (problem(*SMALL.tables, optimizer=Optimizer.ADAM), "plan together, device 0 .*adam.*adagrad"),
        (problem(*BF16), r"bf16, sum: a, b\).*fp16"),
    ],
)
def test_what_the_operator_cannot_run_is_refused_with_its_tables_named(case: Problem, said: str) -> None:
    with pytest.raises(MeasurementRefused, match=said):
        PlanBench(QUICK, exchange_bench=FakeExchange()).carry_out(case, [TOGETHER], fake_models())


def test_tables_of_two_pooling_modes_on_two_devices_are_carried_out() -> None:
    bench = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange())
    found = bench.carry_out(problem(SMALL.tables[0], MEAN), [APART], fake_models())
    assert all(device.measured.forward_compute > 0 for device in found.plans[0].devices)


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(MeasurementRefused, match="99 devices needs as many GPUs"):
        PlanBench(replace(QUICK, device="cuda")).carry_out(problem(*SMALL.tables, devices=99), [APART], fake_models())


def test_shards_that_are_no_placement_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no device"):
        PlanBench(QUICK).carry_out(SMALL, [GivenPlan("half", (Shard("a", 0, 16, 0),))], fake_models())


@pytest.mark.gpu
def test_plans_are_carried_out_on_a_gpu() -> None:
    one = problem(*SMALL.tables, devices=1)
    bench = PlanBench(PlanBenchSettings(device="cuda", repeats=2, memory_bytes=2**30))
    found = bench.carry_out(one, [TOGETHER], fake_models())
    assert found.plans[0].measured_ms > 0
    assert not found.oversubscribed
