"""Planners on sets of published tasks: how many they answer, at what cost, how far from the bound, in what time."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.planner_answers import TORCHREC, TORCHREC_DEFAULTS, Answer, Outcome, Planner
from benchmarks.search_tasks import HEURISTICS
from service.domain.plan import Algorithm, Problem
from service.domain.ports import Floats

Statistic = Callable[[Floats], np.floating]

_GREEDY = tuple(algorithm.value for algorithm in HEURISTICS)


@dataclass(frozen=True, slots=True, eq=False)
class SetAnswers:
    """What planners answered to N tasks of a set.

    Attributes:
        task_set: its name.
        answers: by planner; N each, fewer where a planner was asked for the first tasks alone.
    """

    task_set: str
    answers: Mapping[str, Sequence[Answer]]

    def costs(self, planner: str) -> Floats:
        """Predicted cost of a planner's plan of each task, NaN where it has none; [N]."""
        given = self.answers.get(planner, ())
        costs = [answer.cost_ms for answer in given]
        return np.array([*costs, *[math.nan] * (self.tasks - len(costs))])

    @property
    def tasks(self) -> int:
        """N."""
        return max(map(len, self.answers.values()))

    def best_greedy(self) -> Floats:
        """Cost of the best of the greedy heuristics' plans of each task, NaN where none has one; [N]."""
        costs = np.stack([self.costs(planner) for planner in _GREEDY])
        least: Floats = np.where(np.isnan(costs), np.inf, costs).min(axis=0)
        return np.where(np.isinf(least), np.nan, least)

    def bounds(self) -> Floats:
        """The highest lower bound that any planner told for each task, NaN where none did; [N]."""
        given = [answers for answers in self.answers.values() if len(answers) == self.tasks]
        bounds = np.array([[answer.bound_ms for answer in answers] for answers in given])
        highest: Floats = np.where(np.isnan(bounds), -np.inf, bounds).max(axis=0)
        return np.where(np.isinf(highest), np.nan, highest)


def asked(
    task_set: str, problems: Mapping[int, Problem], planners: Mapping[str, Planner], first: Mapping[str, int]
) -> SetAnswers:
    """Asks every planner for every task.

    Args:
        task_set: name of the set.
        problems: its tasks, by position.
        planners: by name.
        first: number of tasks that a planner is asked for, where not for all.
    """
    answers: dict[str, list[Answer]] = {name: [] for name in planners}
    for asked_before, (number, problem) in enumerate(problems.items()):
        for name, planner in planners.items():
            if asked_before < first.get(name, len(problems)):
                answers[name].append(planner(problem))
        told = [f"{name} {found[-1].cost_ms:.1f}" for name, found in answers.items() if len(found) > asked_before]
        print(f"{task_set} {number}: {len(problem.tables)} tables, ms: {', '.join(told)}", flush=True)
    return SetAnswers(task_set, answers)


def set_lines(found: SetAnswers) -> list[str]:
    """A set's table and what is to be said of it."""
    return [
        f"### {found.task_set}: {found.tasks} tasks",
        "",
        "| planner | answered | planned | proven infeasible | cost / best greedy | cost / TorchRec | gap to the bound: "
        "mean | median | most | seconds a plan: mean | most |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(found, planner) for planner in found.answers),
        "",
        *_said(found),
        "",
    ]


def _row(found: SetAnswers, planner: str) -> str:
    answers, costs = found.answers[planner], found.costs(planner)
    outcomes = Counter(answer.outcome for answer in answers)
    gaps = costs / found.bounds() - 1
    seconds = [answer.seconds for answer in answers]
    planned, cut_short = sum(answer.planned for answer in answers), outcomes[Outcome.CUT_SHORT]
    cells = [
        planner,
        f"{sum(answer.answered for answer in answers)} of {len(answers)}",
        f"{planned} ({cut_short} cut short)" if cut_short else f"{planned}",
        str(outcomes[Outcome.PROVEN]),
        _over(costs / found.best_greedy(), np.mean, ".3f"),
        _over(costs / found.costs(TORCHREC), np.mean, ".3f"),
        *(_over(gaps, of, ".1%") for of in (np.mean, np.median, np.max)),
        f"{np.mean(seconds):.2f}",
        f"{np.max(seconds):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _over(values: Floats, of: Statistic, form: str) -> str:
    known = values[~np.isnan(values)]
    return f"{of(known):{form}}" if len(known) else "-"


def _said(found: SetAnswers) -> list[str]:
    """How auto compares task by task, why there is no plan where there is none, and what TorchRec chooses."""
    auto, lines = found.costs(Algorithm.AUTO.value), []
    for name, costs in (
        (Algorithm.NEUROSHARD.value, found.costs(Algorithm.NEUROSHARD.value)),
        ("the best greedy", found.best_greedy()),
        (TORCHREC, found.costs(TORCHREC)),
    ):
        both = ~np.isnan(auto) & ~np.isnan(costs)
        if both.any():
            lines.append(
                f"- auto is cheaper than {name} on {np.sum(auto[both] < costs[both])} of {both.sum()} tasks, costlier "
                f"on {np.sum(auto[both] > costs[both])}"
            )
    for planner, answers in found.answers.items():
        without = Counter(f"{a.outcome.value} ({a.reason})" for a in answers if a.reason)
        if without:
            lines.append(f"- {planner}: " + "; ".join(f"{what} {count} times" for what, count in without.items()))
    defaults = found.answers.get(TORCHREC_DEFAULTS, ())
    if defaults:
        chosen: Counter[str] = sum((Counter(answer.sharding_types) for answer in defaults), Counter())
        types = ", ".join(f"{count} {name}" for name, count in chosen.most_common())
        unpriced = sum(answer.outcome is Outcome.NOT_PRICED for answer in defaults)
        lines.append(
            f"- {TORCHREC_DEFAULTS}, asked for the first {len(defaults)} tasks, shards their tables so: {types}; "
            f"{unpriced} of the plans cannot be priced, as our models describe no tables that are sharded by rows or "
            "replicated"
        )
    return lines
