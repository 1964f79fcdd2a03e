"""Answers that were given a moment ago, by the bytes of the question.

All ranks of a launch, and every turn of a loop that watches a plan, ask what was asked a moment ago: what that came to
is known without reading, checking or looking up anything.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from service.api.answers import answer_json
from service.api.model_versions import Chosen, ModelVersions
from service.domain.errors import ShardwrightError
from service.domain.plan import Algorithm

_KEPT = 64
_LARGEST_BODY = 128 * 1024


@dataclass(frozen=True)
class Given:
    """An answer, and what it rests on besides the question, which pins no versions.

    Attributes:
        answer: as it was given.
        hardware: that was asked for.
        algorithm: that was asked for; None where none is.
        chosen: the models that answered.
    """

    answer: BaseModel | Mapping[str, Any]
    hardware: str
    algorithm: Algorithm | None
    chosen: Chosen

    @cached_property
    def json(self) -> bytes:
        """The answer as it is sent; made when it is first given again."""
        return answer_json(self.answer)


class AnswerMemory:
    """The answers given last to questions that are not large, each for a while."""

    def __init__(self, models: ModelVersions, seconds: float, clock: Callable[[], float]) -> None:
        """Remembers nothing yet.

        Args:
            models: that would answer now.
            seconds: for which an answer is remembered.
            clock: counts seconds.
        """
        self._models = models
        self._seconds = seconds
        self._clock = clock
        self._given: OrderedDict[tuple[str, bytes], tuple[float, Given]] = OrderedDict()
        self._using = threading.Lock()

    def find(self, caller: str, body: bytes) -> Given | None:
        """What a caller was answered to a body a moment ago, where the same models would answer now; else None."""
        with self._using:
            until, given = self._given.get((caller, body), (0.0, None))
        # What is wrong with the models is told by the way that leads to them.
        with suppress(ShardwrightError):
            if given and self._clock() < until and self._models.of(given.hardware, given.algorithm) == given.chosen:
                return given
        return None

    def note(self, caller: str, body: bytes, given: Given) -> None:
        """Remembers what a caller was answered."""
        if len(body) > _LARGEST_BODY:
            return
        until = self._clock() + self._seconds
        with self._using:
            self._given.pop((caller, body), None)
            self._given[caller, body] = until, given
            if len(self._given) > _KEPT:
                self._given.popitem(last=False)

    def forget(self) -> None:
        """Forgets all answers."""
        with self._using:
            self._given.clear()
