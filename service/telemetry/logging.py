"""Structured logs: one JSON object a line, each with the id of the request that it belongs to."""

import json
import logging
import sys
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from service.telemetry.tracing import current_trace_id

_MAX_ID = 128

_request_id: ContextVar[str] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """Id of the request being handled; empty outside of one."""
    return _request_id.get()


def begin_request(given: str | None) -> str:
    """Makes ``given`` the current request's id, or a new one where it is missing or not sane.

    Sane is 1 to 128 visible ASCII characters.
    """
    sane = given is not None and 0 < len(given) <= _MAX_ID and all("!" <= character <= "~" for character in given)
    chosen = given if sane and given is not None else uuid.uuid4().hex
    _request_id.set(chosen)
    return chosen


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; ``extra={"fields": {...}}`` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current_request_id():
            line["request_id"] = current_request_id()
        trace_id = current_trace_id()
        if trace_id:
            line["trace_id"] = trace_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Sends all logs of this process to a stream as JSON lines, in place of what was configured before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Alembic announces its context for every look at the schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)
