"""What policies' placements of whole tables cost beside the heuristics', NeuroShard's and the bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.policy_families import JudgedFamily
from benchmarks.search_tasks import HEURISTICS
from service.domain.deadline import Deadline
from service.domain.plan import Algorithm, Problem, ShardingType
from service.domain.policy import PlacementPolicy
from service.domain.ports import CostModels, Floats
from service.search.algorithms import SEARCHES, Search
from service.search.bound import lower_bound_ms
from service.search.catalogue import TICKS_PER_MS
from service.search.learned import learned
from service.search.precut import posed
from service.search.rules import Flags
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.training.policy_evaluation import Placing, by_policy, by_search, heuristic
from service.training.policy_evaluation import judged as results

SAMPLES = 16
"""Placements that are drawn beside the likeliest, where samples are tried."""

ROOM = 1.05
"""Tasks have room where every heuristic's plan costs more than this times the bound."""

MOST_ABOVE = 1.02
"""What a policy may cost on a family, relative to the best single heuristic."""

RANDOM_SEEDS = 5
GREEDY = tuple(algorithm.value for algorithm in HEURISTICS)
WHOLE_NEUROSHARD = "neuroshard, no cuts"

_SEED = 0


def baselines() -> dict[str, list[Placing]]:
    """Random placement with several seeds, the heuristics, and NeuroShard's inner search alone."""
    return {
        Algorithm.RANDOM.value: [by_search(SEARCHES[Algorithm.RANDOM], seed) for seed in range(RANDOM_SEEDS)],
        **{algorithm.value: [heuristic(algorithm)] for algorithm in HEURISTICS},
        WHOLE_NEUROSHARD: [by_search(SEARCHES[Algorithm.NEUROSHARD], _SEED)],
    }


def policy_placers(policies: Mapping[str, Sequence[PlacementPolicy]]) -> dict[str, list[Placing]]:
    """The likeliest placement of each policy, and the best of that and ``SAMPLES`` drawn ones; by the policies' name.

    Args:
        policies: those of one name differ in the seed of their training.
    """
    return {
        f"{name}, {how}": [by_policy(policy, samples) for policy in found]
        for name, found in policies.items()
        for how, samples in (("likeliest", 0), (f"best of 1 + {SAMPLES}", SAMPLES))
    }


def cutters(policies: Mapping[str, Sequence[PlacementPolicy]]) -> dict[str, Search]:
    """What may cut tables: NeuroShard, auto, and the first policy of each name with NeuroShard's cuts."""
    return {
        Algorithm.NEUROSHARD.value: SEARCHES[Algorithm.NEUROSHARD],
        Algorithm.AUTO.value: SEARCHES[Algorithm.AUTO],
        **{name: partial(learned, found[0]) for name, found in policies.items()},
    }


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """What P placers of one name made of N tasks.

    Attributes:
        costs: predicted, milliseconds; [P, N].
        balances: the least compute of a device over the largest; [P, N].
        dead: where it came to a dead end, and another plan counts; [P, N].
    """

    costs: Floats
    balances: Floats
    dead: Flags

    @property
    def mean_costs(self) -> Floats:
        """Cost of each task, over the placers; [N]."""
        costs: Floats = self.costs.mean(axis=0)
        return costs


@dataclass(frozen=True, slots=True, eq=False)
class FamilyResult:
    """A family's N tasks, placed.

    Attributes:
        name: of the family.
        placed: by the name of the placers; the heuristics' among them.
        bounds: what no plan of whole tables costs less than, milliseconds; [N].
        cut: costs of plans that may cut tables, of the first tasks, milliseconds; by planner, [M].
    """

    name: str
    placed: Mapping[str, Placements]
    bounds: Floats
    cut: Mapping[str, Floats]

    @property
    def room(self) -> Flags:
        """Tasks that have room, see ``ROOM``; [N]."""
        cheapest = np.min([self.placed[name].mean_costs for name in GREEDY], axis=0)
        return np.asarray(cheapest > ROOM * self.bounds)

    def best_heuristic(self, tasks: Flags | slice = slice(None)) -> tuple[str, float]:
        """The heuristic whose plans of some tasks cost the least on average, and that average, milliseconds."""
        means = {name: float(self.placed[name].mean_costs[tasks].mean()) for name in GREEDY}
        best = min(GREEDY, key=means.__getitem__)
        return best, means[best]

    def over_best(self, name: str, tasks: Flags | slice = slice(None)) -> Floats:
        """Mean cost of some tasks, relative to the best heuristic's; [P]."""
        ratios: Floats = self.placed[name].costs[:, tasks].mean(axis=1) / self.best_heuristic(tasks)[1]
        return ratios


