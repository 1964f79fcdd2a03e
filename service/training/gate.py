"""The gate: whether a version that was trained just now is better than the one that serves, on the same held-out data.

Two questions. Is it better on all held-out rows, by a margin? And is it no worse on those that were there when the
serving version was trained? The second one is why a bad training set does not get through: its own held-out rows are as
bad as the rest of it, and praise the version that learnt from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from scipy.stats import binom

from service.domain.error_law import LEVEL
from service.training.slices import LEAST_ROWS, Judged, Quality

MARGIN = 0.01
"""By how much the error, or a policy's cost, must be lower, relative to the serving version's."""

TOLERANCE = 0.02
"""By how much the error on earlier rows, or a policy's cost in one family, may be higher, relative to the other's; the
error also by what chance makes of it among so many rows, up to as much again."""

TAU_TOLERANCE = 0.01
"""By how much Kendall's tau on earlier rows may be lower."""

COVERAGE = (0.80, 0.97)
"""Share of the earlier rows that must be within their 90% intervals, give or take what chance makes of it among few
rows, where that of the serving version is not as far off."""

PACE = 1.1
"""By how much the machine may have become slower, or faster, since the serving version was trained."""

_CHANCE = 0.975


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says.

    Attributes:
        better: whether the new version should serve.
        reason: why, in a sentence.
        comparison: what that rests on, JSON-like.
    """

    better: bool
    reason: str
    comparison: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Both:
    """Predictions of two versions for the same rows, by what is judged.

    Attributes:
        new: of the version that was trained.
        serving: of the version that serves.
    """

    new: Mapping[str, Judged]
    serving: Mapping[str, Judged]


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """The held-out rows that were there when the serving version was trained.

    Attributes:
        both: what is predicted for them; None where there are none.
        known: how many it was judged on then, as it says itself.
        pace: how much slower the machine is said to be than when it was trained.
    """

    both: Both | None
    known: int = 0
    pace: float = 1.0


def judge_costs(costs: Sequence[str], held_out: Both, earlier: Earlier, margin: float = MARGIN) -> Verdict:
    """Whether a new cost model is better.

    Args:
        costs: names of the costs whose mean MAPE is the error.
        held_out: both versions on all held-out rows.
        earlier: both on those that the serving version could have been judged on.
        margin: see ``MARGIN``.
    """
    found = _Qualities.of(held_out, costs)
    before = _Qualities.of(earlier.both, costs) if earlier.both else None
    comparison = {
        "costs": [*costs],
        "margin": margin,
        "held_out": found.as_dict(),
        "earlier": (before.as_dict() if before else None),
        "pace": round(earlier.pace, 4),
    }
    faults = [*_not_better(found, margin), *_worse_on_earlier(before, earlier)]
    if faults:
        return Verdict(False, "; ".join(faults), comparison)
    said = f"its error on {found.rows} held-out rows is {found.new_error:.2%}, the serving version's "
    return Verdict(True, f"{said}{found.serving_error:.2%}", comparison)


def judge_policies(new: Mapping[str, float], serving: Mapping[str, float], margin: float = MARGIN) -> Verdict:
    """Whether a new policy is better.

    Args:
        new: its mean cost by the best heuristic's, of each family of held-out tasks.
        serving: the same of the policy that serves, under the same cost models.
        margin: see ``MARGIN``.
    """
    means = [sum(of.values()) / len(of) for of in (new, serving)]
    comparison = {
        "margin": margin,
        "cost_by_best_heuristics": {
            name: {"new": round(new[name], 5), "serving": round(serving[name], 5)} for name in sorted(new)
        },
        "mean": {"new": round(means[0], 5), "serving": round(means[1], 5)},
    }
    said = (
        f"its mean cost on held-out tasks is {means[0]:.4f} of the best heuristics', the serving one's {means[1]:.4f}"
    )
    faults = [] if means[0] < means[1] * (1 - margin) else [f"{said}: not lower by {margin:.1%}"]
    faults += [
        f"on {name} tasks its cost is {new[name]:.4f} of the best heuristic's, the serving one's {serving[name]:.4f}"
        for name in sorted(new)
        if not new[name] <= serving[name] * (1 + TOLERANCE)
    ]
    return Verdict(not faults, "; ".join(faults) or said, comparison)


@dataclass(frozen=True, slots=True)
class _Qualities:
    """Quality of two versions on the same rows, by what is judged.

    Attributes:
        new: of the one.
        serving: of the other.
        chance: standard error of the difference of their errors, the rows taken for independent draws.
    """

    new: Mapping[str, Quality]
    serving: Mapping[str, Quality]
    chance: float

    @classmethod
    def of(cls, both: Both, costs: Sequence[str]) -> "_Qualities":
        new, serving = ({name: judged[name].overall() for name in costs} for judged in (both.new, both.serving))
        return cls(new, serving, sum(_chance(both.new[name], both.serving[name]) for name in costs) / len(costs))

    @property
    def rows(self) -> int:
        """The fewest rows of a cost."""
        return min(quality.rows for quality in self.new.values())

    @property
    def told(self) -> bool:
        """Whether there are rows enough."""
        return self.rows >= LEAST_ROWS

    @property
    def new_error(self) -> float:
        return _error(self.new)

    @property
    def serving_error(self) -> float:
        return _error(self.serving)

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            "new": {name: _finite(quality.as_dict()) for name, quality in self.new.items()},
            "serving": {name: _finite(quality.as_dict()) for name, quality in self.serving.items()},
        }


def _not_better(found: _Qualities, margin: float) -> list[str]:
    if not found.told:
        return [f"there are {found.rows} held-out rows, {LEAST_ROWS} are needed to judge it"]
    if found.new_error < found.serving_error * (1 - margin):
        return []
    return [
        f"its error on {found.rows} held-out rows is {found.new_error:.2%}, the serving version's "
        f"{found.serving_error:.2%}: not lower by {margin:.1%}"
    ]


def _worse_on_earlier(before: _Qualities | None, earlier: Earlier) -> list[str]:
    rows = before.rows if before else 0
    if rows < min(LEAST_ROWS, earlier.known):
        return [
            f"of {earlier.known} held-out rows that were there when the serving version was trained, {rows} can still "
            "be compared: they are gone, or the rest is of another bench or device; train and promote one by hand"
        ]
    if before is None or not before.told:
        return []
    faults = []
    if not 1 / PACE <= earlier.pace <= PACE:
        faults.append(
            f"the machine is said to take {earlier.pace:.2f} times as long as when the serving version was trained, "
            f"which is not within a factor of {PACE}"
        )
    tolerated = TOLERANCE * before.serving_error
    tolerated += min(before.chance, tolerated)
    if not before.new_error <= before.serving_error + tolerated:
        faults.append(
            f"its error on the {rows} held-out rows that were there when the serving version was trained is "
            f"{before.new_error:.2%}, the serving version's {before.serving_error:.2%}: higher by more than "
            f"the {tolerated:.2%} that are let pass"
        )
    for name, new in before.new.items():
        faults += _ranks_worse(name, new, before.serving[name])
        faults += _covers_wrongly(name, new, before.serving[name])
    return faults


def _ranks_worse(name: str, new: Quality, serving: Quality) -> list[str]:
    if serving.tau is None or (new.tau is not None and new.tau >= serving.tau - TAU_TOLERANCE):
        return []
    told = "undefined" if new.tau is None else f"{new.tau:.3f}"
    return [f"its Kendall's tau of {name} on those rows is {told}, the serving version's {serving.tau:.3f}"]


def _covers_wrongly(name: str, new: Quality, serving: Quality) -> list[str]:
    if new.coverage is None or serving.coverage is None:
        return []
    least, most = (
        binom.ppf(tail, new.rows, share) / new.rows
        for tail, share in zip((1 - _CHANCE, _CHANCE), COVERAGE, strict=True)
    )
    if least <= new.coverage <= most or abs(new.coverage - LEVEL) <= abs(serving.coverage - LEVEL):
        return []
    return [
        f"its 90% intervals of {name} hold {new.coverage:.1%} of those rows, which is not within {COVERAGE[0]:.0%} and "
        f"{COVERAGE[1]:.0%}"
    ]


def _error(qualities: Mapping[str, Quality]) -> float:
    errors = [quality.mape for quality in qualities.values() if quality.mape is not None]
    return sum(errors) / len(errors) if errors else float("nan")


def _chance(new: Judged, serving: Judged) -> float:
    """Standard error of the mean difference between two versions' absolute percentage errors on the same rows."""
    of_new, of_serving = (abs(judged.predicted / judged.measured - 1.0) for judged in (new, serving))
    return float((of_new - of_serving).std() / len(of_new) ** 0.5) if len(of_new) else 0.0


def _finite(told: Mapping[str, float | None]) -> dict[str, float | None]:
    """What JSON can hold."""
    return {name: value if value is None or isfinite(value) else None for name, value in told.items()}
