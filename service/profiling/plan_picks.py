"""How often the models pick the truly fastest of several plans, from answers of ``shardwright measure``."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.errors import InvalidInputFile
from service.profiling.plan_summary import LEAST_REPEATS, Ordering


@dataclass(frozen=True, slots=True)
class Pick:
    """One answer.

    Attributes:
        source: where it was read from.
        models: version of each model that predicted, by kind.
        order: of its plans, as it was measured; None where that tells nothing.
        unjudged: why it tells nothing; None where it does.
    """

    source: str
    models: Mapping[str, str]
    order: Ordering | None
    unjudged: str | None


@dataclass(frozen=True, slots=True)
class Picks:
    """What the answers that could be judged say together.

    Attributes:
        answers: those that could be judged.
        picked: those of them where no plan that is predicted to be the cheapest is told apart from the one measured so.
        all_alike: those of them, all among the picked, where the repeats tell no two plans apart.
        mean_regret_ms: what the plan that was picked costs more than the fastest, over all answers; 0 without any.
        largest_regret_ms: the most that it costs more.
    """

    answers: int
    picked: int
    all_alike: int
    mean_regret_ms: float
    largest_regret_ms: float


def read_pick(source: str, content: bytes) -> Pick:
    """The pick in an answer of ``shardwright measure``, by the noise rule of ``plan_summary``.

    Raises:
        InvalidInputFile: it is no such answer.
    """
    try:
        answer = json.loads(content)
        told, repeats, models = answer["summary"]["order"], answer["repeats"], dict(answer["models"])
        order = None if told is None else Ordering(**told)
        sound = isinstance(repeats, int) and (order is None or _is_sound(order))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputFile(f"{source} is not an answer of `shardwright measure`: {error!r}") from error
    if not sound:
        raise InvalidInputFile(f"{source} is not an answer of `shardwright measure`: its order of plans is none")
    if order is None:
        return Pick(source, models, None, "fewer than two plans fit")
    if repeats < LEAST_REPEATS:
        return Pick(source, models, None, f"{repeats} repeats tell no plans apart, that takes {LEAST_REPEATS}")
    return Pick(source, models, order, None)


def picks_of(picks: Sequence[Pick]) -> Picks:
    """Counts those that could be judged; ties within the repeats' spread are picked."""
    orders = [pick.order for pick in picks if pick.order]
    regrets = [order.regret_ms for order in orders]
    return Picks(
        answers=len(orders),
        picked=sum(order.best_picked for order in orders),
        all_alike=sum(order.pairs + order.pairs_predicted_alike == 0 for order in orders),
        mean_regret_ms=sum(regrets) / max(len(regrets), 1),
        largest_regret_ms=max(regrets, default=0.0),
    )


def _is_sound(order: Ordering) -> bool:
    counts = (order.pairs, order.pairs_predicted_alike)
    numbers = all(isinstance(count, int) and count >= 0 for count in counts) and isinstance(order.best_picked, bool)
    return numbers and math.isfinite(order.regret_ms) and order.regret_ms >= 0