def judged(
    family: JudgedFamily,
    models: CostModels,
    placers: Mapping[str, Sequence[Placing]],
    cutting: Mapping[str, Search],
    cut_tasks: int,
    limit_s: float,
) -> FamilyResult:
    """Places every task of a family.

    Args:
        family: the tasks.
        models: price all plans.
        placers: of whole tables, by name; the heuristics among them.
        cutting: searches that may cut tables, by name.
        cut_tasks: the first tasks, that they are asked for.
        limit_s: seconds that each of these has for a task.
    """
    workspaces = [posed(problem, models) for problem in family.problems]
    cut: dict[str, list[float]] = {name: [] for name in cutting}
    for problem in family.problems[:cut_tasks]:
        columns = posed(_may_be_cut(problem), models)
        for name, search in cutting.items():
            plan = search(columns, _SEED, Deadline.after(limit_s))
            cut[name].append(float(simulate(plan.workspace, plan.placement[None]).plan[0]) / TICKS_PER_MS)
    return FamilyResult(
        family.name,
        {name: placements(workspaces, several) for name, several in placers.items()},
        np.array([lower_bound_ms(problem, models) for problem in family.problems]),
        {name: np.array(costs) for name, costs in cut.items()},
    )


def placements(workspaces: Sequence[Workspace], placers: Sequence[Placing]) -> Placements:
    """What P placers make of N tasks."""
    found = [results(workspaces, placer) for placer in placers]
    costs, balances, dead = (np.stack([getattr(each, name) for each in found]) for name in ("costs", "balance", "dead"))
    return Placements(costs, balances, dead)


def _may_be_cut(problem: Problem) -> Problem:
    return replace(problem, constraints=replace(problem.constraints, sharding_types=frozenset(ShardingType)))


def family_lines(found: FamilyResult) -> list[str]:
    """A family's table, and what is to be said of it."""
    best, cost = found.best_heuristic()
    roomy = int(found.room.sum())
    of_room = f"; of {roomy} with room {found.best_heuristic(found.room)[0]}" if roomy else ""
    return [
        f"### {found.name}: {len(found.bounds)} tasks, {roomy} of them with room",
        "",
        "| placed by | cost, ms | / best heuristic | / bound | with room: / best heuristic | / bound | dead ends | "
        "balance |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(found, name) for name in found.placed),
        f"| bound | {found.bounds.mean():.2f} | {found.bounds.mean() / cost:.3f} | 1.000 | | | | |",
        "",
        f"Best single heuristic: {best}{of_room}.",
        *_cut_lines(found),
        "",
    ]


def _row(found: FamilyResult, name: str) -> str:
    placed, room = found.placed[name], found.room
    over_bound = placed.mean_costs / found.bounds
    cells = [
        name,
        f"{placed.costs.mean():.2f}",
        _several(found.over_best(name)),
        f"{over_bound.mean():.3f}",
        _several(found.over_best(name, room)) if room.any() else "-",
        f"{over_bound[room].mean():.3f}" if room.any() else "-",
        f"{placed.dead.sum(axis=1).mean():g}",
        f"{placed.balances.mean():.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def _several(values: Floats) -> str:
    """The mean, and the range where there are several."""
    spread = f" ({values.min():.3f} to {values.max():.3f})" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


def _cut_lines(found: FamilyResult) -> list[str]:
    asked = max((len(costs) for costs in found.cut.values()), default=0)
    if not asked:
        return []
    _, cost = found.best_heuristic(slice(asked))
    told = ", ".join(f"{name} {costs.mean() / cost:.3f}" for name, costs in found.cut.items())
    return [f"Where tables may be cut, relative to the best heuristic's whole ones, first {asked} tasks: {told}."]


def summary_lines(results: Sequence[FamilyResult], names: Sequence[str]) -> list[str]:
    """Cost relative to the best single heuristic's, a family a row and a placer a column, and where that is too much.

    Args:
        results: all families'.
        names: of the placers to show; those that are no baselines are held to the limits.
    """
    columns = " | ".join(f"{name}: all | with room" for name in names)
    lines = [f"| family | tasks | with room | {columns} |", "|---|--:|--:|" + "--:|--:|" * len(names)]
    for found in results:
        room = found.room
        cells = [found.name, str(len(room)), str(int(room.sum()))]
        for name in names:
            cells += [f"{found.over_best(name).mean():.3f}"]
            cells += [f"{found.over_best(name, room).mean():.3f}" if room.any() else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *(line for name in names if name not in baselines() for line in _verdict(results, name)), ""]


def _verdict(results: Sequence[FamilyResult], name: str) -> list[str]:
    dear = [found.name for found in results if found.over_best(name).mean() > MOST_ABOVE]
    beaten = [f.name for f in results if f.room.any() and f.over_best(name, f.room).mean() >= 1.0]
    return [
        f"- {name}: above {MOST_ABOVE} of the best single heuristic on {'; '.join(dear) or 'no family'}; does not beat "
        f"it on tasks with room of {'; '.join(beaten) or 'no family'}"
    ]
