"""Takes what launchers measured, and shows it beside what was predicted."""

from collections.abc import Callable, Mapping, Sequence

from service.api.observation_answers import ObservationAnswer, PostedObservationsAnswer, StoredObservationsAnswer
from service.api.observation_conversion import observation_answer, observations_of, rank_faults, summary_answers
from service.api.paging import page
from service.api.parsing import ONE_AT_A_TIME, parse_observations
from service.domain.callers import Caller
from service.domain.errors import InvalidRequest, PlanNotFound
from service.domain.launch_ports import ObservationStore
from service.domain.observations import StoredObservation
from service.domain.ports import StoredPlan
from service.telemetry.metrics import Metrics
from service.usecases.compare_observations import ComparedCost, compared

CURSOR_PATTERN = r"^[0-9]{1,18}$"


class Observing:
    """The answers to /plans/{plan_id}/observations; blocks the calling thread."""

    def __init__(self, find: Callable[[str, Caller], StoredPlan], store: ObservationStore, metrics: Metrics) -> None:
        """Ties the parts together.

        Args:
            find: the plan stored under an id for a caller; raises PlanNotFound.
            store: of observations.
            metrics: show how far predictions are off.
        """
        self._find = find
        self._store = store
        self._metrics = metrics

    def post(self, plan_id: str, body: bytes, caller: Caller) -> PostedObservationsAnswer:
        """Stores observations; those that are stored already count once.

        Raises:
            ShardwrightError: the body is not valid, the plan is not stored, or the database is away.
        """
        with ONE_AT_A_TIME:
            request = parse_observations(body)
        plan = self._find(plan_id, caller)
        faults = rank_faults(request, len(plan.request["devices"]["memory_bytes"]))
        if faults:
            raise InvalidRequest(faults)
        added = self._store.add(plan_id, observations_of(request), caller)
        if added is None:
            # It was there a moment ago.
            raise PlanNotFound.under(plan_id)
        stored, new = added
        costs = [compared(each.answer, each.observation) for each in stored]
        for each, found in zip(stored, costs, strict=True):
            if each.id in new:
                self._metrics.plan_observed(plan.hardware, {part: (c.ratio, c.within) for part, c in found.items()})
        return PostedObservationsAnswer(
            plan_id=plan_id, stored=len(new), observations=_answers(stored, costs), summary=summary_answers(costs)
        )

    def stored(self, plan_id: str, limit: str | None, cursor: str | None, caller: Caller) -> StoredObservationsAnswer:
        """A plan's observations by the caller, or by everyone where the caller sees all, page by page.

        Args:
            plan_id: of the plan.
            limit: most of them, as it was given; None for as many as may be.
            cursor: where the page before ended, as it said.
            caller: who asks.

        Raises:
            ShardwrightError: limit or cursor is not valid, the plan is not stored, or the database is away.
        """
        most, after = page(limit, cursor, CURSOR_PATTERN), int(cursor or 0)
        self._find(plan_id, caller)
        # One more than is shown says whether there are more.
        found = self._store.of_plan(plan_id, caller, after, most + 1)
        shown = found[:most]
        costs = [compared(each.answer, each.observation) for each in shown]
        return StoredObservationsAnswer(
            plan_id=plan_id,
            observations=_answers(shown, costs),
            summary=summary_answers(costs),
            next_cursor=str(shown[-1].id) if len(found) > most else None,
        )


def _answers(
    stored: Sequence[StoredObservation], costs: Sequence[Mapping[str, ComparedCost]]
) -> list[ObservationAnswer]:
    return [observation_answer(*pair) for pair in zip(stored, costs, strict=True)]
