"""A point in time by which an answer is due; the clock is an argument so that tests own it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """Passes when ``clock()`` reaches ``at``, both in seconds of the same monotonic clock."""

    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """A deadline ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def share(self, part: float) -> "Deadline":
        """The point in time when so much of what is left from now on has passed, from 0 to 1."""
        now = self.clock()
        return self if math.isinf(self.at) else Deadline(now + part * (self.at - now), self.clock)

    def sooner(self, seconds: float) -> "Deadline":
        """The same, some seconds earlier."""
        return Deadline(self.at - seconds, self.clock)

    def later(self, seconds: float) -> "Deadline":
        """The same, some seconds later."""
        return Deadline(self.at + seconds, self.clock)

    def passed(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self.at


NEVER = Deadline()
"""It does not pass."""
