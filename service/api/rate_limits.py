"""How often keys may be used in this process."""

import math
import time
from collections.abc import Callable

from service.domain.access import Allowance, RateLimited


class RateLimits:
    """Lets a key be used at its pace: the generic cell rate algorithm (ITU-T I.371), by the monotonic clock.

    A use is due when the one before it is paid for, at ``requests_per_minute``; it may come early by ``burst`` uses.
    For one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No key was used yet; ``clock`` counts seconds."""
        self._clock = clock
        self._due: dict[str, float] = {}

    def take(self, key_id: str, allowance: Allowance) -> None:
        """Counts one use of a key that exists, so that there are few.

        Raises:
            RateLimited: it is not allowed now, and does not count.
        """
        now, interval_s = self._clock(), 60 / allowance.requests_per_minute
        due = max(self._due.get(key_id, now), now)
        early_s = due - now - (allowance.burst - 1) * interval_s
        # What rounding adds up to must not cost a use.
        if early_s > interval_s * 1e-6:
            raise RateLimited(
                f"the key may be used {allowance.requests_per_minute} times a minute, and {allowance.burst} times at "
                "once, in each API process",
                requests_per_minute=allowance.requests_per_minute,
                burst=allowance.burst,
                retry_after_s=math.ceil(early_s),
            )
        self._due[key_id] = due + interval_s
