from typing import Any

import pytest

from service.domain.observations import Observation
from service.usecases.compare_observations import compared

ANSWER: dict[str, Any] = {
    "devices": [
        {},
        {
            "cost_ms": {
                "forward_compute": 2.0, "backward_compute": 4.0, "forward_wait": 1.0, "forward_transfer": 0.5,
                "backward_comm": 0.0, "total": 7.5,
            },
            "cost_interval_ms": {
                "forward_compute": [1.5, 2.5], "backward_compute": [3.0, 6.0], "forward_wait": [0.0, 2.0],
                "forward_transfer": [0.4, 0.9], "backward_comm": [0.0, 0.0], "total": [6.0, 9.0],
            },
        },
    ]
}  # fmt: skip


def observation(**changes: Any) -> Observation:
    values: dict[str, Any] = {
        "launch_id": "", "rank": 1, "start": 0, "stop": 100, "forward_compute_ms": 2.5, "backward_compute_ms": 6.1,
        "forward_comm_ms": 2.9, "backward_comm_ms": 0.0, "total_ms": 11.5, "environment": {},
    }  # fmt: skip
    return Observation(**values | changes)


def test_each_part_is_compared_with_what_it_is_the_sum_of() -> None:
    found = compared(ANSWER, observation())
    assert {part: (cost.predicted_ms, cost.interval_ms, cost.within) for part, cost in found.items()} == {
        "forward_compute": (2.0, (1.5, 2.5), True),
        "backward_compute": (4.0, (3.0, 6.0), False),
        "forward_comm": (1.5, (0.4, 2.9), True),
        "backward_comm": (0.0, (0.0, 0.0), True),
        "total": (7.5, (6.0, 9.0), False),
    }
    assert found["forward_compute"].ratio == pytest.approx(1.25)
    assert found["backward_comm"].ratio is None
    assert found["total"].measured_ms == 11.5


def test_what_was_not_measured_is_not_compared() -> None:
    found = compared(ANSWER, observation(forward_comm_ms=None, backward_comm_ms=None, total_ms=None))
    assert list(found) == ["forward_compute", "backward_compute"]


def test_a_plan_without_intervals_is_compared_without() -> None:
    device = {name: value for name, value in ANSWER["devices"][1].items() if name != "cost_interval_ms"}
    found = compared({"devices": [{}, device]}, observation())
    assert {cost.within for cost in found.values()} == {None}
    assert found["forward_compute"].ratio == pytest.approx(1.25)
