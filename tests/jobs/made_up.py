"""A bench that measures nothing: made-up times at once, and whatever else a table's rows tell it to do.

Each measurement that is begun is noted, with the process that did it, in the file named by ``NOTES``.
"""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from service.domain.errors import MeasurementRefused, MemoryIsShort
from service.domain.measurements import ComputeMeasurement
from service.domain.profiles import MeasuredProfile, ProfileSettings, TableProfile, campaign_of

BENCH = "tests.jobs.made_up:MadeUpBench"
NOTES = "MADE_UP_NOTES"

CRASHES = 666
REFUSED = 667
STUCK = 668
SHORT = 669
SECONDS = 10_000
"""Rows above this are milliseconds that the measurement takes."""


class MadeUpBench:
    """Takes ``rows - SECONDS`` milliseconds, or crashes, refuses, gets stuck or has no memory now."""

    def __init__(self, settings: ProfileSettings) -> None:
        self.settings = settings

    def __call__(self, profile: TableProfile, first_index: int) -> MeasuredProfile:
        rows = profile.table.num_embeddings
        with Path(os.environ[NOTES]).open("a") as notes:
            notes.write(f"{profile.key} {os.getpid()}\n")
        if rows == CRASHES:
            os.abort()
        if rows == REFUSED:
            raise MeasurementRefused("the table is not to be measured: give another")
        if rows == SHORT:
            raise MemoryIsShort("there is no memory just now")
        if rows == STUCK:
            time.sleep(3600)
        if rows > SECONDS:
            time.sleep((rows - SECONDS) / 1000)
        return MeasuredProfile(tuple(_measured(profile, first_index + i, i) for i in range(len(profile.widths))), None)


def _measured(profile: TableProfile, index: int, position: int) -> ComputeMeasurement:
    return ComputeMeasurement(
        campaign=campaign_of(profile.key),
        index=index,
        hardware=profile.hardware,
        tables=(profile.table.sliced(profile.widths[position]),),
        batch_size=profile.batch_size,
        optimizer=profile.optimizer,
        forward_ms=1.0 + position,
        backward_ms=2.0 + position,
        forward_spread=0.01,
        backward_spread=0.01,
        repeats=9,
        environment={"bench": "1", "device": "made up"},
        measured_at=datetime.now(UTC),
    )
