"""Makes plans, or finds those that are stored, and keeps the new ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.api.answers import PlanAnswer
from service.api.conversion import pinned_versions, plan_answer, plan_id_of, posed_problem
from service.api.in_flight import InFlight
from service.api.model_versions import Chosen, ModelVersions
from service.api.parsing import Limits
from service.api.planner_pool import Planner
from service.api.profiling import NoveltySink
from service.api.schemas import PlanRequest
from service.api.stored_plans import found_plan, running_plan
from service.domain.callers import Caller
from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime, PlannerBusy, StorageUnavailable
from service.domain.plan import Problem, Running
from service.domain.ports import PlanStore, StoredPlan
from service.domain.waiting import Waiting
from service.telemetry.metrics import Metrics
from service.usecases.make_plan import PlanResult, PlanStatus

Answer = Mapping[str, Any]
"""A ``PlanAnswer`` as JSON. Stored ones are handed on as they are, whichever version of the service made them."""


@dataclass(frozen=True, slots=True)
class Question:
    """A planning question, and what its answer is of.

    Attributes:
        request: what is asked.
        content: of the request.
        caller: who asks.
        arrived: when it had arrived; its time limit runs from there.
        running: the plan that it moves from.
        chosen: the models that answer it.
        plan_id: what these and the request come to.
    """

    request: PlanRequest
    content: Mapping[str, Any]
    caller: Caller
    arrived: float
    running: Running | None
    chosen: Chosen
    plan_id: str


class PlanMaking:
    """Makes the plan of a question, once for all of a caller who ask it at the same time."""

    def __init__(
        self,
        models: ModelVersions,
        planner: Planner,
        plans: PlanStore,
        limits: Limits,
        metrics: Metrics,
        novel: NoveltySink,
        clock: Callable[[], float],
    ) -> None:
        """Ties the parts together, see ``Planning``."""
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._metrics = metrics
        self._novel = novel
        self._clock = clock
        self._in_flight: InFlight[Answer] = InFlight()

    def question(self, request: PlanRequest, content: Mapping[str, Any], arrived: float, caller: Caller) -> Question:
        """A request as a question to the models that serve, or that it pins.

        Raises:
            PlanNotFound: it names a running plan that is not there for the caller.
            StorageUnavailable: it names one, and the database cannot be reached.
            ShardwrightError: there are no such models.
        """
        running = self._running(request, caller)
        chosen = self._models.of(request.devices.hardware, request.algorithm, pinned_versions(request))
        plan_id = plan_id_of(content, chosen.identity, running)
        return Question(request, content, caller, arrived, running, chosen, plan_id)

    def answer(self, question: Question, waiting: Waiting) -> Answer:
        """The plan of a question, stored or made.

        Raises:
            PlanCancelled: all who asked for it here have left.
            ShardwrightError: it cannot be made, or not now.
        """
        answer, shared = self._in_flight.run(
            # Of one caller: the plan that comes of it is their own.
            f"{question.caller.name} {question.plan_id}",
            lambda waiting: self._found_or_made(question, waiting),
            waiting,
        )
        if shared:
            self._metrics.plan_outcome(question.request.algorithm, "shared")
        return answer

    def deadline(self, began: float, limit_ms: int | None = None) -> Deadline:
        """When an answer is due; without a limit of its own it has the service's default."""
        return Deadline(began + (limit_ms or self._limits.default_time_limit_ms) / 1000, self._clock)

    def _running(self, request: PlanRequest, caller: Caller) -> Running | None:
        """The plan that a request names as running; unlike a plan that may be stored already, it cannot do without."""
        if request.previous_plan_id is None:
            return None
        previous = found_plan(self._plans, request.previous_plan_id, caller, pointer="/previous_plan_id")
        return running_plan(previous, request.max_moved_bytes)

    def _found_or_made(self, question: Question, waiting: Waiting) -> Answer:
        request = question.request
        stored, looked_s, away = self._looked_up(question)
        if stored and stored.answer.get("status") != PlanStatus.CUT_SHORT:
            return self._given_again(question, stored)
        problem = posed_problem(request)
        try:
            result = self._made(question, problem, question.arrived + looked_s, waiting)
        except (NoPlanInTime, PlannerBusy):
            if stored is None:
                raise
            return self._given_again(question, stored)
        planning_s = self._clock() - question.arrived
        self._metrics.plan_made(request.algorithm, result.status.value, planning_s)
        self._metrics.tables_planned(request.devices.hardware, result.novelty)
        dims = {table.name: table.embedding_dim for table in request.tables}
        answer = plan_answer(result, dims, question.plan_id, round(planning_s * 1000, 1))
        # A database that was away a moment ago would only cost another wait for it.
        if away:
            return self._unsaved(answer)
        kept = self._kept(question, answer)
        self._novel.met(problem, result.novelty, question.caller)
        return kept

    def _looked_up(self, question: Question) -> tuple[StoredPlan | None, float, bool]:
        """The stored plan; the seconds that the look took, for which the search is not to suffer; whether it failed."""
        began = self._clock()
        try:
            stored, away = self._plans.ask(question.plan_id, question.caller), False
        except StorageUnavailable:
            stored, away = None, True
        return stored, self._clock() - began, away

    def _given_again(self, question: Question, stored: StoredPlan) -> Answer:
        self._metrics.plan_outcome(question.request.algorithm, "stored")
        return stored.answer

    def _made(self, question: Question, problem: Problem, began: float, waiting: Waiting) -> PlanResult:
        request = question.request
        deadline = self.deadline(began, request.time_limit_ms)
        versions, running = question.chosen.versions, question.running
        return self._planner.plan(problem, versions, request.algorithm, request.seed, deadline, running, waiting)

    def _kept(self, question: Question, answer: PlanAnswer) -> Answer:
        """The answer as stored, which may be that of another who asked the same meanwhile."""
        saved = answer.model_copy(update={"saved": True})
        plan = StoredPlan(
            plan_id=answer.plan_id,
            hardware=question.request.devices.hardware,
            algorithm=answer.algorithm,
            max_cost_ms=answer.max_cost_ms,
            request=question.content,
            answer=saved.model_dump(mode="json"),
        )
        try:
            return self._plans.put(plan, question.caller).answer
        except StorageUnavailable:
            return self._unsaved(answer)

    def _unsaved(self, answer: PlanAnswer) -> Answer:
        self._metrics.plan_unsaved()
        return answer.model_dump(mode="json")
