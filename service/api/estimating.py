"""Answers what placements cost: those that are given, and those of stored plans."""

from collections.abc import Callable

from service.api.answer_memory import AnswerMemory, Given
from service.api.answers import EstimateAnswer
from service.api.conversion import estimate_answer, given_shards, pinned_versions, posed_problem
from service.api.model_versions import Chosen, ModelVersions
from service.api.parsing import ONE_AT_A_TIME, Limits, parse_estimate
from service.api.planner_pool import Planner
from service.api.profiling import NoveltySink
from service.api.schemas import ShardsEstimateRequest, StoredEstimateRequest
from service.api.stored_plans import found_plan
from service.domain.callers import Caller
from service.domain.deadline import Deadline
from service.domain.plan import Problem
from service.domain.ports import PlanStore

_REMEMBERED_S = 60.0


class Estimating:
    """The answers to /estimate; blocks the calling thread."""

    def __init__(
        self,
        models: ModelVersions,
        planner: Planner,
        plans: PlanStore,
        limits: Limits,
        novel: NoveltySink,
        clock: Callable[[], float],
    ) -> None:
        """Ties the parts together, see ``Planning``."""
        self._models = models
        self._planner = planner
        self._plans = plans
        self._limits = limits
        self._novel = novel
        self._clock = clock
        self._given = AnswerMemory(models, _REMEMBERED_S, clock)

    def answer(self, body: bytes, caller: Caller) -> EstimateAnswer:
        """What a placement costs.

        Args:
            body: of POST /estimate.
            caller: who asks.

        Raises:
            ShardwrightError: the request is not valid, names no stored plan, or cannot be answered now.
        """
        with ONE_AT_A_TIME:
            asked = parse_estimate(body, self._limits)
        if isinstance(asked, StoredEstimateRequest):
            return self._of_stored(asked, caller)
        request, problem = asked
        answer, chosen = self._of_given(request, problem, caller)
        if request.models is None:
            self._given.note(caller.name, body, Given(answer, request.devices.hardware, None, chosen))
        return answer

    def given_before(self, body: bytes, caller: Caller) -> bytes | None:
        """The answer to the same body, as JSON, if it would be the same now; never blocks.

        Raises:
            PlannerBusy: it is not known, and there is no room to find out: reading the body first would take the time
                of those that were let in.
        """
        given = self._given.find(caller.name, body)
        if given is None:
            self._planner.refuse_if_full()
            return None
        return given.json

    def _of_given(
        self, request: ShardsEstimateRequest, problem: Problem, caller: Caller
    ) -> tuple[EstimateAnswer, Chosen]:
        chosen = self._models.of(request.devices.hardware, pinned=pinned_versions(request))
        deadline = Deadline.after(self._limits.default_time_limit_ms / 1000, self._clock)
        found = self._planner.estimate(problem, chosen.versions, given_shards(request), deadline)
        self._novel.met(problem, found.novelty, caller)
        return estimate_answer(found), chosen

    def _of_stored(self, request: StoredEstimateRequest, caller: Caller) -> EstimateAnswer:
        stored = found_plan(self._plans, request.plan_id, caller)
        # Another version of the service may have stored fields that this one does not know. The models are those
        # that are asked for now.
        body = {**stored.request, "shards": stored.answer["shards"], "models": pinned_versions(request)}
        given = ShardsEstimateRequest.model_validate(body, extra="ignore")
        return self._of_given(given, posed_problem(given), caller)[0]
