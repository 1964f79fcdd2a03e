"""What one job does: claims a profile, has it measured, and stores what came of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from service.domain.errors import StorageUnavailable
from service.jobs.measuring import MeasuringFailed, MeasuringProcess, NeverMeasured
from service.storage.claims import Claim, ClaimRepository, LostClaim

Result = TypeVar("Result")

_STORE_AGAIN_S = 1.0
_LAST_WORDS_S = 5.0
_IDLE_S = 60.0
_LONGEST_ERROR = 4_000

_log = logging.getLogger(__name__)


class ProfileJob:
    """Measures profiles one after the other; nothing that takes time runs in the event loop, so heartbeats go on."""

    def __init__(
        self, claims: ClaimRepository, measuring: MeasuringProcess, timeout_s: float, outage_s: float = 60.0
    ) -> None:
        """Ties the parts together.

        Args:
            claims: where profiles are claimed and their outcomes stored.
            measuring: measures.
            timeout_s: most seconds that one profile may take.
            outage_s: seconds for which storing an outcome is tried again while the database is away.
        """
        self._claims = claims
        self._measuring = measuring
        self._timeout_s = timeout_s
        self._outage_s = outage_s
        self._resting: asyncio.TimerHandle | None = None

    async def run(self, key: str, job: int, worker: int) -> None:
        """Does one job; a cancellation ends the measurement and gives the profile back.

        Raises:
            StorageUnavailable: the database was away too long; the sweep finds the profile.
        """
        claim = await self._claimed(key, job, worker)
        if claim is None:
            _log.info("the profile is no longer this job's", extra=_fields(key, job))
            return
        if self._resting:
            self._resting.cancel()
        try:
            await self._measured(claim)
        except LostClaim as error:
            _log.warning("a claim was lost, nothing was stored", extra=_fields(key, job, cause=error.detail))
        finally:
            # An idle worker does not keep the bench's memory.
            self._resting = asyncio.get_running_loop().call_later(_IDLE_S, self._measuring.end)

    async def _claimed(self, key: str, job: int, worker: int) -> Claim | None:
        claiming = asyncio.create_task(asyncio.to_thread(self._claims.claim, key, job, worker))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The thread goes on: what it claims would count as a try.
            claim = await claiming
            if claim is not None:
                await self._given_back(claim)
            raise

    async def _given_back(self, claim: Claim) -> None:
        await asyncio.to_thread(self._claims.give_back, claim)
        _log.info("gave a profile back", extra=_fields(claim.key, claim.job))

    async def _measured(self, claim: Claim) -> None:
        measure = asyncio.to_thread(self._measuring.measure, claim.profile, claim.first_index, self._timeout_s)
        try:
            found = await measure
        except asyncio.CancelledError:
            # Ending the process ends the thread that waits for it, too.
            self._measuring.end()
            await self._given_back(claim)
            raise
        except MeasuringFailed as error:
            said, final = error.detail[:_LONGEST_ERROR], isinstance(error, NeverMeasured)
            parked = await self._stored(lambda: self._claims.fail(claim, said, final=final))
            _log.warning("measuring failed", extra=_fields(claim.key, claim.job, parked=parked, cause=said))
            return
        await self._stored(lambda: self._claims.record(claim, found.measurements, found.rows))
        _log.info("measured", extra=_fields(claim.key, claim.job, widths=len(found.measurements), rows=found.rows))

    async def _stored(self, call: Callable[[], Result]) -> Result:
        """What a call to the database returns; a stop waits some seconds for it, so that what was tried is told."""
        storing = asyncio.create_task(self._stored_at_last(call))
        try:
            return await asyncio.shield(storing)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, StorageUnavailable, LostClaim):
                await asyncio.wait_for(storing, _LAST_WORDS_S)
            raise

    async def _stored_at_last(self, call: Callable[[], Result]) -> Result:
        """What a call to the database returns, tried again while that is away: what was measured is worth a wait."""
        deadline = time.monotonic() + self._outage_s
        while True:
            try:
                return await asyncio.to_thread(call)
            except StorageUnavailable:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_STORE_AGAIN_S)


def _fields(key: str, job: int, **more: object) -> dict[str, dict[str, object]]:
    return {"fields": {"profile": key, "job": job, **more}}
