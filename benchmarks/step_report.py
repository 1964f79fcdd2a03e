"""Steps under our plans beside steps under TorchRec's: ratios, their noise, and where predictions are wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from shardwright_client import Costs

_SHARE = 0.95

Times = NDArray[np.float64]
"""Milliseconds of a step; [starts, rounds] unless said otherwise."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer steps under one plan take than under another; below 1 the first is faster.

    Attributes:
        value: geometric mean over the starts of the median over the rounds.
        low: lower end of its 95% interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Which is faster, where the interval leaves out 1."""
        if self.low <= 1.0 <= self.high:
            return "within noise"
        return "faster" if self.high < 1.0 else "slower"


@dataclass(frozen=True, slots=True)
class ArmSteps:
    """A task's steps under one planner's plan.

    Attributes:
        step_ms: times; [starts, rounds].
        processor_ms: what of a step each rank's processor was busy, median over the starts.
        planning_s: time of planning.
        kinds: number of tables of each sharding type.
        predicted: cost of each rank by our models; None where they do not know the sharding types.
        parts_ms: measured parts of each rank, by the names of an observation, medians over the starts; empty where they
            were not told apart.
    """

    step_ms: Times
    processor_ms: tuple[float, ...]
    planning_s: float
    kinds: Mapping[str, int]
    predicted: tuple[Costs, ...] | None
    parts_ms: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class TaskSteps:
    """A task's steps, by planner: ours first, then those that it is compared with.

    Attributes:
        name: of the task.
        tables: number of them.
        cap: most rows of a table, None where none was cut.
        arms: by planner.
        same: planners whose plans put all columns in the same places, in pairs.
    """

    name: str
    tables: int
    cap: int | None
    arms: Mapping[str, ArmSteps]
    same: Sequence[tuple[str, str]]


def step_ratio(ours: Times, other: Times) -> Ratio:
    """The ratio over the starts, with Student's interval of its logarithm.

    Rounds of a start do not tell how certain it is: where a model comes to lie in memory stays with it until its end.
    """
    logs = np.log(np.median(ours / other, axis=1))
    half = t.ppf((1 + _SHARE) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return _ratio(float(logs.mean()), float(half))


def mean_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean of the ratios of several tasks, which were measured independently of each other."""
    halves = [math.log(ratio.high / ratio.low) / 2 for ratio in ratios]
    value = math.fsum(math.log(ratio.value) for ratio in ratios) / len(ratios)
    return _ratio(value, math.hypot(*halves) / len(ratios))


def _ratio(log: float, half: float) -> Ratio:
    return Ratio(math.exp(log), math.exp(log - half), math.exp(log + half))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers, NaN of none."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def comparison_lines(results: Sequence[TaskSteps], ours: str, other: str) -> list[str]:
    """Steps of each task under two planners' plans, and what they come to."""
    ratios = [step_ratio(result.arms[ours].step_ms, result.arms[other].step_ms) for result in results]
    verdicts = [ratio.verdict for ratio in ratios]
    mean = mean_ratio(ratios)
    busy = [max(result.arms[ours].processor_ms) / max(result.arms[other].processor_ms) for result in results]
    return [
        f"## {ours} and {other}",
        "",
        f"| task | tables | most rows | {ours}, ms a step | {other} | ratio | 95% interval | {ours} is | gain, ms | "
        f"predicted | planning of {ours}, s | {other} |",
        "|---|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|",
        *(_comparison_row(result, ratio, ours, other) for result, ratio in zip(results, ratios, strict=True)),
        "",
        f"Geometric mean of the ratios: {mean.value:.3f}, with noise of {mean.low:.3f} to {mean.high:.3f}. {ours} is "
        f"faster in {verdicts.count('faster')} of {len(results)} tasks, slower in {verdicts.count('slower')}, within "
        f"noise in {verdicts.count('within noise')}. Mean of what the busiest processor was busy (below): "
        f"{geometric_mean(busy):.3f}.",
        "",
    ]


