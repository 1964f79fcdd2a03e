"""The Prefer header, as callers and proxies write it."""

import pytest
from fastapi import Request

from service.api.prefer import wait_of


def asked(*lines: str) -> Request:
    return Request({"type": "http", "headers": [(b"prefer", line.encode("latin-1")) for line in lines]})


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ((), None),
        (("wait=10",), None),
        (("return=minimal, handling=lenient",), None),
        (("respond-asynchronously",), None),
        (('"respond-async"',), None),
        (("respond-async",), 0.0),
        (("Respond-Async",), 0.0),
        ((" , respond-async;why=not , ",), 0.0),
        (("respond-async, wait=10",), 10.0),
        (("wait=10", "respond-async"), 10.0),
        (('respond-async,wait = "7"',), 7.0),
        (("respond-async, wait=3, wait=9",), 3.0),
        (("respond-async, wait=-1, wait=1e3, wait=\xb2, wait=9999999999",), 0.0),
    ],
)
def test_who_would_rather_come_back_than_wait(lines: tuple[str, ...], seconds: float | None) -> None:
    assert wait_of(asked(*lines)) == seconds
