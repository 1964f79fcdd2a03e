"""Carrying plans out: composed by hand-computed values, measured with the real operator."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from service.domain.errors import InvalidRequest, MeasurementRefused
from service.domain.plan import Problem, Shard, memory_on_devices, tables_on_devices
from service.domain.tables import DataType, Optimizer, PoolingMode, Table
from service.domain.topology import Topology
from service.profiling.comm_bench import Exchange, ExchangeTimes, turns
from service.profiling.compute_bench import BenchSettings, ComputeBench
from service.profiling.plan_bench import (
    CarriedOut,
    GivenPlan,
    PlanBench,
    PlanBenchSettings,
    composed,
    exchanged_parts,
    lookups_of,
    prepared_steps,
    run_in_turns,
    start_delays,
)
from service.profiling.plan_summary import spread
from service.profiling.workload import index_stream
from service.usecases.estimate import estimate
from tests.fakes import fake_models

QUICK = PlanBenchSettings(repeats=3, memory_bytes=32 * 2**20)


class FakeExchange:
    """Exchanges that take a millisecond for each column, backward half of that; keeps what it was asked."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.asked: list[tuple[Exchange, ...]] = []

    def __call__(self, exchanges: Sequence[Exchange]) -> list[ExchangeTimes]:
        self.asked.append(tuple(exchanges))
        return [self._times(np.array(exchange.widths), np.array(exchange.start_delays_ms)) for exchange in exchanges]

    def _times(self, widths: NDArray[np.int64], late: NDArray[np.float64]) -> ExchangeTimes:
        parts = (late.max() - late, widths * 1.0, widths / 2)
        return ExchangeTimes(*(np.repeat(part[:, None], self.repeats, axis=1) for part in parts))


def problem(*tables: Table, devices: int = 2, optimizer: Optimizer = Optimizer.SGD) -> Problem:
    return Problem(tables, Topology("fake", (2**40,) * devices), 256, optimizer)


SMALL = problem(Table("a", 5_000, 16, 3.0), Table("b", 300, 64, 1.5))
APART = GivenPlan("apart", (Shard("a", 0, 16, 0), Shard("b", 0, 64, 1)))
CUT = GivenPlan("cut", (Shard("a", 0, 16, 0), Shard("b", 0, 32, 0), Shard("b", 32, 64, 1)))
TOGETHER = GivenPlan("together", (Shard("a", 0, 16, 0), Shard("b", 0, 32, 0), Shard("b", 32, 64, 0)))