def _comparison_row(result: TaskSteps, ratio: Ratio, ours: str, other: str) -> str:
    own, theirs = result.arms[ours], result.arms[other]
    own_ms, their_ms = float(np.median(own.step_ms)), float(np.median(theirs.step_ms))
    steps = f"{own_ms:.1f} | {their_ms:.1f} | {ratio.value:.3f} | {ratio.low:.3f} to {ratio.high:.3f}"
    gains = f"{np.median(theirs.step_ms - own.step_ms):+.1f} | {_predicted_gain(own, theirs)}"
    rows = f"{result.cap:,}" if result.cap else "all"
    planning = f"{own.planning_s:.2f} | {theirs.planning_s:.2f}"
    return f"| {result.name} | {result.tables} | {rows} | {steps} | {ratio.verdict} | {gains} | {planning} |"


def _predicted_gain(own: ArmSteps, theirs: ArmSteps) -> str:
    if own.predicted is None or theirs.predicted is None:
        return "-"
    return f"{_cost(theirs.predicted) - _cost(own.predicted):+.1f}"


def noise_line(results: Sequence[TaskSteps]) -> str:
    """How far steps under the same plan were apart, from the planners that gave the same."""
    apart = [
        step_ratio(result.arms[one].step_ms, result.arms[other].step_ms)
        for result in results
        for one, other in result.same
    ]
    if not apart:
        return "No two planners gave the same plan of a task."
    least, most = min(ratio.value for ratio in apart), max(ratio.value for ratio in apart)
    told = sum(ratio.verdict != "within noise" for ratio in apart)
    return (
        f"Noise: two planners gave the same plan {len(apart)} times. The ratios of their steps are {least:.3f} to "
        f"{most:.3f}, and {told} of these would be called faster or slower."
    )


def parts_lines(results: Sequence[TaskSteps]) -> list[str]:
    """Predicted costs beside the measured parts of the embedding, rank by rank."""
    return [
        "## Predicted and measured",
        "",
        "Milliseconds of a step. Busy: the processor of the busiest rank in the timed steps, which other processes of "
        "the machine lengthen little; the rest is waiting. Embedding: the largest total of a rank, lookups and "
        "exchanges of both passes with the wait; besides, a step has the exchange of ids, the dense layer and "
        "TorchRec's own work. Compute: lookups of both passes, of each rank. Both are medians of marked steps, after "
        "the timed ones.",
        "",
        "| task | plan | tables | step | busy | embedding, predicted | measured | compute, predicted | measured |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
        *(_parts_row(result.name, name, arm) for result in results for name, arm in result.arms.items()),
        "",
        *_error_lines(results),
        "",
    ]


def _parts_row(task: str, name: str, arm: ArmSteps) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(arm.kinds.items()))
    step = f"| {task} | {name} | {kinds} | {np.median(arm.step_ms):.1f} | {max(arm.processor_ms):.1f} |"
    predicted = f" {_cost(arm.predicted):.1f}" if arm.predicted else " -"
    measured = f" {max(parts['total_ms'] for parts in arm.parts_ms):.1f}" if all(arm.parts_ms) else " -"
    return f"{step}{predicted} |{measured} | {_listed(_predicted_compute(arm))} | {_listed(_measured_compute(arm))} |"


def _error_lines(results: Sequence[TaskSteps]) -> list[str]:
    """How far the compute of ranks is from the predicted, over all plans that are priced."""
    ratios = [
        predicted / measured
        for result in results
        for arm in result.arms.values()
        if arm.predicted and all(arm.parts_ms)
        for predicted, measured in zip(_predicted_compute(arm), _measured_compute(arm), strict=True)
        if measured
    ]
    if not ratios:
        return []
    errors = np.array(ratios) - 1
    return [
        f"Compute of {len(ratios)} ranks: predicted is {np.mean(np.abs(errors)):.1%} away from measured on average, "
        f"bias {np.mean(errors):+.1%}."
    ]


def _cost(predicted: Sequence[Costs]) -> float:
    return max(rank.total for rank in predicted)


def _predicted_compute(arm: ArmSteps) -> list[float]:
    return [rank.forward_compute + rank.backward_compute for rank in arm.predicted or ()]


def _measured_compute(arm: ArmSteps) -> list[float]:
    return [parts["forward_compute_ms"] + parts["backward_compute_ms"] for parts in arm.parts_ms if parts]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values) or "-"
