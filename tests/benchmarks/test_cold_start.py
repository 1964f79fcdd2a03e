"""The verdict on the cold start: better in every draw, and judged with enough samples."""

import pytest

from benchmarks.cold_start import DECIDING, Point, verdict
from service.training.metrics import Metrics


def point(way: str, samples: int, *mapes: float) -> Point:
    return Point(way, samples, tuple(Metrics(10, 1.0, mape, mape, 0.9) for mape in mapes))


@pytest.mark.parametrize(
    ("calibrated", "network", "analytic", "won"),
    [
        ((0.10, 0.11), (0.20, 0.12), 0.5, True),
        ((0.10, 0.13), (0.20, 0.12), 0.5, False),
        ((0.10, 0.11), (0.20, 0.12), 0.105, False),
    ],
)
def test_it_must_be_the_best_in_every_draw(
    calibrated: tuple[float, ...], network: tuple[float, ...], analytic: float, won: bool
) -> None:
    more = [point("calibrated", 2 * DECIDING, 0.9), point("network", 2 * DECIDING, 0.01)]
    points = [point("analytic", 0, analytic), point("calibrated", DECIDING, *calibrated)]
    assert verdict([*points, point("network", DECIDING, *network), *more]) is won