# [P, D, R, forward and backward], milliseconds.
COMPUTE = np.array(
    [
        [[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [[4.0, 3.0], [3.0, 3.0], [9.0, 3.0]]],
        [[[5.0, 5.0]] * 3, [[0.0, 0.0]] * 3],
    ]
)


def test_a_device_starts_its_forward_exchange_after_its_compute_and_the_backward_exchange() -> None:
    backward = np.array([[9.0, 10.0, 11.0], [5.0, 5.0, 5.0]])
    assert start_delays(COMPUTE[0], backward) == (1.0, 0.0)


def test_exchanges_are_measured_with_the_plans_start_delays() -> None:
    exchange = FakeExchange(3)
    parts = exchanged_parts(COMPUTE, [(8, 4), (12, 0)], 256, exchange)
    assert exchange.asked[0] == (Exchange((8, 4), 256, (0.0, 0.0)), Exchange((12, 0), 256, (0.0, 0.0)))
    assert exchange.asked[1] == (Exchange((8, 4), 256, (0.0, 2.0)), Exchange((12, 0), 256, (16.0, 0.0)))
    assert [plan.shape for plan in parts] == [(2, 5, 3), (2, 5, 3)]
    # Device 0 of the first plan starts 7 ms into the step, device 1 after 9, 8 and 14.
    assert parts[0][0].T.tolist() == [[1, 2, 2, 8, 4], [1, 2, 1, 8, 4], [1, 2, 7, 8, 4]]
    assert parts[0][1].T.tolist() == [[4, 3, 0, 4, 2], [3, 3, 0, 4, 2], [9, 3, 0, 4, 2]]
    assert parts[1][1].T.tolist() == [[0, 0, 16, 0, 0]] * 3


@given(
    times=arrays(float, (4, 6, 2), elements=st.floats(0, 100)),
    backward=arrays(float, (4, 6), elements=st.floats(0, 10)),
    transfer=arrays(float, (4, 6), elements=st.floats(0, 10)),
)
def test_all_devices_start_the_transfer_with_the_slowest(
    times: NDArray[np.float64], backward: NDArray[np.float64], transfer: NDArray[np.float64]
) -> None:
    parts = composed(times, ExchangeTimes(np.zeros((4, 6)), transfer, backward))
    slowest = (times.sum(axis=2) + backward).max(axis=0)
    assert (parts[:, 2] >= 0).all()
    np.testing.assert_allclose(parts.sum(axis=1), slowest + transfer, atol=1e-9)


def test_one_device_exchanges_nothing() -> None:
    exchange = FakeExchange(1)
    (parts,) = exchanged_parts(np.array([[[[1.0, 2.0]]]]), [(8,)], 256, exchange)
    assert parts.tolist() == [[[1.0], [2.0], [0.0], [0.0], [0.0]]]
    assert exchange.asked == []


class RecordingStep:
    """Takes as many milliseconds as steps were run before it, and writes into a log that it was run."""

    def __init__(self, place: tuple[int, int], log: list[tuple[int, int]]) -> None:
        self._place = place
        self._log = log

    def run(self) -> tuple[float, float]:
        self._log.append(self._place)
        return float(len(self._log)), -float(len(self._log))


def test_all_devices_run_once_before_any_runs_again_and_warm_ups_are_dropped() -> None:
    log: list[tuple[int, int]] = []
    # Plan 1 leaves device 0 empty.
    places = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    reported: list[tuple[int, int]] = []
    times = run_in_turns(
        {place: RecordingStep(place, log) for place in places}, 3, 2, 4, lambda _, done, of: reported.append((done, of))
    )
    rounds = [log[i : i + 5] for i in range(0, len(log), 5)]
    assert rounds == [[p for plan in turns(3, r) for p in places if p[0] == plan] for r in range(6)]
    assert len({tuple(order) for order in rounds}) > 1
    assert reported == [(done, 6) for done in range(1, 7)]
    assert times.shape == (3, 2, 4, 2)
    assert (times[1, 0] == 0).all()
    for plan, device in places:
        run = [5 * r + rounds[r].index((plan, device)) + 1 for r in range(2, 6)]
        assert times[plan, device].tolist() == [[number, -number] for number in run]


def test_slices_of_a_table_are_looked_up_alike_in_all_plans() -> None:
    held = [[[SMALL.tables[1]], []], [[SMALL.tables[0], SMALL.tables[1].sliced(32)], [SMALL.tables[1].sliced(32)]]]
    steps = prepared_steps(ComputeBench(BenchSettings(memory_bytes=2**22)), SMALL, held, seed=0)
    assert set(steps) == {(0, 0), (1, 0), (1, 1)}
    whole, both, part = (steps[place] for place in ((0, 0), (1, 0), (1, 1)))
    lookups = SMALL.tables[1].lookups(256)
    assert torch.equal(whole._indices, part._indices)
    assert torch.equal(whole._offsets, part._offsets)
    assert torch.equal(whole._indices, both._indices[-lookups:])


def test_a_table_is_looked_up_alike_whole_and_cut_and_unlike_another() -> None:
    whole = Table("a", 5_000, 16, 3.0)
    stream, of_slice = lookups_of(whole, 256, 0), lookups_of(whole.sliced(4), 256, 0)
    assert np.array_equal(stream.indices, of_slice.indices)
    assert np.array_equal(stream.offsets, of_slice.offsets)
    assert not np.array_equal(stream.indices, lookups_of(replace(whole, name="b"), 256, 0).indices)
    assert not np.array_equal(stream.indices, lookups_of(whole, 256, 1).indices)


@pytest.fixture(scope="module")
def carried_out() -> CarriedOut:
    return PlanBench(QUICK, exchange_bench=FakeExchange(3)).carry_out(SMALL, [APART, CUT, TOGETHER], fake_models())


def test_plans_are_carried_out_with_the_real_operator(carried_out: CarriedOut) -> None:
    assert [plan.name for plan in carried_out.plans] == ["apart", "cut", "together"]
    costs = [[device.measured for device in plan.devices] for plan in carried_out.plans]
    assert all(0 < cost.forward_compute < 1_000 for cost in [*costs[0], *costs[1]])
    assert all(0 < cost.backward_compute < 1_000 for cost in [*costs[0], *costs[1]])
    assert [cost.forward_transfer for cost in costs[1]] == [48.0, 32.0]
    for plan in carried_out.plans:
        assert len(plan.cost_repeats_ms) == len(plan.slowest_compute_repeats_ms) == 3
        assert plan.measured_ms == np.median(plan.cost_repeats_ms)
        assert plan.measured_ms >= max(device.measured_total_ms for device in plan.devices)
        assert all(c > s for c, s in zip(plan.cost_repeats_ms, plan.slowest_compute_repeats_ms, strict=True))
        assert plan.cost_spread == spread(plan.cost_repeats_ms)
        assert plan.fits
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
    found = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange(1)).carry_out(wide, [plan], fake_models())
    cap = found.rows_capped
    assert cap is not None
    assert dict(cap.tables) == {"big": 400_000}
    assert 90_000 < cap.cap < 32 * 2**20 // (64 * 4 + 4)
    assert cap.sentence() in found.assumptions
    fewer = replace(wide, tables=(replace(wide.tables[0], num_embeddings=cap.cap), wide.tables[1]))
    compute = fake_models().compute
    forward = compute.head(compute.encode([fewer.tables[0]], 256, Optimizer.SGD))[0, 0]
    assert found.plans[0].devices[0].predicted.forward_compute == pytest.approx(forward, abs=1e-3)


