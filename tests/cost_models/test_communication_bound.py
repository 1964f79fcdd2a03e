"""What exchanges cost at least, whatever the network: against sets of widths and waits drawn at random."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.analytic import AnalyticCommunication
from service.cost_models.communication import CommunicationModel
from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.ports import CommunicationCostModel, Floats
from tests.cost_models.small_model import EXCHANGES, exchange_weights, small_communication
from tests.examples import examples

SETS = 400


def _network(seed: int, correction: float, seen: tuple[str, ...]) -> CommunicationModel:
    """A network in which devices see only some of themselves, the mean and the maximum: the bound is closer then."""
    arrays = dict(exchange_weights(seed, correction))
    for name in {"own", "mean", "most"}.difference(seen):
        arrays[f"{name}.weight"] = np.zeros_like(arrays[f"{name}.weight"])
    return CommunicationModel("v", arrays, EXCHANGES)


def _sheet(hardware: str) -> AnalyticCommunication:
    return AnalyticCommunication("v", DATA_SHEETS[hardware])


SEEN = st.sampled_from([("own",), ("mean",), ("most",), ("own", "mean", "most")])
MODELS = st.one_of(
    st.builds(_network, st.integers(0, 999), st.sampled_from([0.1, 0.3, 1.0]), SEEN),
    st.builds(_sheet, st.sampled_from(["h100", "v100", "l4"])),
)


def _drawn(rng: np.random.Generator, devices: int, pieces: int) -> tuple[Floats, Floats]:
    """Widths of ``SETS`` sets of devices, from alike to all on one, and their waits, of which one at least is none."""
    even = rng.choice([0.05, 0.2, 1.0, 5.0, 50.0, 500.0], size=(SETS, 1))
    shares = rng.gamma(np.broadcast_to(even, (SETS, devices))) + 1e-12
    widths = 4.0 * np.stack([rng.multinomial(pieces, row / row.sum() * (1 - 1e-12)) for row in shares])
    longest = rng.choice([0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0], size=(SETS, 1))
    waits = longest * rng.random((SETS, devices)) * (rng.random((SETS, devices)) < rng.random((SETS, 1)))
    waits[np.arange(SETS), rng.integers(devices, size=SETS)] = 0.0
    return np.asarray(widths, dtype=np.float64), waits


def _added(model: CommunicationCostModel, widths: Floats, waits: Floats, batch_size: int) -> Floats:
    forward, backward = model.forward_transfer(widths, waits, batch_size), model.backward(widths, batch_size)
    return np.asarray(backward.min(axis=-1) + forward.max(axis=-1))


@settings(max_examples=examples(150), deadline=None)
@given(
    model=MODELS,
    devices=st.sampled_from([2, 3, 4, 8, 16, 64]),
    pieces=st.integers(1, 5_000),
    batch_size=st.sampled_from([64, 2_048, 65_536]),
    seed=st.integers(0, 999),
)
def test_no_exchange_costs_less(
    model: CommunicationCostModel, devices: int, pieces: int, batch_size: int, seed: int
) -> None:
    widths, waits = _drawn(np.random.default_rng(seed), devices, pieces)
    added = _added(model, widths, waits, batch_size)
    assert model.least_exchange(4 * pieces, devices, batch_size) <= added.min()


def test_a_network_that_corrects_nothing_leaves_the_physical_part_of_even_widths() -> None:
    model = small_communication(correction=0.0)
    even = _added(model, np.full(4, 256.0), np.zeros(4), 8_192)
    assert model.least_exchange(1_024, 4, 8_192) == pytest.approx(float(even), rel=1e-6)


def test_equal_widths_are_the_best_that_a_data_sheet_knows() -> None:
    model = _sheet("h100")
    even = _added(model, np.full(8, 128.0), np.zeros(8), 65_536)
    assert model.least_exchange(1_024, 8, 65_536) == pytest.approx(float(even), rel=1e-12)
