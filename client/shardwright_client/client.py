"""The client: what sends a flow's requests and sleeps through its waits."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import httpx

from shardwright_client.calls import (
    Result,
    delete_plan_call,
    estimate_call,
    get_plan_call,
    get_profile_call,
    list_plans_call,
    observe_call,
    plan_call,
    profile_call,
)
from shardwright_client.configuration import (
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    TIMEOUT_S,
    Configured,
    check_open,
    http_client,
)
from shardwright_client.flow import PAGE_SIZE, PROFILE_TIMEOUT_S, Flow, Try, Wait, answered, profiled
from shardwright_client.json_values import Json
from shardwright_client.observations import ObservationsRequest, PostedObservations
from shardwright_client.outcomes import Outcome, Received
from shardwright_client.plans import (
    Estimate,
    ListedPlan,
    Plan,
    PlanRequest,
    ShardsEstimateRequest,
    StoredEstimateRequest,
)
from shardwright_client.profiles import Profiles, ProfilesRequest


class Client(Configured):
    """Asks a Shardwright service; keeps its connections, and may be used by several threads.

    A call is tried again, with growing and random waits, when the service cannot be reached, has no room, or says when
    to come back; every call is safe to be sent twice. Requests are values of this package, or mappings that are sent
    as they are. With an ``idempotency_key``, your own name for one call, the service gives its first answer again to
    whoever sends the same under it within a day; it needs its database for that. All errors are ``ShardwrightError``.
    Make one after a fork, not before.

    Args:
        base_url: the service's address; None for SHARDWRIGHT_URL of the environment.
        api_key: sent as ``Authorization: Bearer``; None for SHARDWRIGHT_API_KEY of the environment, where it is set.
        timeout_s: seconds for all tries of a call together, besides the ``time_limit_ms`` of a plan. Looked at
            whenever bytes come: the last read of a trickling answer may add its own timeout.
        connect_timeout_s: seconds for a connection.
        read_timeout_s: seconds for the next bytes of an answer, besides the ``time_limit_ms`` of a plan.
        transport: of httpx; None for the network.

    Raises:
        InvalidArgument: no service is named, the address, the key or a time is none, or the environment has proxies or
            certificates that cannot be used.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout_s, connect_timeout_s, read_timeout_s)
        self._http = http_client(lambda: httpx.Client(headers=self._configuration.headers(), transport=transport))

    def plan(self, request: PlanRequest | Json, *, idempotency_key: str | None = None) -> Plan:
        """Where the tables go; the same question gets the same plan.

        Raises:
            InvalidRequest: it contradicts itself or the contract; ``errors`` names every field.
            Infeasible: no plan meets it; ``remedies`` says what would help.
            NoPlanInTime: none was found within ``time_limit_ms``.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(plan_call(request, idempotency_key), self._configuration))

    def estimate(
        self,
        request: ShardsEstimateRequest | StoredEstimateRequest | Json,
        *,
        idempotency_key: str | None = None,
    ) -> Estimate:
        """What a placement costs.

        Raises:
            InvalidRequest: it contradicts itself or the contract; ``errors`` names every field.
            NotFound: no plan is stored under its ``plan_id``.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(estimate_call(request, idempotency_key), self._configuration))

    def get_plan(self, plan_id: str) -> Plan:
        """A stored plan; one that is being made in the background is waited for.

        Raises:
            NotFound: there is none under this id.
            Timeout: it is being made still.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(get_plan_call(plan_id), self._configuration))

    def list_plans(self, page_size: int = PAGE_SIZE) -> Iterator[ListedPlan]:
        """The stored plans that the caller may see, the newest first; asks for a page when it comes to it.

        Args:
            page_size: plans that are asked for at a time, 1 to 1,000.

        Raises:
            InvalidRequest: ``page_size`` is none.
            ShardwrightError: another of its tree.
        """
        cursor = None
        while True:
            page = self._run(answered(list_plans_call(page_size, cursor), self._configuration))
            yield from page.plans
            cursor = page.next_cursor
            if cursor is None:
                return

    def delete_plan(self, plan_id: str) -> None:
        """Gives a stored plan up; a key with the scope admin takes it from everyone.

        Raises:
            NotFound: there is none under this id.
            ShardwrightError: another of its tree.
        """
        self._run(answered(delete_plan_call(plan_id), self._configuration))

    def observe(
        self, plan_id: str, request: ObservationsRequest | Json, *, idempotency_key: str | None = None
    ) -> PostedObservations:
        """Stores what was measured while a plan ran, and tells what was predicted.

        Raises:
            InvalidRequest: ``errors`` names every field.
            NotFound: no plan is stored under this id.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(observe_call(plan_id, request, idempotency_key), self._configuration))

    def profile(self, request: ProfilesRequest | Json, *, idempotency_key: str | None = None) -> Profiles:
        """Has tables measured; answers at once, see ``wait_for_profile``.

        Raises:
            InvalidRequest: ``errors`` names every field.
            Busy: no live worker serves the hardware, or the quota is used up.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(profile_call(request, idempotency_key), self._configuration))

    def get_profile(self, request_id: str) -> Profiles:
        """Where a request for profiles stands.

        Raises:
            NotFound: there is none under this id.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(get_profile_call(request_id), self._configuration))

    def wait_for_profile(self, request_id: str, timeout_s: float = PROFILE_TIMEOUT_S) -> Profiles:
        """A request for profiles, once none of its tables waits or is being measured; some may be parked.

        Raises:
            Timeout: it is not done after ``timeout_s``.
            ShardwrightError: another of its tree.
        """
        return self._run(profiled(request_id, timeout_s, self._configuration))

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[Result]) -> Result:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                    step = next(flow)
                else:
                    step = flow.send(self._sent(step))
        except StopIteration as end:
            result: Result = end.value
            return result

    def _sent(self, step: Try) -> Outcome:
        check_open(self._http)
        content = bytearray()
        try:
            with self._http.stream(
                step.method, step.url, headers=step.headers, content=step.content, timeout=step.timeout
            ) as response:
                for chunk in response.iter_bytes():
                    step.check_due(content)
                    content += chunk
        except httpx.HTTPError as error:
            return error
        return Received(response.status_code, response.headers, bytes(content))