def test_more_ranks_than_cores_are_said_to_be_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    bench = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange(1))
    found = bench.carry_out(SMALL, [APART], fake_models())
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
        (replace(SMALL, topology=Topology("h100", (2**40,) * 2)), "h100 is a GPU, NVIDIA H100 SXM5: .*--device cuda"),
        (problem(SMALL.tables[0], MEAN), r"plan together, device 0 \(fp32, sum: a; fp32, mean: b\): .*pooling_mode"),
        (problem(*SMALL.tables, optimizer=Optimizer.ADAM), "plan together, device 0 .*adam.*adagrad"),
        (problem(*BF16), r"bf16, sum: a, b\).*fp16"),
    ],
)
def test_what_the_operator_cannot_run_is_refused_with_its_tables_named(case: Problem, said: str) -> None:
    with pytest.raises(MeasurementRefused, match=said):
        PlanBench(QUICK, exchange_bench=FakeExchange(3)).carry_out(case, [TOGETHER], fake_models())


def test_tables_of_two_pooling_modes_on_two_devices_are_carried_out() -> None:
    bench = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange(1))
    found = bench.carry_out(problem(SMALL.tables[0], MEAN), [APART], fake_models())
    assert all(device.measured.forward_compute > 0 for device in found.plans[0].devices)


@pytest.mark.parametrize(
    ("gpus", "device", "devices", "said"),
    [
        (0, "cuda", 1, "no cuda: this machine has 0 GPUs"),
        (1, "cuda:1", 1, "no cuda:1: this machine has 1 GPUs, numbered from 0"),
        (2, "cuda:1", 3, "3 devices need as many GPUs, this machine has 2"),
    ],
)
def test_gpus_that_are_not_there_are_refused(
    gpus: int, device: str, devices: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    case = problem(*SMALL.tables, devices=devices)
    with pytest.raises(MeasurementRefused, match=said):
        PlanBench(replace(QUICK, device=device)).carry_out(case, [TOGETHER], fake_models())


def test_what_was_priced_and_what_was_measured_on_are_named(carried_out: CarriedOut) -> None:
    assert f"predicted for fake and measured on {carried_out.environment['device']}" in carried_out.assumptions[0]


def test_an_overfull_plan_is_measured_and_said_not_to_fit() -> None:
    most = max(
        memory.total
        for plan in (APART, CUT)
        for memory in memory_on_devices(SMALL, tables_on_devices(SMALL, plan.shards))
    )
    tight = replace(SMALL, topology=Topology("fake", (most, most)))
    bench = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange(1))
    found = bench.carry_out(tight, [APART, CUT, TOGETHER], fake_models())
    assert [plan.fits for plan in found.plans] == [True, True, False]
    assert found.plans[2].measured_ms > 0
    assert "does not fit" in found.plans[2].assumptions[-1]
    assert found.summary.order is not None
    assert set(found.summary.order.by_measurement) == {"apart", "cut"}


def test_a_plan_made_for_another_request_or_by_other_models_is_said_to_be() -> None:
    now = estimate(SMALL, fake_models(), APART.shards).max_cost_ms
    plans = [replace(APART, name=name, told_ms=told) for name, told in (("same", now), ("other", now * 1.01))]
    bench = PlanBench(replace(QUICK, repeats=1), exchange_bench=FakeExchange(1))
    same, other = bench.carry_out(SMALL, plans, fake_models()).plans
    assert len(other.assumptions) == len(same.assumptions) + 1
    assert f"costs {now * 1.01:.3f} ms" in other.assumptions[-1]
    assert f"predicted to cost {now:.3f} ms" in other.assumptions[-1]


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
