"""The soak's verdict: which answers are errors, and what has grown."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak import is_error, report
from benchmarks.soak_samples import Sample, verdict

MIB = 2**20
FLAT = Sample(0.0, {"api": 100 * MIB, "planning": 200 * MIB}, 20, 9, 15, 80 * MIB)


@pytest.mark.parametrize("said", ["estimate 200", "observe 201", "faulty 422", "faulty 415", "hung up"])
def test_what_was_to_come_is_no_error(said: str) -> None:
    assert not is_error(said)


@pytest.mark.parametrize(
    "said", ["ReadTimeout", "ConnectError", "read 404", "repeated 503", "other tables 422", "faulty 200", "faulty 500"]
)
def test_what_was_not_to_come_is_an_error(said: str) -> None:
    assert is_error(said)


def test_what_grows_between_the_first_and_the_last_quarter_is_told() -> None:
    assert verdict([FLAT] * 8, 0)[1]
    assert not verdict([FLAT] * 8, 1)[1]
    for grown in (
        replace(FLAT, memory={**FLAT.memory, "planning": 211 * MIB}),
        replace(FLAT, descriptors=29),
        replace(FLAT, threads=18),
        replace(FLAT, connections=24),
    ):
        text, good = verdict([*[FLAT] * 6, grown, grown], 0)
        assert not good
        assert text.startswith("NOT FLAT: 0 errors; ")
    assert verdict([*[FLAT] * 6, replace(FLAT, database=900 * MIB)], 0)[1]


def test_the_report_counts_errors_and_leaves_the_warm_up_out() -> None:
    starting = replace(FLAT, memory={"api": 50 * MIB, "planning": 90 * MIB})
    samples = [starting, starting, *(replace(FLAT, at_s=float(at_s)) for at_s in range(30, 121, 10))]
    text, good = report(samples, Counter({"estimate 200": 1_200, "faulty 422": 60}), 120.0, "a machine")
    assert good
    assert "10.5 requests a second" in text
    assert "- estimate 200: 1,200\n- faulty 422: 60\n" in text
    assert "memory of api 100.0 to 100.0 MiB" in text
    text, good = report(samples, Counter({"estimate 200": 1_200, "read 404": 2}), 120.0, "a machine")
    assert not good
    assert "NOT FLAT: 2 errors; " in text
