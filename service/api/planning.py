"""Answers planning questions: reads bodies, finds stored plans, has new ones made, and keeps them."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from service.api.conversion import (
    estimate_answer,
    estimate_problem,
    estimate_shards,
    plan_answer,
    plan_problem,
    request_content,
    stored_shards,
)
from service.api.parsing import Limits, parse_estimate, parse_plan
from service.api.planner_pool import Planner
from service.api.planner_worker import ModelSource
from service.api.schemas import (
    PLAN_ID_PATTERN,
    EstimateAnswer,
    PlanAnswer,
    PlanRequest,
    ShardsEstimateRequest,
    StoredEstimateRequest,
)
from service.domain.deadline import Deadline
from service.domain.errors import PlanNotFound, ShardwrightError, StorageUnavailable
from service.domain.plan import content_hash
from service.domain.ports import PlanStore, StoredPlan
from service.telemetry.metrics import Metrics
from service.usecases.make_plan import PlanResult


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
        self._loaded: dict[str, dict[str, str]] = {}

    def of(self, hardware: str) -> dict[str, str]:
        """Version of each model of some hardware, by kind.

        Raises:
            UnknownHardware: there are no models for it.
            DamagedArtifact: they cannot be trusted.
        """
        if hardware not in self._loaded:
            self._loaded[hardware] = self._source.cost_models(hardware).versions
            self._metrics.models_loaded(hardware, self._loaded[hardware])
        return self._loaded[hardware]

    def check(self) -> str:
        """``ok``, or what keeps models from being used."""
        names = self._source.hardware()
        try:
            for hardware in names:
                self.of(hardware)
        except ShardwrightError as error:
            return error.detail
        return "ok" if names else "there are no cost models"


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ties the parts together; ``clock`` is the one that arrivals are told in, seconds."""
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._metrics = metrics
        self._clock = clock

    def plan(self, body: bytes, arrived: float) -> PlanAnswer:
        """The stored answer to the question in a body, or a new one.

        Args:
            body: of POST /plan.
            arrived: when it had arrived; its time limit runs from there.

        Raises:
            ShardwrightError: the request is not valid, cannot be met, or not now.
        """
        request = parse_plan(body, self._limits)
        try:
            return self._answer(request, arrived)
        except ShardwrightError as error:
            self._metrics.plan_outcome(request.algorithm, error.kind)
            raise

    def estimate(self, body: bytes) -> EstimateAnswer:
        """What a placement costs.

        Args:
            body: of POST /estimate.

        Raises:
            ShardwrightError: the request is not valid, names no stored plan, or cannot be answered now.
        """
        request = parse_estimate(body, self._limits)
        if isinstance(request, StoredEstimateRequest):
            return self._estimate_stored(request.plan_id)
        return self._estimate_given(request)

    def stored(self, plan_id: str) -> PlanAnswer:
        """The answer stored under an id.

        Raises:
            PlanNotFound: there is none.
            StorageUnavailable: the database cannot be reached.
        """
        return PlanAnswer.model_validate(self._find(plan_id).answer)

    def _answer(self, request: PlanRequest, arrived: float) -> PlanAnswer:
        content = request_content(request)
        plan_id = _plan_id(content, self._models.of(request.devices.hardware))
        storage = True
        try:
            stored = self._plans.get(plan_id)
        except StorageUnavailable:
            stored, storage = None, False
        if stored:
            self._metrics.plan_outcome(request.algorithm, "stored")
            return PlanAnswer.model_validate(stored.answer)
        result = self._made(request, arrived)
        # Of the models that priced the plan, should a process have loaded newer ones than this.
        plan_id = _plan_id(content, result.models)
        planning_s = self._clock() - arrived
        self._metrics.plan_made(request.algorithm, result.status.value, planning_s)
        dims = {table.name: table.embedding_dim for table in request.tables}
        answer = plan_answer(result, dims, plan_id, planning_s * 1000)
        return self._kept(request, content, answer, storage)

    def _made(self, request: PlanRequest, arrived: float) -> PlanResult:
        limit_ms = request.time_limit_ms or self._limits.default_time_limit_ms
        deadline = Deadline(arrived + limit_ms / 1000, self._clock)
        return self._planner.plan(plan_problem(request), request.algorithm, request.seed, deadline)

    def _kept(self, request: PlanRequest, content: Mapping[str, Any], answer: PlanAnswer, storage: bool) -> PlanAnswer:
        """The answer as stored, which is the first one's where the same question was asked meanwhile."""
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
            # A database that was away a moment ago would only cost another wait for it.
            return PlanAnswer.model_validate(self._plans.put(plan).answer) if storage else self._unsaved(answer)
        except StorageUnavailable:
            return self._unsaved(answer)

    def _unsaved(self, answer: PlanAnswer) -> PlanAnswer:
        self._metrics.plan_unsaved()
        return answer

    def _estimate_given(self, request: ShardsEstimateRequest) -> EstimateAnswer:
        self._models.of(request.devices.hardware)
        return estimate_answer(self._planner.estimate(estimate_problem(request), estimate_shards(request)))

    def _estimate_stored(self, plan_id: str) -> EstimateAnswer:
        stored = self._find(plan_id)
        problem = plan_problem(PlanRequest.model_validate(stored.request))
        return estimate_answer(self._planner.estimate(problem, stored_shards(PlanAnswer.model_validate(stored.answer))))

    def _find(self, plan_id: str) -> StoredPlan:
        found = self._plans.get(plan_id) if re.match(PLAN_ID_PATTERN, plan_id) else None
        if found is None:
            raise PlanNotFound(f"no plan is stored under {plan_id!r}")
        return found


def _plan_id(content: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    return content_hash({"request": content, "models": dict(versions)})
