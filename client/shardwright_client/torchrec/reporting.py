"""Sends observations from a thread of its own."""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from shardwright_client.client import Client
from shardwright_client.observations import Observation, ObservationsRequest
from shardwright_client.torchrec.clients import opened

logger = logging.getLogger(__name__)

_MOST_WAITING = 64


class Reporter:
    """Posts observations of one plan in the order given; what cannot be stored is logged and forgotten.

    Args:
        client: None for one that the environment describes.
        plan_id: of the plan.
        launch_id: of the launch.
        environment: of the machine.
    """

    def __init__(
        self, client: Client | None, plan_id: str, launch_id: str | None, environment: Mapping[str, str]
    ) -> None:
        self._client, self._plan_id, self._launch_id, self._environment = client, plan_id, launch_id, environment
        self._waiting: queue.Queue[Observation | None] = queue.Queue(_MOST_WAITING)
        # Does not keep the process from ending.
        self._thread = threading.Thread(target=self._send_all, name="shardwright-observations", daemon=True)
        self._thread.start()

    def report(self, observation: Observation) -> None:
        """Has it sent; does not wait."""
        try:
            self._waiting.put_nowait(observation)
        except queue.Full:
            logger.warning("steps %s are not observed: %d reports wait", list(observation.steps), _MOST_WAITING)

    def close(self, timeout_s: float) -> None:
        """Waits until all is sent, for so many seconds at most."""
        due = time.monotonic() + timeout_s
        with suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s)
        self._thread.join(max(0.0, due - time.monotonic()))
        if self._thread.is_alive():
            logger.warning("the last reports are not sent after %g s and are not waited for", timeout_s)

    def _send_all(self) -> None:
        while (observation := self._waiting.get()) is not None:
            try:
                self._send(observation)
            except Exception as error:
                logger.warning("steps %s are not observed: %s", list(observation.steps), error)

    def _send(self, observation: Observation) -> None:
        request = ObservationsRequest([observation], self._launch_id, self._environment)
        # Reports are minutes apart: a connection is not worth keeping.
        with opened(self._client) as client:
            client.observe(self._plan_id, request)
