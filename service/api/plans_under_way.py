"""Plans that are made while no connection waits for them: whoever asked comes back to look."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from service.api.leases import renewed
from service.api.making import Answer
from service.api.problems import facts_of, public_detail, status_of
from service.domain.errors import PlanCancelled, ShardwrightError, StorageUnavailable
from service.domain.plans_under_way import PlanNotMade, PlanUnderWay, UnderWayStore
from service.domain.waiting import Asker, Waiting
from service.telemetry.logging import current_request_id

_AGAIN = "ask POST /plan again"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is made in the background goes on.

    Attributes:
        poll_s: seconds without a look after which it is cancelled.
        stop_s: seconds that it has once the process is to stop.
    """

    poll_s: float
    stop_s: float


class _Job(Asker):
    """One plan that is being made in this process; it leaves where it is to end."""

    def __init__(self, plan: PlanUnderWay, make: Callable[[Waiting], Answer], unwanted: Callable[[], None]) -> None:
        super().__init__()
        self.plan = plan
        self.claimant = uuid.uuid4().hex
        self.make = make
        self.unwanted = unwanted
        self.answer: Future[Answer] = Future()
        self.why_left = ""
        self.waited_for_until = -math.inf
        self.alone = True
        self._begun = threading.Event()
        self.answer.add_done_callback(lambda _: self._begun.set())

    def admitted(self) -> None:
        self._begun.set()

    def shared(self) -> None:
        self.alone = False

    def unhurried(self) -> bool:
        return True

    def end(self, why: str) -> None:
        self.why_left = why
        self.leave()

    def answer_within(self, seconds: float) -> Answer | None:
        """The answer, or None once the plan is being made and the seconds have passed; raises what making it does."""
        self.waited_for_until = time.monotonic() + seconds
        self._begun.wait()
        try:
            return self.answer.result(max(0.0, self.waited_for_until - time.monotonic()))
        except TimeoutError:
            return None


class PlansUnderWay:
    """Makes plans in threads of their own, and tells on every replica how each stands; blocks the calling thread.

    Their number is bounded by the room that the planning processes have: one is begun where it is admitted there. A row
    of the database, claimed as those of launches, says that a plan is being made, and who looked for it last.
    """

    def __init__(self, store: UnderWayStore, patience: Patience, stopping: threading.Event) -> None:
        """Makes nothing yet.

        Args:
            store: where other replicas see it.
            patience: how long it goes on.
            stopping: set once the process is to stop.
        """
        self._store = store
        self.patience = patience
        self._stopping = stopping
        self._closing = threading.Event()
        self._stops_at: float | None = None
        self._changing = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def __enter__(self) -> Self:
        """Nothing is to be prepared."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what is being made, for what is left of the time that it has where the process stops."""
        if not self._stopping.is_set():
            self._closing.set()
        with self._changing:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def begin(
        self, plan: PlanUnderWay, make: Callable[[Waiting], Answer], unwanted: Callable[[], None], within_s: float
    ) -> Answer | None:
        """Has a plan made; its answer where it is there soon, or None while it is under way, here or elsewhere.

        Args:
            plan: what is made.
            make: makes it, and stores it.
            unwanted: takes it from the caller again, where they gave it up as it was stored.
            within_s: seconds to wait for it; where another call of the caller makes it, none.

        Raises:
            PlannerBusy: there is no room for it.
            StorageUnavailable: the database cannot be reached, so that nobody could look for it.
            ShardwrightError: what making it raised within that time.
        """
        job = _Job(plan, make, unwanted)
        if not self._store.claim(plan, job.claimant):
            self._store.look(plan)
            return None
        thread = threading.Thread(target=copy_context().run, args=(self._run, job), name=f"plan {plan.plan_id}")
        with self._changing:
            thread.start()
            self._threads.add(thread)
        return job.answer_within(within_s)

    def is_made(self, plan: PlanUnderWay) -> bool:
        """Whether a plan is being made; who asks waits for it.

        Raises:
            PlanNotMade: it was, and why it came to nothing.
            StorageUnavailable: the database cannot be reached.
        """
        making = self._store.look(plan)
        if making is not None and making.error is not None:
            raise PlanNotMade.kept(**making.error)
        if making is not None and making.lost:
            raise PlanNotMade(f"the process that made the plan ended before it was there: {_AGAIN}")
        return making is not None

    def give_up(self, plan: PlanUnderWay) -> bool:
        """Has whoever makes a plan end that within a second or two; whether anybody did, or failed to.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        return self._store.give_up(plan)

    def _run(self, job: _Job) -> None:
        try:
            with renewed(lambda: self._renew(job)):
                answer = job.make(job)
            if not answer["saved"]:
                raise StorageUnavailable("the database was away when the plan was to be stored", retry_after_s=1)
            # What was given up is answered to others all the same.
            if self._store.finish(job.plan, job.claimant) and job.alone:
                job.unwanted()
            job.answer.set_result(answer)
        except BaseException as error:
            told = self._failed(job, error)
            job.answer.set_exception(told if isinstance(error, PlanCancelled) else error)
        finally:
            with self._changing:
                self._threads.discard(threading.current_thread())

    def _renew(self, job: _Job) -> None:
        if self._time_is_up():
            job.end("stopping")
            return
        if time.monotonic() < job.waited_for_until:
            self._store.look(job.plan)
        if not self._store.renew(job.plan, job.claimant, self.patience.poll_s):
            job.end("nobody waits")

    def _time_is_up(self) -> bool:
        """Whether the process stops, and did not begin to a moment ago."""
        if self._stopping.is_set() and self._stops_at is None:
            self._stops_at = time.monotonic() + self.patience.stop_s
        return self._closing.is_set() or (self._stops_at is not None and time.monotonic() >= self._stops_at)

    def _failed(self, job: _Job, error: BaseException) -> ShardwrightError:
        """Keeps why a plan was not made; what is told of it."""
        told = self._told(job, error)
        fields = {"plan_id": job.plan.plan_id, "caller": job.plan.caller, "kind": told.kind, "cause": str(error)}
        _log.info("a plan was not made", extra={"fields": fields | ({"why": job.why_left} if job.why_left else {})})
        kept = {"kind": told.kind, "detail": public_detail(told), "data": facts_of(told)}
        try:
            self._store.fail(job.plan, job.claimant, kept)
        except Exception as away:
            # Whoever waits for the plan must be told all the same.
            _log.warning("why a plan was not made is not kept", extra={"fields": {"cause": str(away)}})
        return told

    def _told(self, job: _Job, error: BaseException) -> ShardwrightError:
        """What is told to who looks for a plan; errors that pass are told as those of a call that is over."""
        if isinstance(error, PlanCancelled) and job.why_left == "stopping":
            return PlanNotMade(f"the service stopped before the plan was there: {_AGAIN}")
        if isinstance(error, PlanCancelled):
            return PlanCancelled(f"nobody looked for the plan for {self.patience.poll_s:g} s: {_AGAIN}")
        status = status_of(error.kind) if isinstance(error, ShardwrightError) else 500
        if isinstance(error, ShardwrightError) and status < 500:
            return error
        if isinstance(error, ShardwrightError) and status == 503:
            return PlanNotMade(f"{public_detail(error)}: {_AGAIN}")
        _log.error("unexpected error", exc_info=error)
        return PlanNotMade(f"an unexpected error, logged under request {current_request_id()}")
