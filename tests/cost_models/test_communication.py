"""The communication model: bytes of an exchange, and the line over them."""

import numpy as np
import pytest

from service.cost_models.communication import CommunicationModel, Line, exchanged_bytes


def test_bytes_are_the_larger_of_sent_and_received() -> None:
    widths = np.array([12.0, 4.0])
    # Batch 8 on 2 ranks: rank 0 sends 4 samples x 12 columns; rank 1 sends 4 x 4 and receives 4 x 12.
    assert exchanged_bytes(widths, 8).tolist() == [4 * 12 * 4, 4 * 12 * 4]


def test_a_device_that_holds_nothing_still_receives() -> None:
    sizes = exchanged_bytes(np.array([0.0, 0.0, 30.0]), 9)
    assert sizes.tolist() == [3 * 30 * 4, 3 * 30 * 4, 6 * 30 * 4]


def test_the_price_is_a_line_over_the_bytes_for_any_number_of_placements() -> None:
    model = CommunicationModel("v", Line(0.5, 1e-3), Line(0.25, 2e-3), (2,))
    widths = np.array([[12.0, 4.0], [8.0, 8.0]])
    assert model.forward_transfer(widths, 8) == pytest.approx(np.array([[0.692, 0.692], [0.628, 0.628]]))
    assert model.backward(widths, 8) == pytest.approx(np.array([[0.634, 0.634], [0.506, 0.506]]))


def test_one_device_exchanges_nothing() -> None:
    model = CommunicationModel("v", Line(0.5, 1e-3), Line(0.5, 1e-3), (2, 4))
    assert model.forward_transfer(np.array([64.0]), 1024).tolist() == [0.0]
    assert model.assumptions(1) == []


def test_a_number_of_devices_that_was_not_measured_is_said() -> None:
    model = CommunicationModel("v", Line(0.5, 1e-3), Line(0.5, 1e-3), (2, 4))
    assert model.assumptions(4) == []
    (said,) = model.assumptions(8)
    assert "2, 4" in said
    assert "8" in said
