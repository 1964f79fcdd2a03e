"""What a worker that is stopped does with the job in hand."""

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from service.domain.errors import StorageUnavailable
from service.jobs.measuring import MeasuringProcess
from service.jobs.profile_job import ProfileJob
from service.storage.claims import Claim, ClaimRepository
from tests.jobs.supervised import profile


class Claims:
    """Claims that take a moment, of a database that is away at first where results are stored."""

    def __init__(self, outages: int = 0, claim_s: float = 0.0) -> None:
        self.outages, self.claim_s = outages, claim_s
        self.done: list[str] = []
        self.asked = threading.Event()

    def claim(self, key: str, job: int, worker: int) -> Claim:
        self.asked.set()
        time.sleep(self.claim_s)
        return Claim(key, job, profile(), 0)

    def record(self, claim: Claim, measurements: Any, rows: int | None) -> None:
        self.asked.set()
        self.outages -= 1
        if self.outages >= 0:
            raise StorageUnavailable("away")
        self.done.append("recorded")

    def give_back(self, claim: Claim) -> None:
        self.done.append("given back")


class Measuring:
    """Measures nothing, at once."""

    def measure(self, *_: object) -> Any:
        class Found:
            measurements, rows = (), None

        return Found

    def end(self) -> None:
        pass


def stopped_once_asked(claims: Claims) -> None:
    """Runs a job and cancels it as soon as the database was asked for the first time (with a claim that takes long)."""

    async def work() -> None:
        job = ProfileJob(cast(ClaimRepository, claims), cast(MeasuringProcess, Measuring()), 1.0)
        running = asyncio.create_task(job.run("key", 1, 1))
        if not claims.claim_s:
            while not claims.outages < 1:
                await asyncio.sleep(0.01)
        else:
            await asyncio.to_thread(claims.asked.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(work())


def test_what_was_measured_is_stored_still() -> None:
    claims = Claims(outages=1)
    stopped_once_asked(claims)
    assert claims.done == ["recorded"]


def test_what_was_being_claimed_is_given_back() -> None:
    claims = Claims(claim_s=0.3)
    stopped_once_asked(claims)
    assert claims.done == ["given back"]
