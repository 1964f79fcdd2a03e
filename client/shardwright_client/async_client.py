"""The asynchronous client: what sends a flow's requests and sleeps through its waits, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
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


class AsyncClient(Configured):
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
        self._http = http_client(lambda: httpx.AsyncClient(headers=self._configuration.headers(), transport=transport))

    async def plan(self, request: PlanRequest | Json, *, idempotency_key: str | None = None) -> Plan:
        """See ``Client.plan``."""
        return await self._run(answered(plan_call(request, idempotency_key), self._configuration))

    async def estimate(
        self,
        request: ShardsEstimateRequest | StoredEstimateRequest | Json,
        *,
        idempotency_key: str | None = None,
    ) -> Estimate:
        """See ``Client.estimate``."""
        return await self._run(answered(estimate_call(request, idempotency_key), self._configuration))

    async def get_plan(self, plan_id: str) -> Plan:
        """See ``Client.get_plan``."""
        return await self._run(answered(get_plan_call(plan_id), self._configuration))

    async def list_plans(self, page_size: int = PAGE_SIZE) -> AsyncIterator[ListedPlan]:
        """See ``Client.list_plans``; ``async for`` goes through them."""
        cursor = None
        while True:
            page = await self._run(answered(list_plans_call(page_size, cursor), self._configuration))
            for plan in page.plans:
                yield plan
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_plan(self, plan_id: str) -> None:
        """See ``Client.delete_plan``."""
        await self._run(answered(delete_plan_call(plan_id), self._configuration))

    async def observe(
        self, plan_id: str, request: ObservationsRequest | Json, *, idempotency_key: str | None = None
    ) -> PostedObservations:
        """See ``Client.observe``."""
        return await self._run(answered(observe_call(plan_id, request, idempotency_key), self._configuration))

    async def profile(self, request: ProfilesRequest | Json, *, idempotency_key: str | None = None) -> Profiles:
        """See ``Client.profile``."""
        return await self._run(answered(profile_call(request, idempotency_key), self._configuration))

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
        check_open(self._http)
        content = bytearray()
        try:
            async with self._http.stream(
                step.method, step.url, headers=step.headers, content=step.content, timeout=step.timeout
            ) as response:
                async for chunk in response.aiter_bytes():
                    step.check_due(content)
                    content += chunk
        except httpx.HTTPError as error:
            return error
        return Received(response.status_code, response.headers, bytes(content))
