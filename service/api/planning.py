"""Answers planning questions: reads bodies, finds stored plans, has new ones made, and keeps them."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from service.api.answers import EstimateAnswer, PlanAnswer, PlanDiffAnswer
from service.api.conversion import (
    estimate_answer,
    given_shards,
    plan_answer,
    plan_id_of,
    posed_problem,
    request_content,
)
from service.api.in_flight import InFlight
from service.api.parsing import Limits, parse_estimate, parse_plan
from service.api.planner_pool import Planner
from service.api.planner_worker import ModelSource
from service.api.problems import public_detail
from service.api.profiling import NoveltySink
from service.api.readiness import Check
from service.api.schemas import PLAN_ID_PATTERN, PlanRequest, ShardsEstimateRequest, StoredEstimateRequest
from service.api.stored_plans import plan_diff, running_plan
from service.cost_models.analytic import is_analytic
from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime, PlannerBusy, PlanNotFound, ShardwrightError, StorageUnavailable
from service.domain.plan import LEARNED, Algorithm, Problem, Running
from service.domain.ports import CostModels, PlanStore, StoredPlan
from service.telemetry.metrics import Metrics
from service.usecases.make_plan import PlanResult, PlanStatus

Answer = Mapping[str, Any]
"""A ``PlanAnswer`` as JSON. Stored ones are handed on as they are, whichever version of the service made them."""

_log = logging.getLogger(__name__)


class ModelVersions:
    """Versions of the cost models, each hardware's loaded once."""

    def __init__(self, source: ModelSource, metrics: Metrics) -> None:
        """Loads nothing yet.

        Args:
            source: of the models.
            metrics: shows the versions that were loaded.
        """
        self._source = source
        self._metrics = metrics
        self._loaded: dict[tuple[str, Algorithm | None], CostModels] = {}

    def of(self, hardware: str, algorithm: Algorithm | None = None) -> dict[str, str]:
        """Version of each model of some hardware, by kind; with the algorithm's policy, where there is one.

        Raises:
            UnknownHardware: there are no models for it.
            DamagedArtifact: they cannot be trusted.
        """
        return self._models(hardware, algorithm).versions

    def identity(self, hardware: str, algorithm: Algorithm) -> dict[str, str]:
        """Versions and digest of the models that an algorithm needs: what an answer depends on besides the question.

        Raises:
            UnknownHardware: there are no models for it.
            DamagedArtifact: they cannot be trusted.
        """
        models = self._models(hardware, algorithm)
        return {**models.versions, "digest": models.digest}

    def _models(self, hardware: str, algorithm: Algorithm | None) -> CostModels:
        policy = algorithm if algorithm in LEARNED else None
        if (hardware, policy) not in self._loaded:
            priced_by = self._models(hardware, None).versions if policy else None
            found = self._source.cost_models(hardware, priced_by, policy)
            # The first that were found stay, also where two requests looked at once.
            models = self._loaded.setdefault((hardware, policy), found)
            self._metrics.models_loaded(hardware, models.versions)
        return self._loaded[hardware, policy]

    def check(self) -> Check:
        """Whether the models of some hardware can be used, and what keeps others from it."""
        try:
            damaged = [said for hardware in self._source.hardware() if (said := self._damage(hardware))]
        except OSError as error:
            _log.warning("the model store cannot be read", extra={"fields": {"cause": str(error)}})
            damaged = ["the model store cannot be read"]
        if not self._loaded:
            return Check(False, "; ".join(damaged) or "there are no cost models")
        loaded = [models.compute.version for models in self._loaded.values()]
        loaded += [models.communication.version for models in self._loaded.values()]
        if all(map(is_analytic, loaded)):
            # Data sheets are always sound: they must not hide that all that was measured is damaged.
            said = "no measured cost models: only hardware with a data sheet can be planned for"
            return Check(not damaged, "; ".join(damaged) or said)
        return Check(True, "; ".join(damaged) or "ok")

    def _damage(self, hardware: str) -> str | None:
        try:
            for policy in (None, *self._source.policies(hardware)):
                self.of(hardware, policy)
        except ShardwrightError as error:
            fields = {"hardware": hardware, "kind": error.kind, "cause": error.detail}
            _log.warning("cost models cannot be used", extra={"fields": fields})
            return f"{hardware}: {public_detail(error)}"
        return None


