"""Remembers that the database is away, so that not every request waits to find out."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from service.domain.callers import Caller
from service.domain.errors import StorageUnavailable
from service.domain.launch_ports import LaunchStore
from service.domain.launches import Launch
from service.domain.plans_under_way import Making, PlanUnderWay, UnderWayStore
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

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The store's ``get``; also raises StorageUnavailable while an outage is remembered."""
        return self.asked(lambda: self._plans.get(plan_id, caller))

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The store's ``ask``; also raises StorageUnavailable while an outage is remembered."""
        return self.asked(lambda: self._plans.ask(plan_id, caller))

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        """The store's ``put``; also raises StorageUnavailable while an outage is remembered."""
        return self.asked(lambda: self._plans.put(plan, caller))

    def delete(self, plan_id: str, caller: Caller) -> None:
        """The store's ``delete``; also raises StorageUnavailable while an outage is remembered."""
        self.asked(lambda: self._plans.delete(plan_id, caller))

    def asked(self, call: Callable[[], Result]) -> Result:
        """What a call to the database comes to; raises StorageUnavailable while an outage is remembered."""
        left = self._away_until - self._clock()
        if left > 0:
            raise StorageUnavailable("the database was away a moment ago", retry_after_s=math.ceil(left))
        try:
            return call()
        except StorageUnavailable as error:
            self._away_until = self._clock() + error.data.get("retry_after_s", 0)
            _log.warning("the database is away", extra={"fields": {"kind": error.kind, "cause": error.detail}})
            raise


class RememberingLaunches(LaunchStore):
    """A launch store that is not asked while an outage is remembered; each call also raises StorageUnavailable then."""

    def __init__(self, launches: LaunchStore, outages: OutageMemory) -> None:
        """Wraps a store; outages of either are outages of both."""
        self._launches = launches
        self._outages = outages

    def get(self, launch: Launch) -> Mapping[str, Any] | None:
        """The store's ``get``."""
        return self._outages.asked(lambda: self._launches.get(launch))

    def claim(self, launch: Launch, claimant: str) -> bool:
        """The store's ``claim``."""
        return self._outages.asked(lambda: self._launches.claim(launch, claimant))

    def renew(self, launch: Launch, claimant: str) -> None:
        """The store's ``renew``."""
        self._outages.asked(lambda: self._launches.renew(launch, claimant))

    def release(self, launch: Launch, claimant: str) -> None:
        """The store's ``release``."""
        self._outages.asked(lambda: self._launches.release(launch, claimant))

    def keep(self, launch: Launch, claimant: str, plan_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """The store's ``keep``."""
        return self._outages.asked(lambda: self._launches.keep(launch, claimant, plan_id, answer))


class RememberingUnderWay(UnderWayStore):
    """A store of plans under way that is not asked while an outage is remembered; each call raises as the store's."""

    def __init__(self, store: UnderWayStore, outages: OutageMemory) -> None:
        """Wraps a store; outages of either are outages of both."""
        self._store = store
        self._outages = outages

    def claim(self, plan: PlanUnderWay, claimant: str) -> bool:
        """The store's ``claim``."""
        return self._outages.asked(lambda: self._store.claim(plan, claimant))

    def renew(self, plan: PlanUnderWay, claimant: str, patience_s: float) -> bool:
        """The store's ``renew``."""
        return self._outages.asked(lambda: self._store.renew(plan, claimant, patience_s))

    def fail(self, plan: PlanUnderWay, claimant: str, error: Mapping[str, Any]) -> None:
        """The store's ``fail``."""
        self._outages.asked(lambda: self._store.fail(plan, claimant, error))

    def finish(self, plan: PlanUnderWay, claimant: str) -> bool:
        """The store's ``finish``."""
        return self._outages.asked(lambda: self._store.finish(plan, claimant))

    def look(self, plan: PlanUnderWay) -> Making | None:
        """The store's ``look``."""
        return self._outages.asked(lambda: self._store.look(plan))

    def give_up(self, plan: PlanUnderWay) -> bool:
        """The store's ``give_up``."""
        return self._outages.asked(lambda: self._store.give_up(plan))
