"""Versions judged on measurements: the right rows, sliced by what they are, and what is said of them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Split
from service.domain.tables import DataType, Optimizer, Table
from service.training.communication_dataset import exchanges_fingerprint
from service.training.compute_dataset import data_fingerprint
from service.training.judged_rows import judged_combinations, judged_exchanges
from service.training.sittings import Sitting
from service.training.slices import Judged
from service.usecases.evaluate_models import evaluate_communication_version, evaluate_compute_version
from tests.cost_models.small_model import small_communication, small_model

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NARROW, WIDE = Table("n", 1000, 4, 3.0), Table("w", 1000, 64, 1.0, data_type=DataType.FP16)


def combination(index: int, *tables: Table, batch_size: int = 2048, **changes: Any) -> ComputeMeasurement:
    held = tables or (replace(NARROW, num_embeddings=1000 + index),)
    row = ComputeMeasurement("c", index, "cpu-x", held, batch_size, Optimizer.SGD, 2.0, 4.0, 0.0, 0.0, 9, {}, NOW)
    return replace(row, **changes)


def exchange(index: int, widths: tuple[int, ...], batch_size: int = 2048) -> CommunicationMeasurement:
    none, some = (0.0,) * len(widths), tuple(1.0 + device for device in range(len(widths)))
    return CommunicationMeasurement(
        "e", index, "cpu-x", widths, batch_size, none, none, (0.0, *some[1:]), some, 9, {}, NOW
    )


def counted(judged: Judged) -> dict[str, dict[str, int]]:
    return {name: {called: q.rows for called, q in slices.items()} for name, slices in judged.sliced().items()}


def manifest(rows: list[ComputeMeasurement], factor: float | None = 1.0) -> dict[str, Any]:
    """Of a version whose measurements took ``factor`` times as long; None where it does not say."""
    sittings = {} if factor is None else {"sittings": [Sitting(NOW, NOW, len(rows), factor).as_dict()]}
    return {
        "version": "cpu-x/compute/1",
        "measured": {"optimizers": ["sgd"]},
        "data": {"fingerprint": data_fingerprint(rows)},
        **sittings,
    }


def test_combinations_are_sliced_by_what_they_are() -> None:
    rows = [combination(0, NARROW), combination(1, NARROW, WIDE, batch_size=8192, optimizer=Optimizer.ADAGRAD)]
    found = judged_combinations(small_model(), rows)
    assert counted(found["total"]) == {
        "tables": {"<2": 1, "2 to <4": 1},
        "narrowest dim": {"<8": 2},
        "mean dim": {"<8": 1, "32 to <64": 1},
        "batch size": {"2048 to <4096": 1, "8192 to <16384": 1},
        "mean pooling factor": {"2 to <4": 2},
        "precision": {"fp16 and fp32": 1, "fp32": 1},
        "optimizer": {"adagrad": 1, "sgd": 1},
    }
    priced = small_model().head(small_model().encode([NARROW, WIDE], 8192, Optimizer.SGD).sum(axis=0))
    assert [found[cost].predicted[1] for cost in ("forward", "backward")] == pytest.approx(priced)
    assert found["total"].predicted[1] == pytest.approx(priced.sum())
    assert [found[cost].measured[0] for cost in found] == [6.0, 2.0, 4.0]


def test_the_devices_of_exchanges_are_sliced_by_what_they_exchange() -> None:
    model = small_communication()
    # Each of 4 devices sends 3/4 of its columns of 2048 samples; 3 * 64 columns are 1.125 MiB.
    found = judged_exchanges(model, [exchange(0, (64, 64)), exchange(1, (64, 64, 64, 192), batch_size=8192)])
    assert counted(found["backward"]) == {
        "devices": {"2": 2, "4": 4},
        "batch size": {"2048 to <4096": 2, "8192 to <16384": 4},
        "skew of the starts, ms": {"<1": 6},
        "unevenness": {"<1.1": 2, "2 to <3": 4},
        "MiB of the device": {"0.25 to <1": 2, "1 to <4": 3, "4 to <16": 1},
    }
    assert counted(found["forward_transfer"])["devices"] == {"2": 1, "4": 3}
    assert found["backward"].predicted[2:] == pytest.approx(model.backward(np.array([64.0, 64, 64, 192]), 8192))
    assert found["forward_transfer"].measured.tolist() == [2.0, 2.0, 3.0, 4.0]


def test_a_version_is_judged_by_the_held_out_rows_of_its_kind_with_sittings_factors_out() -> None:
    rows = [combination(index) for index in range(60)]
    held_out = sum(row.split is Split.TEST for row in rows)
    found = evaluate_compute_version(small_model(), manifest(rows, factor=1.25), rows, Split.TEST)
    assert 0 < found.rows == held_out < 60
    assert found.costs["total"].measured.tolist() == pytest.approx([6.0 / 1.25] * held_out)
    assert found.warnings == ()


def test_what_is_left_out_or_may_mislead_is_said() -> None:
    rows = [combination(index) for index in range(60)]
    new = [replace(row, environment={"bench": "2"}) for row in rows]
    adagrad = [replace(row, optimizer=Optimizer.ADAGRAD, environment={"bench": "2"}) for row in rows]
    in_part = sum(row.split is Split.TRAIN for row in rows)
    found = evaluate_compute_version(
        small_model(), manifest(rows[1:], factor=None), [*rows, *new, *adagrad], Split.TRAIN
    )
    trained, data, older, optimizer, sitting = found.warnings
    assert "cpu-x/compute/1 was trained on this part" in trained
    assert "trained on other measurements than these" in data
    assert older.startswith("60 measurements of an older bench")
    assert optimizer.startswith(f"{in_part} combinations with adagrad")
    assert "how fast the machine was in each sitting" in sitting


def test_rows_of_other_optimizers_are_among_those_that_a_version_was_trained_from() -> None:
    # All were there when the version was trained, and the newest bench was of one that it has not.
    rows = [combination(index, optimizer=[Optimizer.SGD, Optimizer.ADAGRAD][index % 2]) for index in range(80)]
    found = evaluate_compute_version(small_model(), manifest(rows), rows, Split.TEST)
    assert found.rows == sum(row.split is Split.TEST and row.optimizer is Optimizer.SGD for row in rows)
    assert not any("other measurements" in said for said in found.warnings)
    newer = [*rows, combination(99, optimizer=Optimizer.ADAGRAD, environment={"bench": "2"})]
    with pytest.raises(TooFewMeasurements, match="no measurements in the test part"):
        evaluate_compute_version(small_model(), manifest(rows), newer, Split.TEST)


def test_what_a_version_did_with_the_part_is_said() -> None:
    rows = [combination(index) for index in range(60)]
    fitted = manifest(rows)
    (said,) = evaluate_compute_version(small_model(), fitted, rows, Split.VALIDATION).warnings
    assert "fitted its intervals to this part" in said
    calibrated = fitted | {"kind": "calibrated"}
    assert evaluate_compute_version(small_model(), calibrated, rows, Split.VALIDATION).warnings == ()
    (said,) = evaluate_compute_version(small_model(), calibrated, rows, Split.TRAIN).warnings
    assert "was trained on this part" in said
    exchanged = [exchange(index, (64, 64 + index)) for index in range(60)]
    facts = {"version": "cpu-x/communication/1", "data": {"fingerprint": exchanges_fingerprint(exchanged)}}
    uses = [
        evaluate_communication_version(small_communication(), facts, exchanged, part).warnings
        for part in (Split.TRAIN, Split.VALIDATION, Split.TEST)
    ]
    assert "fitted its intervals to it" in uses[0][0]
    assert "chose its epoch on this part" in uses[1][0]
    assert uses[2] == ()


def test_nothing_to_judge_on_is_refused_with_a_remedy() -> None:
    with pytest.raises(TooFewMeasurements, match=r"no measurements in the test part .* db seed"):
        evaluate_communication_version(small_communication(), {}, [], Split.TEST)
