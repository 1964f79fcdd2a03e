"""Traces go to a real receiver of OTLP over HTTP, whole, from all processes that had a part in a request."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from service.telemetry import tracing
from tests.api.processes import clean_environment, wait_for
from tests.api.support import request
from tests.telemetry.rules import ROOT
from tests.telemetry.served import serving

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Receiver:
    """Spans that came in, and the names of the services that sent them."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver of OTLP over HTTP."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in sent.resource_spans:
                found.services |= {
                    each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                }
                found.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def test_a_plan_is_one_trace_across_its_processes(database_url: str, tmp_path: Path) -> None:
    with (
        receiving() as found,
        serving(
            tmp_path / "log",
            DATABASE_URL=database_url,
            OTEL_EXPORTER_OTLP_ENDPOINT=found.endpoint,
            OTEL_BSP_SCHEDULE_DELAY="100",
        ) as served,
    ):
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        assert served.client.post("/plan", json=request(), headers=headers).json()["saved"] is True
        wait_for(lambda: bool(found.named("POST /plan") and found.named("planning process: plan")))
        served.stop()
        log = served.log.read_text()
    (asked,) = found.named("POST /plan")
    (planned,) = found.named("planning process: plan")
    assert (asked.trace_id.hex(), asked.parent_span_id.hex()) == (TRACE, CALLER)
    assert (planned.trace_id, planned.parent_span_id) == (asked.trace_id, asked.span_id)
    assert asked.start_time_unix_nano <= planned.start_time_unix_nano
    assert planned.end_time_unix_nano <= asked.end_time_unix_nano
    statements = [span for span in found.spans if span.parent_span_id == asked.span_id and span.name == "INSERT"]
    assert statements
    assert found.services == {"shardwright"}
    probes = {"GET /healthz", "GET /readyz", "GET /metrics"}
    assert not probes & {span.name for span in found.spans}
    assert {span.trace_id for span in found.spans} == {asked.trace_id}
    assert f'"trace_id": "{TRACE}"' in log
    assert "DependencyConflict" not in log


def test_without_an_endpoint_what_makes_spans_is_not_imported() -> None:
    told = "import sys, service.wiring; from service.telemetry import tracing; assert tracing.start() is None"
    # A dependency imports the API, which does nothing by itself.
    parts = tuple(f"opentelemetry.{part}" for part in ("sdk", "exporter", "instrumentation", "proto"))
    listed = f"print([name for name in sys.modules if name.startswith({parts})])"
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; {listed}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("environment", "configured"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_the_standard_variables_turn_it_on_and_off(
    environment: dict[str, str], configured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_configured() is configured


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "shardwright"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=eu"}, "shardwright"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=planner,deployment.environment=eu"}, "planner"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=planner", "OTEL_SERVICE_NAME": "placer"}, "placer"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=planner", "OTEL_SERVICE_NAME": ""}, "planner"),
    ],
)
def test_a_service_is_named_as_the_standard_says(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        for variable, value in {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}.items():
            monkeypatch.setenv(variable, value)
        traces = tracing.start()
        assert traces is not None
        with traces.span("a test", {}):
            pass
        traces.end()
    assert receiver.services == {name}
    assert len(receiver.named("a test")) == 1
