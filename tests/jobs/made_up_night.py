"""A retraining that trains nothing: it stores outcomes at once, and then does what ``NIGHT`` says.

Each that is begun is noted, with the process that does it, in the file named by ``NOTES`` of ``made_up``.
"""

import os
import time
from pathlib import Path

from service.domain.trainings import MODELS, Ended, Outcome
from service.settings import Settings
from service.storage.engine import build_engine
from service.storage.trainings import TrainingRepository
from tests.jobs.made_up import NOTES

RETRAIN = "tests.jobs.made_up_night:retrain"
NIGHT = "MADE_UP_NIGHT"

CRASHES = "crashes"
STUCK = "stuck"


def retrain(settings: Settings, hardware: str) -> None:
    """Is through with all models, or with the first one and crashes or gets stuck."""
    assert settings.database_url
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{hardware} {os.getpid()}\n")
    planted = os.environ.get(NIGHT)
    trainings = TrainingRepository(build_engine(settings.database_url))
    with trainings.alone(hardware):
        for model in MODELS[:1] if planted else MODELS:
            now = trainings.now()
            trainings.add(Outcome(hardware, model, Ended.NOTHING_NEW, "nothing was trained", now, now))
        if planted == CRASHES:
            os.abort()
        if planted == STUCK:
            time.sleep(3600)
