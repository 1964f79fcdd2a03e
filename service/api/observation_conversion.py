"""Between the bodies about observations and the values of the domain."""

import re
from collections.abc import Mapping, Sequence
from statistics import median

from service.api.observation_answers import (
    ComparedCostAnswer,
    ObservationAnswer,
    ObservedCostsAnswer,
    PartSummaryAnswer,
)
from service.api.schemas import ObservationsRequest
from service.domain.errors import Fault
from service.domain.observations import BENCH_PATTERN, Observation, StoredObservation
from service.usecases.compare_observations import PARTS, ComparedCost

_DECIMALS = 4


def observation_faults(request: ObservationsRequest) -> list[Fault]:
    """Step ranges that do not ascend or are given twice for a rank, and a bench that is no version of one."""
    faults, given = [], set()
    for i, body in enumerate(request.observations):
        key = body.rank, *body.steps
        if body.steps[0] >= body.steps[1]:
            faults.append(Fault(f"/observations/{i}/steps", "must ascend: [start, stop), at least one step"))
        elif key in given:
            faults.append(Fault(f"/observations/{i}", f"rank {body.rank} has these steps already: give them once"))
        given.add(key)
    bench = request.environment.get("bench", "1")
    if not re.fullmatch(BENCH_PATTERN, bench):
        faults.append(Fault("/environment/bench", "must be a whole number, the version of how times were taken"))
    return faults


def observations_of(request: ObservationsRequest) -> list[Observation]:
    """What was observed, in the order given."""
    return [
        Observation(
            launch_id=request.launch_id or "",
            rank=body.rank,
            start=body.steps[0],
            stop=body.steps[1],
            forward_compute_ms=body.forward_compute_ms,
            backward_compute_ms=body.backward_compute_ms,
            forward_comm_ms=body.forward_comm_ms,
            backward_comm_ms=body.backward_comm_ms,
            total_ms=body.total_ms,
            environment=request.environment,
        )
        for body in request.observations
    ]


def rank_faults(request: ObservationsRequest, device_count: int) -> list[Fault]:
    """Ranks that the plan does not have."""
    return [
        Fault(f"/observations/{i}/rank", f"must be below {device_count}, the number of the plan's devices")
        for i, body in enumerate(request.observations)
        if body.rank >= device_count
    ]


def observation_answer(stored: StoredObservation, costs: Mapping[str, ComparedCost]) -> ObservationAnswer:
    """An observation beside what was predicted."""
    observation = stored.observation
    return ObservationAnswer(
        rank=observation.rank,
        steps=[observation.start, observation.stop],
        launch_id=observation.launch_id or None,
        environment=dict(observation.environment),
        observed_at=stored.observed_at,
        costs=ObservedCostsAnswer(**{part: _cost_answer(cost) for part, cost in costs.items()}),
    )


def summary_answers(compared: Sequence[Mapping[str, ComparedCost]]) -> list[PartSummaryAnswer]:
    """Each part that was measured, over all observations."""
    found = {part: [costs[part] for costs in compared if part in costs] for part in PARTS}
    return [_summary(part, costs) for part, costs in found.items() if costs]


def _summary(part: str, costs: Sequence[ComparedCost]) -> PartSummaryAnswer:
    ratios = [cost.ratio for cost in costs if cost.ratio is not None]
    told = [cost.within for cost in costs if cost.within is not None]
    return PartSummaryAnswer(
        part=part,
        observations=len(costs),
        median_ratio=round(median(ratios), _DECIMALS) if ratios else None,
        share_within_interval=round(sum(told) / len(told), _DECIMALS) if told else None,
    )


def _cost_answer(cost: ComparedCost) -> ComparedCostAnswer:
    return ComparedCostAnswer(
        predicted_ms=cost.predicted_ms,
        measured_ms=cost.measured_ms,
        ratio=None if cost.ratio is None else round(cost.ratio, _DECIMALS),
        interval_ms=None if cost.interval_ms is None else list(cost.interval_ms),
        within_interval=cost.within,
    )