class Planning:
    """The answers to /plan, /estimate and /plans; blocks the calling thread."""

    def __init__(
        self,
        *,
        models: ModelVersions,
        planner: Planner,
        plans: PlanStore,
        limits: Limits,
        metrics: Metrics,
        novel: NoveltySink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ties the parts together; ``clock`` is the one that arrivals are told in, seconds.

        ``novel`` is told of the tables of each new plan and estimate once its answer is settled.
        """
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._metrics = metrics
        self._novel = novel
        self._clock = clock
        self._in_flight: InFlight[Answer] = InFlight()
        # A large body is checked in one call that holds the interpreter: one at a time, so that health stays quick.
        self._parsing = threading.Lock()

    def plan(self, body: bytes, arrived: float) -> Answer:
        """The stored answer to the question in a body, or a new one.

        Args:
            body: of POST /plan.
            arrived: when it had arrived; its time limit runs from there.

        Raises:
            ShardwrightError: the request is not valid, cannot be met, or not now.
        """
        with self._parsing:
            request = parse_plan(body, self._limits)
        with self._failures_counted(request.algorithm):
            return self._answer(request, arrived)

    def estimate(self, body: bytes) -> EstimateAnswer:
        """What a placement costs.

        Args:
            body: of POST /estimate.

        Raises:
            ShardwrightError: the request is not valid, names no stored plan, or cannot be answered now.
        """
        with self._parsing:
            request = parse_estimate(body, self._limits)
        if isinstance(request, StoredEstimateRequest):
            return self._estimate_stored(request.plan_id)
        return self._estimate_given(request)

    def stored(self, plan_id: str) -> Answer:
        """The answer stored under an id.

        Raises:
            PlanNotFound: there is none.
            StorageUnavailable: the database cannot be reached.
        """
        return self._find(plan_id).answer

    def diff(self, first_id: str, second_id: str) -> PlanDiffAnswer:
        """What moves where one stored plan takes the place of another.

        Raises:
            PlanNotFound: there is no plan under one of the ids, which is named.
            StorageUnavailable: the database cannot be reached.
        """
        return plan_diff(self._find(first_id), self._find(second_id))

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

    def _answer(self, request: PlanRequest, arrived: float) -> Answer:
        content, running = request_content(request), self._running(request)
        plan_id = plan_id_of(content, self._models.identity(request.devices.hardware, request.algorithm), running)
        answer, shared = self._in_flight.run(
            plan_id, lambda: self._found_or_made(request, running, content, plan_id, arrived)
        )
        if shared:
            self._metrics.plan_outcome(request.algorithm, "shared")
        return answer

    def _running(self, request: PlanRequest) -> Running | None:
        """The plan that a request names as running; unlike a plan that may be stored already, it cannot do without."""
        if request.previous_plan_id is None:
            return None
        previous = self._find(request.previous_plan_id, pointer="/previous_plan_id")
        return running_plan(previous, request.max_moved_bytes)

    def _found_or_made(
        self, request: PlanRequest, running: Running | None, content: Mapping[str, Any], plan_id: str, arrived: float
    ) -> Answer:
        versions = self._models.of(request.devices.hardware, request.algorithm)
        stored, lost_s = self._looked_up(plan_id)
        if stored and stored.answer.get("status") != PlanStatus.CUT_SHORT:
            return self._given_again(request, stored)
        problem = posed_problem(request)
        try:
            result = self._made(request, problem, running, versions, arrived + (lost_s or 0.0))
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
        kept = self._kept(request, content, answer)
        self._novel.met(problem, result.novelty)
        return kept

    def _looked_up(self, plan_id: str) -> tuple[StoredPlan | None, float | None]:
        """The stored plan; and, only where the database was away, the seconds that finding this out took."""
        began = self._clock()
        try:
            return self._plans.get(plan_id), None
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

    def _kept(self, request: PlanRequest, content: Mapping[str, Any], answer: PlanAnswer) -> Answer:
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
            return self._plans.put(plan).answer
        except StorageUnavailable:
            return self._unsaved(answer)

    def _unsaved(self, answer: PlanAnswer) -> Answer:
        self._metrics.plan_unsaved()
        return answer.model_dump(mode="json")

    def _estimate_given(self, request: ShardsEstimateRequest) -> EstimateAnswer:
        problem, shards = posed_problem(request), given_shards(request)
        versions = self._models.of(request.devices.hardware)
        found = self._planner.estimate(problem, versions, shards, self._deadline(self._clock()))
        self._novel.met(problem, found.novelty)
        return estimate_answer(found)

    def _estimate_stored(self, plan_id: str) -> EstimateAnswer:
        stored = self._find(plan_id)
        # Another version of the service may have stored fields that this one does not know.
        body = {**stored.request, "shards": stored.answer["shards"]}
        return self._estimate_given(ShardsEstimateRequest.model_validate(body, extra="ignore"))

    def _find(self, plan_id: str, **data: str) -> StoredPlan:
        found = self._plans.get(plan_id) if re.match(PLAN_ID_PATTERN, plan_id) else None
        if found is None:
            raise PlanNotFound(f"no plan is stored under {plan_id!r}", **data)
        return found
