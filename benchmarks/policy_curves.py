"""Learning curves: what a policy's placements of unseen tasks cost while it trains, for several seeds."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.policy_quality import GREEDY, SAMPLES, Placements, baselines, placements
from service.domain.policy import PlacementPolicy
from service.domain.ports import Floats
from service.search.workspace import Workspace
from service.training.policy_evaluation import by_policy
from service.training.policy_job import PolicyTrainer

HOW = {"likeliest": 0, f"best of 1 + {SAMPLES}": SAMPLES}
"""Ways of placing by a policy, and the samples that each draws."""

_SECONDS = "seconds/"
"""Begins the names of what trainers tell of the time that their parts took."""

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Course:
    """What is trained, on what, and how it is looked at.

    Attributes:
        name: of the algorithm and the tasks that it trains on.
        train: the tasks to train on, posed.
        held_out: tasks of other tables, posed.
        trainer: makes a trainer that has done nothing yet, of a seed.
        policy: makes a policy of what a trainer has now.
        looks: about how often the policy is looked at, besides before the first step.
    """

    name: str
    train: Sequence[Workspace]
    held_out: Sequence[Workspace]
    trainer: Callable[[Sequence[Workspace], int], PolicyTrainer]
    policy: Callable[[Arrays], PlacementPolicy]
    looks: int


@dataclass(frozen=True, slots=True)
class Look:
    """The policy of some step on the held-out tasks.

    Attributes:
        done: steps that were done.
        seconds: that they took.
        placed: the held-out tasks as it places them, see ``HOW``; one placer each.
    """

    done: int
    seconds: float
    placed: Mapping[str, Placements]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A training run.

    Attributes:
        seed: of the run.
        looks: at the policy, before the first step and after some.
        parts: seconds of training by part, and those that no part accounts for.
        arrays: what the policy consists of in the end.
    """

    seed: int
    looks: tuple[Look, ...]
    parts: Mapping[str, float]
    arrays: Arrays = field(repr=False)


def curve(course: Course, seed: int) -> Curve:
    """Trains to the end and looks at the policy on the way; looking takes no part in any time."""
    trainer = course.trainer(course.train, seed)
    looks, parts, seconds = [_look(course, trainer, 0.0)], dict[str, float](), 0.0
    every = max(1, trainer.steps // course.looks)
    while trainer.done < trainer.steps:
        started = time.perf_counter()
        told = trainer.step()
        seconds += time.perf_counter() - started
        for name, value in told.items():
            if name.startswith(_SECONDS):
                part = name.removeprefix(_SECONDS)
                parts[part] = parts.get(part, 0.0) + value
        if trainer.done % every == 0 or trainer.done == trainer.steps:
            looks.append(_look(course, trainer, seconds))
            costs = ", ".join(f"{how} {placed.costs.mean():.1f} ms" for how, placed in looks[-1].placed.items())
            print(f"{course.name}, seed {seed}, {trainer.done} of {trainer.steps}: {costs}", flush=True)
    parts["other"] = seconds - sum(parts.values())
    return Curve(seed, tuple(looks), parts, dict(trainer.arrays()))


def _look(course: Course, trainer: PolicyTrainer, seconds: float) -> Look:
    policy = course.policy(trainer.arrays())
    placed = {how: placements(course.held_out, [by_policy(policy, samples)]) for how, samples in HOW.items()}
    return Look(trainer.done, seconds, placed)


def beside(course: Course) -> dict[str, Placements]:
    """The baselines on the held-out tasks."""
    return {name: placements(course.held_out, placers) for name, placers in baselines().items()}


def curve_lines(course: Course, curves: Sequence[Curve], others: Mapping[str, Placements]) -> list[str]:
    """A row for each seed from its start to its end, the baselines, and where the time goes."""
    best = min(GREEDY, key=lambda name: float(others[name].costs.mean()))
    cost = float(others[best].costs.mean())
    titles = [f"{how}: {what}" for how in HOW for what in ("start", "end", "best", "balance", "dead ends")]
    lines = [
        f"### {course.name}: {len(course.train)} tasks to train on, {len(course.held_out)} of other tables",
        "",
        f"Predicted cost of the held-out tasks relative to that of {best}, the best single heuristic ({cost:.1f} ms); "
        "balance and dead ends in the end.",
        "",
        f"| | {' | '.join(titles)} | steps | training, s |",
        "|---|" + "--:|" * (len(titles) + 2),
    ]
    for run in curves:
        cells = [cell for how in HOW for cell in _cells([look.placed[how] for look in run.looks], cost)]
        lines.append(f"| seed {run.seed} | {' | '.join(cells)} | {run.looks[-1].done} | {run.looks[-1].seconds:.0f} |")
    for name, placed in others.items():
        cells = ["", f"{placed.costs.mean() / cost:.3f}", "", f"{placed.balances.mean():.3f}", _dead_ends(placed)]
        lines.append(f"| {name} | {' | '.join(cells)} |" + " |" * (len(titles) + 2 - len(cells)))
    total = sum(sum(run.parts.values()) for run in curves)
    spent = {part: sum(run.parts.get(part, 0.0) for run in curves) for part in curves[0].parts}
    shares = ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in spent.items())
    return [*lines, "", f"Time of training: {shares}.", ""]


def _cells(looks: Sequence[Placements], cost: float) -> list[str]:
    means = [float(placed.costs.mean()) / cost for placed in looks]
    last = looks[-1]
    told = [f"{value:.3f}" for value in (means[0], means[-1], min(means), last.balances.mean())]
    return [*told, _dead_ends(last)]


def _dead_ends(placed: Placements) -> str:
    return f"{placed.dead.sum(axis=1).mean():g}"


def draw(course: Course, curves: Sequence[Curve], others: Mapping[str, Placements], path: Path) -> None:
    """Mean cost and balance of the held-out tasks against steps, with the range over the seeds, as PNG."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    values: dict[str, Callable[[Placements], Floats]] = {
        "mean predicted cost, ms": lambda placed: placed.costs,
        "mean balance of compute (least / most)": lambda placed: placed.balances,
    }
    steps = [look.done for look in curves[0].looks]
    for axes, (title, of) in zip(panels, values.items(), strict=True):
        for n, how in enumerate(HOW):
            runs = np.array([[of(look.placed[how]).mean() for look in run.looks] for run in curves])
            axes.plot(steps, runs.mean(axis=0), color=f"C{n}", label=f"policy, {how}: mean of {len(curves)} seeds")
            axes.fill_between(steps, runs.min(axis=0), runs.max(axis=0), color=f"C{n}", alpha=0.25, linewidth=0)
        for n, (name, placed) in enumerate(others.items(), start=len(HOW)):
            axes.axhline(float(of(placed).mean()), color=f"C{n}", linestyle="--", linewidth=1, label=name)
        axes.set(xlabel="training steps", title=title)
    # An untrained policy may cost many times what the worst baseline does.
    panels[0].set_ylim(top=1.1 * max(float(placed.costs.mean()) for placed in others.values()))
    figure.suptitle(f"{course.name}, on {len(course.held_out)} held-out tasks")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize="small")
    figure.savefig(path, dpi=120)
