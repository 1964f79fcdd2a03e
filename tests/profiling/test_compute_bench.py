"""The bench runs the real operator; what it computes is checked against torch's own embedding bags."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from service.domain.errors import MeasurementRefused
from service.domain.tables import DataType, Optimizer, PoolingMode, Table
from service.profiling.compute_bench import BenchSettings, ComputeBench, _precision, needed_bytes

SMALL = BenchSettings(memory_bytes=64 * 2**20, warmup=1, repeats=3)


@pytest.fixture(scope="module")
def bench() -> ComputeBench:
    return ComputeBench(SMALL)


def tables(data_type: DataType = DataType.FP32) -> list[Table]:
    return [
        Table("a", 5_000, 16, 3.0, data_type=data_type),
        Table("b", 300, 64, 1.5, num_features=2, data_type=data_type),
        Table("empty", 100, 8, 0.0, data_type=data_type),
    ]


@pytest.mark.parametrize("data_type", [DataType.FP32, DataType.FP16])
@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD])
def test_forward_and_backward_are_timed_apart(bench: ComputeBench, optimizer: Optimizer, data_type: DataType) -> None:
    timing = bench.measure(tables(data_type), 512, optimizer, np.random.default_rng(0))
    assert timing.repeats == 3
    assert 0 < timing.forward.median_ms < 1_000
    assert 0 < timing.backward.median_ms < 1_000


def test_the_precision_is_the_standard_error_of_the_median_of_the_sums() -> None:
    # Of a normal law of deviation 0.1 around 2: 1.2533 x 0.1 / sqrt(N), relative to 2.
    forward, backward = np.random.default_rng(0).normal([[0.5], [1.5]], 0.1 / np.sqrt(2), (2, 10_000))
    assert _precision(list(zip(forward, backward, strict=True))) == pytest.approx(1.2533 * 0.1 / 100 / 2, rel=0.05)
    # Quartiles 2 and 4, median 3.
    assert _precision([(1.0, total - 1.0) for total in (1.0, 2.0, 3.0, 4.0, 5.0)]) == pytest.approx(
        1.2533 / 1.349 * 2 / 3 / np.sqrt(5)
    )


@pytest.mark.parametrize(("precision", "budget_s", "repeats"), [(10.0, 60.0, 5), (0.0, 60.0, 12), (0.0, 0.0, 5)])
def test_repeats_end_when_the_median_is_told_or_the_time_is_up(precision: float, budget_s: float, repeats: int) -> None:
    bench = ComputeBench(replace(SMALL, repeats=12, precision=precision, budget_s=budget_s))
    assert bench.measure(tables(), 64, Optimizer.SGD, np.random.default_rng(0)).repeats == repeats


def test_more_lookups_cost_more() -> None:
    # On a busy machine some repeats wait for the processor: most of so many do not.
    bench = ComputeBench(replace(SMALL, repeats=15, precision=0.0))
    few, many = ([Table("t", 10_000, 64, pooling)] for pooling in (1.0, 200.0))
    rng = np.random.default_rng(0)
    cheap = bench.measure(few, 2_048, Optimizer.SGD, rng)
    dear = bench.measure(many, 2_048, Optimizer.SGD, rng)
    assert dear.forward.median_ms > 2 * cheap.forward.median_ms
    assert dear.backward.median_ms > 2 * cheap.backward.median_ms


def test_the_arena_holds_weights_that_the_operator_reads_and_updates(bench: ComputeBench) -> None:
    spec = [Table("a", 50, 8, 2.0), Table("b", 30, 4, 1.0)]
    operator = bench._operator(spec, Optimizer.SGD)
    first = operator.split_embedding_weights()[0]
    before = first.clone()
    indices = torch.tensor([1, 1, 7, 3])
    offsets = torch.tensor([0, 2, 3, 3, 4])
    output = operator(indices, offsets)
    wanted = torch.nn.functional.embedding_bag(indices[:3], before, torch.tensor([0, 2]), mode="sum")
    assert torch.allclose(output[:, :8], wanted)
    output.backward(torch.ones_like(output))
    changed = (first != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [1, 7]


def test_what_would_not_fit_is_refused_before_memory_is_touched(bench: ComputeBench) -> None:
    huge = [Table("huge", 10**9, 128, 1.0)]
    with pytest.raises(MeasurementRefused) as refused:
        bench.measure(huge, 64, Optimizer.SGD, np.random.default_rng(0))
    assert refused.value.data["needed_bytes"] == needed_bytes(huge, 64, Optimizer.SGD)
    assert refused.value.data["limit_bytes"] == SMALL.memory_bytes


@pytest.mark.parametrize(
    ("data_type", "optimizer", "said"),
    [(DataType.FP32, Optimizer.ADAM, "adagrad"), (DataType.BF16, Optimizer.SGD, "fp16")],
)
def test_what_the_cpu_mode_lacks_is_refused_with_a_remedy(
    bench: ComputeBench, data_type: DataType, optimizer: Optimizer, said: str
) -> None:
    with pytest.raises(MeasurementRefused, match=said):
        bench.measure(tables(data_type), 64, optimizer, np.random.default_rng(0))


def test_mixed_pooling_modes_are_refused(bench: ComputeBench) -> None:
    mixed = [Table("a", 10, 4, 1.0), Table("b", 10, 4, 1.0, pooling_mode=PoolingMode.MEAN)]
    with pytest.raises(MeasurementRefused, match="pooling_mode"):
        bench.measure(mixed, 64, Optimizer.SGD, np.random.default_rng(0))


def test_more_memory_than_the_machine_has_is_refused_at_once() -> None:
    with pytest.raises(MeasurementRefused, match="free"):
        ComputeBench(BenchSettings(memory_bytes=2**50))


def test_the_environment_names_what_was_measured_with(bench: ComputeBench) -> None:
    assert set(bench.environment()) == {"torch", "fbgemm_gpu", "bench", "device", "python"}
    assert all(bench.environment().values())


def test_mixed_precisions_are_refused(bench: ComputeBench) -> None:
    mixed = [*tables(), *tables(DataType.FP16)]
    with pytest.raises(MeasurementRefused, match="data_type"):
        bench.measure(mixed, 64, Optimizer.SGD, np.random.default_rng(0))


def test_the_time_budget_ends_the_repeats_early() -> None:
    impatient = ComputeBench(BenchSettings(memory_bytes=2**20, warmup=0, repeats=500, budget_s=0.0, least_repeats=4))
    timing = impatient.measure([Table("t", 100, 4, 1.0)], 64, Optimizer.SGD, np.random.default_rng(0))
    assert timing.repeats == 4


@pytest.mark.gpu
def test_the_same_bench_runs_on_a_gpu() -> None:
    on_gpu = ComputeBench(BenchSettings(device="cuda", memory_bytes=2**30, warmup=2, repeats=3))
    assert on_gpu.environment()["device"]
    timing = on_gpu.measure(tables(), 512, Optimizer.ADAM, np.random.default_rng(0))
    assert timing.forward.median_ms > 0
