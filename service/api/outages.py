"""Remembers that the database is away, so that not every request waits to find out."""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from service.domain.errors import StorageUnavailable
from service.domain.ports import PlanStore, StoredPlan

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class OutageMemory(PlanStore):
    """A plan store that is not asked again for the ``retry_after_s`` of its last outage."""

    def __init__(self, plans: PlanStore, clock: Callable[[], float] = time.monotonic) -> None:
        """Wraps a store; ``clock`` counts seconds."""
        self._plans = plans
        self._clock = clock
        self._away_until = -math.inf

    def get(self, plan_id: str) -> StoredPlan | None:
        """The store's ``get``; also raises StorageUnavailable while an outage is remembered."""
        return self._asked(lambda: self._plans.get(plan_id))

    def put(self, plan: StoredPlan) -> StoredPlan:
        """The store's ``put``; also raises StorageUnavailable while an outage is remembered."""
        return self._asked(lambda: self._plans.put(plan))

    def _asked(self, call: Callable[[], Result]) -> Result:
        left = self._away_until - self._clock()
        if left > 0:
            raise StorageUnavailable("the database was away a moment ago", retry_after_s=math.ceil(left))
        try:
            return call()
        except StorageUnavailable as error:
            self._away_until = self._clock() + error.data.get("retry_after_s", 0)
            _log.warning("the database is away", extra={"fields": {"kind": error.kind, "cause": error.detail}})
            raise
