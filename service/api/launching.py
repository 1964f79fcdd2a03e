"""One answer for all ranks of a launch, whichever replica they ask."""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from service.api.in_flight import InFlight
from service.api.leases import renewed
from service.api.making import Answer
from service.domain.deadline import Deadline
from service.domain.errors import LaunchPending, StorageUnavailable
from service.domain.launch_ports import LaunchStore
from service.domain.launches import Launch

_POLL_S = 0.1
_STORING_S = 1.0
"""Seconds that a plan which took all of its time may take to be stored: who waits for it waits that much longer."""

_RETRY_AFTER_S = 2


class Launching:
    """Answers launches: the first rank's call makes the plan, all others wait for it; blocks the calling thread.

    Ranks of one process wait in it; those of other processes look at the database. A process that dies while it makes
    the plan is followed by another after ``LEASE_S``.
    """

    def __init__(self, launches: LaunchStore) -> None:
        """Nothing is asked yet."""
        self._launches = launches
        self._in_flight: InFlight[tuple[Answer, bool]] = InFlight()

    def answer(self, launch: Launch, due: Deadline, make: Callable[[], Answer]) -> tuple[Answer, bool]:
        """What the launch is answered, and whether that was made by another call.

        Args:
            launch: what is asked.
            due: of the caller; it makes the plan in what is left of its time, should it have to take over.
            make: makes the answer, a plan that is stored. What it raises is raised, and binds no later call.

        Raises:
            StorageUnavailable: the database is away, or was when the plan was to be stored.
            LaunchPending: another process makes the plan still.
        """
        key = f"{launch.key}\n{launch.launch_id}\n{launch.request_hash}"
        (answer, given), shared = self._in_flight.run(key, lambda _: self._given_or_made(launch, due, make))
        return answer, given or shared

    def _given_or_made(self, launch: Launch, due: Deadline, make: Callable[[], Answer]) -> tuple[Answer, bool]:
        claimant, patience = uuid.uuid4().hex, due.sooner(-_STORING_S)
        while (given := self._launches.get(launch)) is None:
            if self._launches.claim(launch, claimant):
                return self._made(launch, claimant, make), False
            if patience.passed():
                raise LaunchPending("another process makes the plan of this launch still", retry_after_s=_RETRY_AFTER_S)
            time.sleep(_POLL_S)
        return given, True

    def _made(self, launch: Launch, claimant: str, make: Callable[[], Answer]) -> Answer:
        try:
            # Where it was away for longer than the lease, another may make a plan too, and the first stored is it.
            with renewed(lambda: self._launches.renew(launch, claimant)):
                answer = make()
            if not answer["saved"]:
                raise StorageUnavailable("the plan of a launch could not be stored", retry_after_s=_RETRY_AFTER_S)
            return self._launches.keep(launch, claimant, answer["plan_id"], answer)
        except BaseException:
            with suppress(StorageUnavailable):
                self._launches.release(launch, claimant)
            raise
