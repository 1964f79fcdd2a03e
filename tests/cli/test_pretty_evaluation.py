"""What ``shardwright evaluate`` prints of intervals that do not hold as often as they say."""

import numpy as np
import pytest

from service.cli.evaluating import evaluated_answer
from service.cli.pretty_evaluation import print_evaluated
from service.domain.measurements import Split
from service.training.slices import Attribute, Judged
from service.usecases.evaluate_models import Evaluation


def printed(capsys: pytest.CaptureFixture[str], covered: np.ndarray) -> str:
    """The tables of 1,000 rows, half of them on either side of a batch size of 2."""
    rng = np.random.default_rng(0)
    measured = rng.uniform(1, 2, len(covered))
    batch_sizes = Attribute(np.arange(len(covered)) % 2 + 1, (2.0,))
    cost = Judged(measured * rng.uniform(0.9, 1.1, len(covered)), measured, covered, {"batch size": batch_sizes})
    evaluation = Evaluation("cpu-x/compute/1", Split.TEST, len(covered), {"total": cost}, ())
    print_evaluated(evaluated_answer([evaluation], [], []))
    return capsys.readouterr().out


def test_slices_that_are_covered_too_seldom_are_marked_and_the_mark_is_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = np.arange(1_000)
    sound = rows % 20 > 1
    said = printed(capsys, sound)
    assert "90.0%" in said
    assert "!" not in said
    # The slice of odd rows is covered in 80%, the other in all.
    said = printed(capsys, (rows % 2 == 0) | (rows % 10 > 1))
    assert "! 80.0%" in said
    assert "! 100.0%" in said
    assert "! 90.0%" not in said
    assert "! holds more or fewer than chance makes of 90%" in said
