"""The clients: what sends a flow's requests and sleeps through its waits."""

import asyncio
import time
from types import TracebackType
from typing import Self

import httpx

from shardwright_client.calls import (
    Result,
    estimate_call,
    get_plan_call,
    get_profile_call,
    observe_call,
    plan_call,
    profile_call,
)
from shardwright_client.configuration import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, TIMEOUT_S, configured
from shardwright_client.flow import Flow, Try, Wait, answered, profiled
from shardwright_client.json_values import Json
from shardwright_client.observations import ObservationsRequest, PostedObservations
from shardwright_client.outcomes import Outcome, Received
from shardwright_client.plans import Estimate, Plan, PlanRequest, ShardsEstimateRequest, StoredEstimateRequest
from shardwright_client.profiles import Profiles, ProfilesRequest

PROFILE_TIMEOUT_S = 3600.0


class _Configured:
    """What both clients are made of; see ``Client``."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        self._configuration = configured(base_url, api_key, timeout_s, connect_timeout_s, read_timeout_s)

    @property
    def base_url(self) -> str:
        """The service's address."""
        return self._configuration.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"


class Client(_Configured):
    """Asks a Shardwright service; keeps its connections, and may be used by several threads.

    A call is tried again, with growing and random waits, when the service cannot be reached, has no room, or says when
    to come back; every call is safe to be sent twice. Requests are values of this package, or mappings that are sent
    as they are. All errors are ``ShardwrightError``. Make one after a fork, not before.

    Args:
        base_url: the service's address; None for SHARDWRIGHT_URL of the environment.
        api_key: sent as ``Authorization: Bearer``; None for SHARDWRIGHT_API_KEY of the environment, where it is set.
        timeout_s: seconds for all tries of a call together, besides the ``time_limit_ms`` of a plan. Looked at
            whenever bytes come: the last read of a trickling answer may add its own timeout.
        connect_timeout_s: seconds for a connection.
        read_timeout_s: seconds for the next bytes of an answer, besides the ``time_limit_ms`` of a plan.
        transport: of httpx; None for the network.

    Raises:
        InvalidArgument: no service is named, or the address, the key or a time is none.
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
        self._http = httpx.Client(headers=self._configuration.headers(), transport=transport)

    def plan(self, request: PlanRequest | Json) -> Plan:
        """Where the tables go; the same question gets the same plan.

        Raises:
            InvalidRequest: it contradicts itself or the contract; ``errors`` names every field.
            Infeasible: no plan meets it; ``remedies`` says what would help.
            NoPlanInTime: none was found within ``time_limit_ms``.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(plan_call(request), self._configuration))

    def estimate(self, request: ShardsEstimateRequest | StoredEstimateRequest | Json) -> Estimate:
        """What a placement costs.

        Raises:
            InvalidRequest: it contradicts itself or the contract; ``errors`` names every field.
            NotFound: no plan is stored under its ``plan_id``.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(estimate_call(request), self._configuration))

    def get_plan(self, plan_id: str) -> Plan:
        """A stored plan.

        Raises:
            NotFound: there is none under this id.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(get_plan_call(plan_id), self._configuration))

    def observe(self, plan_id: str, request: ObservationsRequest | Json) -> PostedObservations:
        """Stores what was measured while a plan ran, and tells what was predicted.

        Raises:
            InvalidRequest: ``errors`` names every field.
            NotFound: no plan is stored under this id.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(observe_call(plan_id, request), self._configuration))

    def profile(self, request: ProfilesRequest | Json) -> Profiles:
        """Has tables measured; answers at once, see ``wait_for_profile``.

        Raises:
            InvalidRequest: ``errors`` names every field.
            Busy: no live worker serves the hardware, or the quota is used up.
            ShardwrightError: another of its tree.
        """
        return self._run(answered(profile_call(request), self._configuration))

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
        content = bytearray()
        try:
            with self._http.stream(
                step.method, step.url, headers=step.headers, content=step.content, timeout=step.timeout
            ) as response:
                for chunk in response.iter_bytes():
                    _check_due(step, content)
                    content += chunk
        except httpx.HTTPError as error:
            return error
        return Received(response.status_code, response.headers, bytes(content))


class AsyncClient(_Configured):
    """``Client`` for asyncio: the same arguments, calls and errors; each call is awaited."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout_s, connect_timeout_s, read_timeout_s)
        self._http = httpx.AsyncClient(headers=self._configuration.headers(), transport=transport)

    async def plan(self, request: PlanRequest | Json) -> Plan:
        """See ``Client.plan``."""
        return await self._run(answered(plan_call(request), self._configuration))

    async def estimate(self, request: ShardsEstimateRequest | StoredEstimateRequest | Json) -> Estimate:
        """See ``Client.estimate``."""
        return await self._run(answered(estimate_call(request), self._configuration))

    async def get_plan(self, plan_id: str) -> Plan:
        """See ``Client.get_plan``."""
        return await self._run(answered(get_plan_call(plan_id), self._configuration))

    async def observe(self, plan_id: str, request: ObservationsRequest | Json) -> PostedObservations:
        """See ``Client.observe``."""
        return await self._run(answered(observe_call(plan_id, request), self._configuration))

    async def profile(self, request: ProfilesRequest | Json) -> Profiles:
        """See ``Client.profile``."""
        return await self._run(answered(profile_call(request), self._configuration))

    async def get_profile(self, request_id: str) -> Profiles:
        """See ``Client.get_profile``."""
        return await self._run(answered(get_profile_call(request_id), self._configuration))

    async def wait_for_profile(self, request_id: str, timeout_s: float = PROFILE_TIMEOUT_S) -> Profiles:
        """See ``Client.wait_for_profile``."""
        return await self._run(profiled(request_id, timeout_s, self._configuration))

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[Result]) -> Result:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = next(flow)
                else:
                    step = flow.send(await self._sent(step))
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _sent(self, step: Try) -> Outcome:
        content = bytearray()
        try:
            async with self._http.stream(
                step.method, step.url, headers=step.headers, content=step.content, timeout=step.timeout
            ) as response:
                async for chunk in response.aiter_bytes():
                    _check_due(step, content)
                    content += chunk
        except httpx.HTTPError as error:
            return error
        return Received(response.status_code, response.headers, bytes(content))


def _check_due(step: Try, received: bytearray) -> None:
    """Gives up an answer that trickles; one that comes whole is taken, however late."""
    if received and time.monotonic() >= step.due:
        raise httpx.ReadTimeout("the answer has begun, but does not end")
