"""The communication model: bytes of an exchange, and prices of a set of devices."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cost_models.communication import (
    CORRECTION_LIMIT,
    LEAST_MS,
    CommunicationModel,
    MeasuredExchanges,
    exchange_features,
    exchange_quantities,
    exchanged_bytes,
)
from service.domain.errors import DamagedArtifact
from service.domain.plan import Problem, Slice
from service.domain.ports import CostModels, Embeddings, Floats
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.simulator import StepCosts, simulate
from service.search.workspace import Workspace
from tests.cost_models.small_model import EXCHANGES, exchange_weights, small_communication
from tests.fakes import FakeCompute

WIDTHS = st.lists(st.integers(0, 5000), min_size=2, max_size=24)
BATCHES = st.integers(1, 1_000_000)


def test_bytes_are_the_larger_of_sent_and_received() -> None:
    widths = np.array([12.0, 4.0])
    # Batch 8 on 2 ranks: rank 0 sends 4 samples x 12 columns; rank 1 sends 4 x 4 and receives 4 x 12.
    assert exchanged_bytes(widths, 8).tolist() == [4 * 12 * 4, 4 * 12 * 4]


def test_a_device_that_holds_nothing_still_receives() -> None:
    sizes = exchanged_bytes(np.array([0.0, 0.0, 30.0]), 9)
    assert sizes.tolist() == [3 * 30 * 4, 3 * 30 * 4, 6 * 30 * 4]


def test_quantities_are_own_bytes_those_of_the_slowest_and_all_that_is_sent() -> None:
    found = exchange_quantities(np.array([0.0, 0.0, 30.0]), 9)
    own, most = 3 * 30 * 4, 6 * 30 * 4
    assert found.tolist() == [[1, own, most, most], [1, own, most, most], [1, most, most, most]]


def test_without_a_correction_the_price_is_linear_in_the_quantities() -> None:
    model = small_communication(correction=0.0)
    widths = np.array([[12.0, 4.0], [8.0, 8.0]])
    base = exchange_weights()["base"].astype(np.float64)
    quantities = exchange_quantities(widths, 8)
    assert model.forward_transfer(widths, np.zeros_like(widths), 8) == pytest.approx(quantities @ base[0])
    assert model.backward(widths, 8) == pytest.approx(quantities @ base[1])


@given(widths=WIDTHS, batch_size=BATCHES, data=st.data())
def test_permuting_the_devices_permutes_the_prices(widths: list[int], batch_size: int, data: st.DataObject) -> None:
    model, held = small_communication(), np.array(widths, dtype=float)
    order = data.draw(st.permutations(range(len(widths))))
    waits = data.draw(st.lists(st.floats(0, 1e4), min_size=len(widths), max_size=len(widths)).map(np.array))
    found, turned = (model.forward_transfer(held[o], waits[o], batch_size) for o in (range(len(widths)), order))
    assert turned == pytest.approx(found[order], rel=1e-9)
    assert model.backward(held[order], batch_size) == pytest.approx(model.backward(held, batch_size)[order], rel=1e-9)


@given(widths=WIDTHS, batch_size=BATCHES, skew_ms=st.floats(0, 1e7))
def test_any_exchange_is_priced_within_a_factor_of_its_physical_part(
    widths: list[int], batch_size: int, skew_ms: float
) -> None:
    model, held = small_communication(), np.array(widths, dtype=float)
    physical = exchange_quantities(held, batch_size) @ exchange_weights()["base"].T.astype(np.float64)
    waits = np.linspace(0, skew_ms, len(widths))
    for output, price in enumerate((model.forward_transfer(held, waits, batch_size), model.backward(held, batch_size))):
        ratio = price / np.maximum(physical[:, output], LEAST_MS)
        assert (np.abs(np.log(ratio)) <= CORRECTION_LIMIT + 1e-9).all()


def test_one_of_many_placements_is_priced_as_it_is_alone() -> None:
    widths = np.random.default_rng(0).integers(0, 900, size=(5, 7, 4)).astype(float)
    together = small_communication().backward(widths, 8192)
    assert together[3, 2] == pytest.approx(small_communication().backward(widths[3, 2], 8192), rel=1e-12)


@given(seconds=st.floats(0, 10), batch_size=st.integers(1, 131_072))
def test_a_skew_of_seconds_is_waited_for_and_moves_the_transfer_within_bounds(seconds: float, batch_size: int) -> None:
    """The published network prices skews far beyond those it was trained on at several times the compute."""
    skewed, level = (_two_devices(ms, batch_size) for ms in (1000 * seconds, 0.0))
    late = np.abs(np.diff((skewed.forward_compute + skewed.backward_compute + skewed.backward_comm)[0]))[0]
    assert skewed.forward_wait.max() == late
    assert skewed.forward_wait.min() == 0
    moved = np.log(np.maximum(skewed.forward_transfer, 1) / np.maximum(level.forward_transfer, 1))
    assert (np.abs(moved) <= 2 * CORRECTION_LIMIT + 1e-3).all()
    start = (skewed.forward_compute + skewed.backward_compute + skewed.backward_comm).max()
    assert skewed.plan[0] == start + skewed.forward_transfer.max()


def test_a_wait_changes_the_transfer_less_and_less() -> None:
    widths = np.array([64.0, 512.0, 256.0])
    prices = [
        small_communication().forward_transfer(widths, np.array([wait, 0.0, wait / 2]), 8192)
        for wait in (0.0, 1.0, 1e3, 1e4)
    ]
    moved = [float(np.abs(np.log(after / before)).max()) for before, after in pairwise(prices)]
    assert moved[0] > 10 * moved[2]
    assert moved[2] < 0.01


class SkewedCompute(FakeCompute):
    """A table of pooling factor p costs p milliseconds, forward."""

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        return np.array([[table.pooling_factor] for table in tables], dtype=np.float32)

    def head(self, sums: Embeddings) -> Floats:
        forward = sums[..., 0].astype(np.float64)
        return np.stack([forward, np.zeros_like(forward)], axis=-1)


def _two_devices(late_ms: float, batch_size: int) -> StepCosts:
    tables = (Table("early", 1000, 64, 0.0), Table("late", 1000, 32, late_ms))
    problem = Problem(tables, Topology("cpu-x", (2**40, 2**40)), batch_size, Optimizer.SGD)
    models = CostModels(SkewedCompute(), small_communication())
    workspace = Workspace.of(problem, [Slice(0, 0, 64), Slice(1, 0, 32)], models)
    return simulate(workspace, np.array([[0, 1]]))


def test_one_device_exchanges_nothing() -> None:
    model = small_communication()
    assert model.forward_transfer(np.array([64.0]), np.zeros(1), 1024).tolist() == [0.0]
    assert model.assumptions(np.array([64.0]), np.zeros(1), 1024) == []


def test_what_was_not_measured_is_said() -> None:
    model = small_communication()
    assert model.assumptions(np.full(4, 64.0), np.zeros(4), 8192) == []
    (extrapolated,) = model.assumptions(np.full(16, 64.0), np.zeros(16), 8192)
    assert "2, 4, 8 devices, of which 8 on fewer cores" in extrapolated
    assert "those of 16 are extrapolated" in extrapolated
    (shared,) = model.assumptions(np.full(8, 64.0), np.zeros(8), 8192)
    assert "fewer cores" in shared


@pytest.mark.parametrize("batch_size", [2047, 65_537])
def test_a_batch_beyond_those_measured_is_said(batch_size: int) -> None:
    (said,) = small_communication().assumptions(np.full(4, 64.0), np.zeros(4), batch_size)
    assert f"2048 to 65536: those of {batch_size} are extrapolated" in said


def test_bytes_beyond_those_measured_are_said() -> None:
    # Of a batch of 8192, each of 4 devices sends the vectors of 3 * 2048 samples.
    (much,) = small_communication().assumptions(np.array([8.0, 8.0, 8.0, 6000.0]), np.zeros(4), 8192)
    assert f"1000 to 100000000 bytes a device: {6008 * 2048 * 4 + 8 * 2048 * 4} to {6000 * 3 * 2048 * 4}" in much
    (none,) = small_communication().assumptions(np.zeros(4), np.zeros(4), 8192)
    assert "0 to 0 are extrapolated" in none
    few_cores = MeasuredExchanges((2,), (), (2048, 65536), (0, 100_000_000), (0.0, 200.0))
    model = CommunicationModel("v", exchange_weights(), few_cores)
    (extrapolated,) = model.assumptions(np.full(3, 64.0), np.zeros(3), 8192)
    assert "measured on 2 devices: those of 3 are extrapolated" in extrapolated


def test_errors_are_wider_the_farther_an_exchange_is_from_those_measured() -> None:
    def scales(widths: list[float], batch_size: int) -> Floats:
        return small_communication().errors(np.full((len(widths), 2), 2.0), np.array(widths), batch_size).scales

    inside = scales([64.0] * 4, 8192)
    assert inside == pytest.approx(np.full((4, 2), inside[0, 0]))
    # An octave below the smallest batch and one above the most devices; 3 devices are log2(4/3) from 4.
    assert scales([64.0] * 4, 1024) == pytest.approx(2 * inside)
    assert scales([64.0] * 16, 8192) == pytest.approx(np.full((16, 2), 2 * inside[0, 0]))
    assert scales([64.0] * 3, 8192) == pytest.approx((1 + np.log2(4 / 3)) * inside[:3])
    sent = 64.0 * 3 * 2048 * 4
    wide = scales([64.0 * 4e8 / sent, 64.0, 64.0, 64.0], 8192)
    assert wide[0] == pytest.approx(3 * inside[0])


def test_a_skew_beyond_those_measured_is_said() -> None:
    (said,) = small_communication().assumptions(np.full(4, 64.0), np.array([0.0, 301.0, 5.0, 1.0]), 8192)
    assert "up to 301 ms apart, those measured 200 ms" in said


def test_no_wait_saves_more_than_it_takes() -> None:
    widths = np.random.default_rng(0).integers(4, 900, size=(200, 8)).astype(float)
    waits = np.random.default_rng(1).uniform(0, 20, size=(200, 8))
    waits -= waits.min(axis=1, keepdims=True)
    bound = 0
    for seed in range(6):
        arrays = {**exchange_weights(seed), "feature_mean": np.zeros(8, dtype=np.float32)}
        arrays["feature_scale"] = np.array([5.0] * 7 + [0.02], dtype=np.float32)
        model = CommunicationModel("v", arrays, EXCHANGES)
        together, later = (model.forward_transfer(widths, w, 131_072) for w in (np.zeros_like(waits), waits))
        least = together - waits.max(axis=1, keepdims=True)
        assert (later >= least).all()
        bound += int(np.count_nonzero(later == least))
    assert bound


def test_beyond_the_measured_features_the_correction_stays_that_of_the_edge() -> None:
    arrays = {**exchange_weights(), "feature_high": np.zeros(8, dtype=np.float32)}
    model = CommunicationModel("v", arrays, EXCHANGES)
    widths = np.array([10.0, 4000.0, 300.0])
    waits = np.array([3.0, 0.5, 0.1])
    assert (exchange_features(widths, waits, 8192) > 0).all()
    base = exchange_quantities(widths, 8192) @ arrays["base"][0].astype(np.float64)
    ratios = model.forward_transfer(widths, waits, 8192) / base
    assert ratios == pytest.approx(np.full(3, ratios[0]))


@pytest.mark.parametrize("name", ["base", "own.weight", "out.bias"])
def test_arrays_of_another_form_are_refused_by_name(name: str) -> None:
    arrays = {**exchange_weights(), name: np.zeros((3, 3, 3), dtype=np.float32)}
    with pytest.raises(DamagedArtifact, match=name):
        CommunicationModel("v", arrays, EXCHANGES)
