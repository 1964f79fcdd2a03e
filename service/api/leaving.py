"""Clients that hang up before they are answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.domain.errors import PlanCancelled
from service.domain.waiting import Asker


@asynccontextmanager
async def waiting_client(request: Request) -> AsyncIterator[Asker]:
    """The client of a request, whose body has been received; it leaves when it hangs up.

    Raises:
        ClientDisconnect: it did, and its plan was cancelled.
    """
    client = Asker()
    watch = asyncio.create_task(_tell(request, client))
    try:
        yield client
    except PlanCancelled as error:
        raise ClientDisconnect from error
    finally:
        watch.cancel()


async def _tell(request: Request, client: Asker) -> None:
    # After the body nothing else comes.
    if (await request.receive())["type"] == "http.disconnect":
        client.leave()
