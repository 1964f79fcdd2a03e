"""Answers planning questions: reads bodies, finds stored plans, has new ones made, and keeps them."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from service.api.answer_memory import AnswerMemory, Given
from service.api.answers import EstimateAnswer, PlanAnswer, PlanDiffAnswer
from service.api.conversion import (
    estimate_answer,
    given_shards,
    pinned_versions,
    plan_answer,
    plan_id_of,
    posed_problem,
    request_content,
)
from service.api.in_flight import InFlight
from service.api.launching import Launching
from service.api.model_versions import Chosen, ModelVersions
from service.api.parsing import Limits, parse_estimate, parse_plan
from service.api.planner_pool import Planner
from service.api.profiling import NoveltySink
from service.api.schemas import PLAN_ID_PATTERN, PlanRequest, ShardsEstimateRequest, StoredEstimateRequest
from service.api.stored_plans import plan_diff, running_plan
from service.domain.callers import Caller
from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime, PlannerBusy, PlanNotFound, ShardwrightError, StorageUnavailable
from service.domain.launch_ports import LaunchStore
from service.domain.launches import Launch
from service.domain.plan import Algorithm, Problem, Running, content_hash
from service.domain.ports import PlanStore, StoredPlan
from service.telemetry.metrics import Metrics
from service.usecases.make_plan import PlanResult, PlanStatus

_PLANS_REMEMBERED_S = 1.0
"""Seconds for which a stored plan is given again without a look whether it is still there."""

_ESTIMATES_REMEMBERED_S = 60.0

Answer = Mapping[str, Any]
"""A ``PlanAnswer`` as JSON. Stored ones are handed on as they are, whichever version of the service made them."""


class Planning:
    """The answers to /plan, /estimate and /plans; blocks the calling thread."""

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
            clock: the one that arrivals are told in, seconds.
        """
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._metrics = metrics
        self._novel = novel
        self._clock = clock
        self._in_flight: InFlight[Answer] = InFlight()
        self._plans_given = AnswerMemory(_PLANS_REMEMBERED_S, clock)
        self._estimates_given = AnswerMemory(_ESTIMATES_REMEMBERED_S, clock)
        self._launching = Launching(launches) if launches else None
        # A large body is checked in one call that holds the interpreter: one at a time, so that health stays quick.
        self._parsing = threading.Lock()

    def plan(self, body: bytes, arrived: float, caller: Caller) -> Answer:
        """The stored answer to the question in a body, or a new one.

        Args:
            body: of POST /plan.
            arrived: when it had arrived; its time limit runs from there.
            caller: who asks; the plan is their own from then on.

        Raises:
            ShardwrightError: the request is not valid, cannot be met, or not now.
        """
        with self._parsing:
            request = parse_plan(body, self._limits)
        with self._failures_counted(request.algorithm):
            answer = self._answer(request, arrived, caller)
        self._remember_plan(caller, body, request, answer)
        return answer

    def estimate(self, body: bytes, caller: Caller) -> EstimateAnswer:
        """What a placement costs.

        Args:
            body: of POST /estimate.
            caller: who asks.

        Raises:
            ShardwrightError: the request is not valid, names no stored plan, or cannot be answered now.
        """
        with self._parsing:
            asked = parse_estimate(body, self._limits)
        if isinstance(asked, StoredEstimateRequest):
            return self._estimate_stored(asked, caller)[0]
        request, problem = asked
        answer, chosen = self._estimate_given(request, problem, caller)
        if request.models is None:
            self._estimates_given.note(caller.name, body, Given(answer, request.devices.hardware, None, chosen))
        return answer

    def plan_given_before(self, body: bytes, caller: Caller) -> bytes | None:
        """The answer of ``plan`` to the same body a moment ago, as JSON, if it would be the same now; never blocks."""
        given = self._given_before(self._plans_given, caller, body)
        if given is None or given.algorithm is None:
            return None
        self._metrics.plan_outcome(given.algorithm, "stored")
        return given.json

    def estimate_given_before(self, body: bytes, caller: Caller) -> bytes | None:
        """The answer of ``estimate`` to the same body, as JSON, if it would be the same now; never blocks.

        Raises:
            PlannerBusy: it is not known, and there is no room to find out: reading the body first would take the time
                of those that were let in.
        """
        given = self._given_before(self._estimates_given, caller, body)
        if given is None:
            self._planner.refuse_if_full()
            return None
        return given.json

    def stored(self, plan_id: str, caller: Caller) -> Answer:
        """The answer stored under an id.

        Raises:
            PlanNotFound: there is none for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        return self.find(plan_id, caller).answer

    def find(self, plan_id: str, caller: Caller, **data: str) -> StoredPlan:
        """The plan stored under an id; ``data`` is that of the error.

        Raises:
            PlanNotFound: there is none for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        found = self._plans.get(plan_id, caller) if re.match(PLAN_ID_PATTERN, plan_id) else None
        if found is None:
            raise PlanNotFound.under(plan_id, **data)
        return found

    def diff(self, first_id: str, second_id: str, caller: Caller) -> PlanDiffAnswer:
        """What moves where one stored plan takes the place of another.

        Raises:
            PlanNotFound: there is no plan under one of the ids, which is named.
            StorageUnavailable: the database cannot be reached.
        """
        return plan_diff(self.find(first_id, caller), self.find(second_id, caller))

    def delete(self, plan_id: str, caller: Caller) -> None:
        """Takes a plan from a caller, or from everyone where the caller sees all.

        Raises:
            PlanNotFound: there is none for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        if not re.match(PLAN_ID_PATTERN, plan_id):
            raise PlanNotFound.under(plan_id)
        self._plans.delete(plan_id, caller)
        # Other processes may give it again for as long as they remember it.
        self._plans_given.forget()

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

    def _answer(self, request: PlanRequest, arrived: float, caller: Caller) -> Answer:
        content = request_content(request)
        if request.launch_id is None:
            return self._planned(request, content, arrived, caller)
        if self._launching is None:
            raise StorageUnavailable("the command line keeps no plans: ask a service that does, or leave launch_id out")
        launch = Launch(caller.name, request.launch_id, content_hash(content))
        due = self._deadline(arrived, request.time_limit_ms)
        answer, given = self._launching.answer(launch, due, lambda: self._planned(request, content, arrived, caller))
        if given:
            self._metrics.plan_outcome(request.algorithm, "launch")
        return answer

    def _planned(self, request: PlanRequest, content: Mapping[str, Any], arrived: float, caller: Caller) -> Answer:
        running = self._running(request, caller)
        chosen = self._models.of(request.devices.hardware, request.algorithm, pinned_versions(request))
        plan_id = plan_id_of(content, chosen.identity, running)
        answer, shared = self._in_flight.run(
            # Of one caller: the plan that comes of it is their own.
            f"{caller.name} {plan_id}",
            lambda: self._found_or_made(request, running, chosen, content, plan_id, arrived, caller),
        )
        if shared:
            self._metrics.plan_outcome(request.algorithm, "shared")
        return answer

    def _running(self, request: PlanRequest, caller: Caller) -> Running | None:
        """The plan that a request names as running; unlike a plan that may be stored already, it cannot do without."""
        if request.previous_plan_id is None:
            return None
        previous = self.find(request.previous_plan_id, caller, pointer="/previous_plan_id")
        return running_plan(previous, request.max_moved_bytes)

    def _found_or_made(
        self,
        request: PlanRequest,
        running: Running | None,
        chosen: Chosen,
        content: Mapping[str, Any],
        plan_id: str,
        arrived: float,
        caller: Caller,
    ) -> Answer:
        stored, lost_s = self._looked_up(plan_id, caller)
        if stored and stored.answer.get("status") != PlanStatus.CUT_SHORT:
            return self._given_again(request, stored)
        problem = posed_problem(request)
        try:
            result = self._made(request, problem, running, chosen.versions, arrived + (lost_s or 0.0))
        except (NoPlanInTime, PlannerBusy):
            if stored is None:
                raise
            return self._given_again(request, stored)
        planning_s = self._clock() - arrived
        self._metrics.plan_made(request.algorithm, result.status.value, planning_s)
        self._metrics.tables_planned(request.devices.hardware, result.novelty)
        dims = {table.name: table.embedding_dim for table in request.tables}
        answer = plan_answer(result, dims, plan_id, round(planning_s * 1000, 1))
        # A database that was away a moment ago would only cost another wait for it.
        if lost_s is not None:
            return self._unsaved(answer)
        kept = self._kept(request, content, answer, caller)
        self._novel.met(problem, result.novelty, caller)
        return kept

    def _looked_up(self, plan_id: str, caller: Caller) -> tuple[StoredPlan | None, float | None]:
        """The stored plan; and, only where the database was away, the seconds that finding this out took."""
        began = self._clock()
        try:
            return self._plans.ask(plan_id, caller), None
        except StorageUnavailable:
            return None, self._clock() - began

    def _given_again(self, request: PlanRequest, stored: StoredPlan) -> Answer:
        self._metrics.plan_outcome(request.algorithm, "stored")
        return stored.answer

    def _made(
        self,
        request: PlanRequest,
        problem: Problem,
        running: Running | None,
        versions: Mapping[str, str],
        began: float,
    ) -> PlanResult:
        deadline = self._deadline(began, request.time_limit_ms)
        return self._planner.plan(problem, versions, request.algorithm, request.seed, deadline, running)

    def _deadline(self, began: float, limit_ms: int | None = None) -> Deadline:
        return Deadline(began + (limit_ms or self._limits.default_time_limit_ms) / 1000, self._clock)

    def _kept(self, request: PlanRequest, content: Mapping[str, Any], answer: PlanAnswer, caller: Caller) -> Answer:
        """The answer as stored, which may be that of another who asked the same meanwhile."""
        saved = answer.model_copy(update={"saved": True})
        plan = StoredPlan(
            plan_id=answer.plan_id,
            hardware=request.devices.hardware,
            algorithm=answer.algorithm,
            max_cost_ms=answer.max_cost_ms,
            request=content,
            answer=saved.model_dump(mode="json"),
        )
        try:
            return self._plans.put(plan, caller).answer
        except StorageUnavailable:
            return self._unsaved(answer)

    def _unsaved(self, answer: PlanAnswer) -> Answer:
        self._metrics.plan_unsaved()
        return answer.model_dump(mode="json")

    def _estimate_given(
        self, request: ShardsEstimateRequest, problem: Problem, caller: Caller
    ) -> tuple[EstimateAnswer, Chosen]:
        chosen = self._models.of(request.devices.hardware, pinned=pinned_versions(request))
        deadline = self._deadline(self._clock())
        found = self._planner.estimate(problem, chosen.versions, given_shards(request), deadline)
        self._novel.met(problem, found.novelty, caller)
        return estimate_answer(found), chosen

    def _estimate_stored(self, request: StoredEstimateRequest, caller: Caller) -> tuple[EstimateAnswer, Chosen]:
        stored = self.find(request.plan_id, caller)
        # Another version of the service may have stored fields that this one does not know. The models are those
        # that are asked for now.
        body = {**stored.request, "shards": stored.answer["shards"], "models": pinned_versions(request)}
        given = ShardsEstimateRequest.model_validate(body, extra="ignore")
        return self._estimate_given(given, posed_problem(given), caller)

    def _given_before(self, memory: AnswerMemory, caller: Caller, body: bytes) -> Given | None:
        """What a caller was answered a moment ago, where the same models would answer now."""
        given = memory.find(caller.name, body)
        # What is wrong with the models is told by the way that leads to them.
        with suppress(ShardwrightError):
            if given and self._models.of(given.hardware, given.algorithm) == given.chosen:
                return given
        return None

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
                self._plans_given.note(caller.name, body, Given(answer, hardware, algorithm, chosen))
