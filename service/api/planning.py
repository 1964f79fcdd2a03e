"""Answers planning questions: reads bodies, finds stored plans, has new ones made, and keeps them."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from service.api.answer_memory import AnswerMemory, Given
from service.api.answers import PlanDiffAnswer, UnderWayAnswer
from service.api.conversion import request_content
from service.api.estimating import Estimating
from service.api.launching import Launching
from service.api.making import Answer, PlanMaking, Question
from service.api.model_versions import ModelVersions
from service.api.parsing import ONE_AT_A_TIME, Limits, parse_plan
from service.api.planner_pool import Planner
from service.api.plans_under_way import PlansUnderWay
from service.api.profiling import NoveltySink
from service.api.schemas import PLAN_ID_PATTERN, PlanRequest
from service.api.stored_plans import found_plan, plan_diff
from service.domain.callers import Caller
from service.domain.errors import PlannerBusy, PlanNotFound, ShardwrightError, StorageUnavailable
from service.domain.launch_ports import LaunchStore
from service.domain.launches import Launch
from service.domain.plan import Algorithm, content_hash
from service.domain.plans_under_way import PlanNotMade, PlanUnderWay
from service.domain.ports import PlanStore, StoredPlan
from service.domain.waiting import PATIENT, Waiting
from service.telemetry.metrics import Metrics
from service.usecases.make_plan import PlanStatus

_REMEMBERED_S = 1.0
"""Seconds for which a stored plan is given again without a look whether it is still there."""


class Planning:
    """The answers to /plan and /plans; blocks the calling thread.

    Attributes:
        estimates: the answers to /estimate.
    """

    def __init__(
        self,
        *,
        models: ModelVersions,
        planner: Planner,
        plans: PlanStore,
        launches: LaunchStore | None,
        limits: Limits,
        metrics: Metrics,
        novel: NoveltySink,
        under_way: PlansUnderWay | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ties the parts together.

        Args:
            models: versions of the cost models.
            planner: makes plans.
            plans: where they are kept.
            launches: where the answers to launches are; None where there are none.
            limits: of requests.
            metrics: count what is asked.
            novel: is told of the tables of each new plan and estimate once its answer is settled.
            under_way: makes plans that nobody waits for; None where all are waited for.
            clock: the one that arrivals are told in, seconds.
        """
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._metrics = metrics
        self._making = PlanMaking(models, planner, plans, limits, metrics, novel, clock)
        self.estimates = Estimating(models, planner, plans, limits, novel, clock)
        self._given = AnswerMemory(models, _REMEMBERED_S, clock)
        self._under_way = under_way
        self._launching = Launching(launches) if launches else None

    def plan(self, body: bytes, arrived: float, caller: Caller, waiting: Waiting = PATIENT) -> Answer:
        """The stored answer to the question in a body, or a new one.

        Args:
            body: of POST /plan.
            arrived: when it had arrived; its time limit runs from there.
            caller: who asks; the plan is their own from then on.
            waiting: whoever waits for it here. A launch's plan is made to its end all the same: its other ranks may
                wait elsewhere.

        Raises:
            PlanCancelled: all who asked for it here have left.
            ShardwrightError: the request is not valid, cannot be met, or not now.
        """
        with ONE_AT_A_TIME:
            request = parse_plan(body, self._limits)
        return self._waited_for(request, body, arrived, caller, waiting)

    def plan_in_background(
        self, body: bytes, arrived: float, caller: Caller, within_s: float
    ) -> Answer | UnderWayAnswer:
        """The answer of ``plan`` where it is stored or soon there; else the plan is under way, to be looked for.

        A stored plan is the answer also where it was cut short: whoever comes back for it finds that one. A launch's
        plan is waited for, as its other ranks do.

        Args:
            body: of POST /plan.
            arrived: when it had arrived; its time limit runs from there.
            caller: who asks; the plan is their own from then on.
            within_s: seconds to wait for it.

        Raises:
            PlannerBusy: there is no room for it.
            StorageUnavailable: the database cannot be reached: nobody could look for the plan.
            ShardwrightError: the request is not valid, or cannot be met, as far as that is known in time.
        """
        with ONE_AT_A_TIME:
            request = parse_plan(body, self._limits)
        if self._under_way is None or request.launch_id is not None:
            return self._waited_for(request, body, arrived, caller, PATIENT)
        with self._failures_counted(request.algorithm):
            question = self._making.question(request, request_content(request), arrived, caller)
            stored = self._plans.ask(question.plan_id, caller)
            if stored is not None:
                self._metrics.plan_outcome(request.algorithm, "stored")
                return stored.answer
            self._refuse_if_full(self._under_way, PlanUnderWay(caller.name, question.plan_id))
        return self._begun(self._under_way, question, within_s)

    def plan_given_before(self, body: bytes, caller: Caller) -> bytes | None:
        """The answer of ``plan`` to the same body a moment ago, as JSON, if it would be the same now; never blocks."""
        given = self._given.find(caller.name, body)
        if given is None or given.algorithm is None:
            return None
        self._metrics.plan_outcome(given.algorithm, "stored")
        return given.json

    def stored(self, plan_id: str, caller: Caller) -> Answer | UnderWayAnswer:
        """The answer stored under an id, or that it is being made for the caller.

        Raises:
            PlanNotFound: there is none for this caller.
            PlanNotMade: it was being made, and why it was not made.
            StorageUnavailable: the database cannot be reached.
        """
        try:
            return self.find(plan_id, caller).answer
        except PlanNotFound:
            if self._under_way is None or not re.match(PLAN_ID_PATTERN, plan_id):
                raise
        if self._under_way.is_made(PlanUnderWay(caller.name, plan_id)):
            return self._looked_for(self._under_way, plan_id)
        # It may have been stored between the two looks.
        return self.find(plan_id, caller).answer

    def find(self, plan_id: str, caller: Caller) -> StoredPlan:
        """The plan stored under an id.

        Raises:
            PlanNotFound: there is none for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        return found_plan(self._plans, plan_id, caller)

    def diff(self, first_id: str, second_id: str, caller: Caller) -> PlanDiffAnswer:
        """What moves where one stored plan takes the place of another.

        Raises:
            PlanNotFound: there is no plan under one of the ids, which is named.
            StorageUnavailable: the database cannot be reached.
        """
        return plan_diff(self.find(first_id, caller), self.find(second_id, caller))

    def delete(self, plan_id: str, caller: Caller) -> None:
        """Takes a plan from a caller, or from everyone where the caller sees all; one that is being made is cancelled.

        Raises:
            PlanNotFound: there is none for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        if not re.match(PLAN_ID_PATTERN, plan_id):
            raise PlanNotFound.under(plan_id)
        given_up = self._under_way is not None and self._under_way.give_up(PlanUnderWay(caller.name, plan_id))
        # One that was not stored yet is not put on record as not found.
        if not given_up or self._plans.get(plan_id, caller) is not None:
            self._plans.delete(plan_id, caller)
        # Other processes may give it again for as long as they remember it.
        self._given.forget()

    def _refuse_if_full(self, under_way: PlansUnderWay, plan: PlanUnderWay) -> None:
        try:
            self._planner.refuse_if_full()
        except PlannerBusy:
            # What is being made has its room already.
            with suppress(PlanNotMade):
                if under_way.is_made(plan):
                    return
            raise

    def _begun(self, under_way: PlansUnderWay, question: Question, within_s: float) -> Answer | UnderWayAnswer:
        caller, plan_id = question.caller, question.plan_id

        def made(waiting: Waiting) -> Answer:
            with self._failures_counted(question.request.algorithm):
                return self._making.answer(question, waiting)

        def unwanted() -> None:
            # It may have become another's meanwhile: an admin, too, takes only their own back.
            with suppress(PlanNotFound):
                self._plans.delete(plan_id, replace(caller, scopes=frozenset()))

        answer = under_way.begin(PlanUnderWay(caller.name, plan_id), made, unwanted, within_s)
        return self._looked_for(under_way, plan_id) if answer is None else answer

    def _looked_for(self, under_way: PlansUnderWay, plan_id: str) -> UnderWayAnswer:
        return UnderWayAnswer(plan_id=plan_id, cancelled_after_s=under_way.patience.poll_s)

    @contextmanager
    def _failures_counted(self, algorithm: Algorithm) -> Iterator[None]:
        outcome: str | None = "internal_error"
        try:
            yield
            outcome = None
        except ShardwrightError as error:
            outcome = error.kind
            raise
        finally:
            if outcome is not None:
                self._metrics.plan_outcome(algorithm, outcome)

    def _waited_for(
        self, request: PlanRequest, body: bytes, arrived: float, caller: Caller, waiting: Waiting
    ) -> Answer:
        with self._failures_counted(request.algorithm):
            answer = self._answer(request, arrived, caller, waiting)
        self._remember_plan(caller, body, request, answer)
        return answer

    def _answer(self, request: PlanRequest, arrived: float, caller: Caller, waiting: Waiting) -> Answer:
        content = request_content(request)

        def planned(waiting: Waiting) -> Answer:
            return self._making.answer(self._making.question(request, content, arrived, caller), waiting)

        if request.launch_id is None:
            return planned(waiting)
        if self._launching is None:
            raise StorageUnavailable("the command line keeps no plans: ask a service that does, or leave launch_id out")
        launch = Launch(caller.name, request.launch_id, content_hash(content))
        due = self._making.deadline(arrived, request.time_limit_ms)
        # Ranks that ask other processes wait for the plan too, and nothing tells of those.
        answer, given = self._launching.answer(launch, due, lambda: planned(PATIENT))
        if given:
            self._metrics.plan_outcome(request.algorithm, "launch")
        return answer

    def _remember_plan(self, caller: Caller, body: bytes, request: PlanRequest, answer: Answer) -> None:
        """Remembers a stored plan that gives way to no other, whose question names nothing that may change or go."""
        final = answer["saved"] and answer["status"] != PlanStatus.CUT_SHORT
        if not final or request.launch_id or request.previous_plan_id or request.models:
            return
        hardware, algorithm = request.devices.hardware, request.algorithm
        # The answer stands, whatever became of the models since.
        with suppress(ShardwrightError):
            chosen = self._models.of(hardware, algorithm)
            if chosen.versions == answer["models"]:
                self._given.note(caller.name, body, Given(answer, hardware, algorithm, chosen))
