"""Reads for /metrics when the database does not answer at all."""

import threading
import time

import pytest

from service.telemetry.prompt import PromptReads, ReadTooSlow


def test_a_read_that_hangs_costs_a_scrape_its_bound_once_and_reads_go_on_when_it_has_ended() -> None:
    answers, reads = threading.Event(), PromptReads(0.3)

    def figures() -> int:
        answers.wait(20)
        return 7

    began = time.monotonic()
    for bounded in (reads.of(figures), reads.of(lambda: 8), reads.of(figures)):
        with pytest.raises(ReadTooSlow):
            bounded()
    assert time.monotonic() - began < 0.6
    assert sum(thread.name == "figures" for thread in threading.enumerate()) == 1
    answers.set()
    while any(thread.name == "figures" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert [reads.of(figures)(), reads.of(lambda: 8)()] == [7, 8]


def test_what_a_read_raises_is_told() -> None:
    def fails() -> int:
        raise ValueError("no such table")

    with pytest.raises(ValueError, match="no such table"):
        PromptReads().of(fails)()
