"""Spans for OpenTelemetry, where the standard variables of its exporter are set; otherwise nothing of it is imported.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) turns traces on, ``OTEL_SDK_DISABLED=true`` off. Whatever
else OpenTelemetry reads from the environment (sampler, headers, service name, batches) holds as well.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SERVICE = "shardwright"
# Probes and scrapes would be most of all traces.
_UNTRACED = "healthz,readyz,metrics"

Carrier = Mapping[str, str]
"""A span's identity on its way to another process: W3C's ``traceparent`` and ``tracestate``; empty for none."""


class Tracing:
    """Makes spans in this process and sends them away in a thread of its own."""

    def __init__(self, provider: "TracerProvider") -> None:
        """Uses a provider that has an exporter."""
        self._provider = provider

    def watch_database(self) -> None:
        """Makes a span for each statement of connections that are opened from now on; parameters are left out."""
        from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor

        PsycopgInstrumentor().instrument(tracer_provider=self._provider)

    def watch_requests(self, app: "FastAPI") -> None:
        """Makes a span for each request to an application, the child of the caller's where it has one."""
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

        FastAPIInstrumentor.instrument_app(
            app, tracer_provider=self._provider, excluded_urls=_UNTRACED, exclude_spans=["receive", "send"]
        )

    @contextmanager
    def span(self, name: str, parent: Carrier) -> Iterator[None]:
        """A span around what is done, the child of one of another process."""
        from opentelemetry.propagate import extract

        tracer = self._provider.get_tracer(_SERVICE)
        with tracer.start_as_current_span(name, context=extract(dict(parent))):
            yield

    def end(self) -> None:
        """Sends what was not sent yet, and stops watching."""
        from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor

        if PsycopgInstrumentor().is_instrumented_by_opentelemetry:
            PsycopgInstrumentor().uninstrument()
        self._provider.shutdown()


def is_configured() -> bool:
    """Whether the environment asks for traces."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not off and any(os.environ.get(name) for name in _ENDPOINTS)


def start() -> Tracing | None:
    """Tracing in this process; None where the environment does not ask for it."""
    if not is_configured():
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from service.telemetry.trace_sampling import OfRequests

    # From OTEL_SERVICE_NAME, else from OTEL_RESOURCE_ATTRIBUTES; what is passed to a resource goes before both.
    given = OTELResourceDetector().detect().attributes.get(SERVICE_NAME)
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: given or _SERVICE}))
    provider.sampler = OfRequests(provider.sampler)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def current_span() -> Carrier:
    """The span that is being made, for another process; empty where there is none."""
    if not is_configured():
        return {}
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def current_trace_id() -> str:
    """Id of the trace that the current span is of, 32 hexadecimal digits; empty where there is none."""
    _, _, rest = current_span().get("traceparent", "").partition("-")
    return rest.partition("-")[0]


def span_in(tracing: Tracing | None, name: str, parent: Carrier) -> AbstractContextManager[None]:
    """A span where there are tracing and a parent, else nothing."""
    return tracing.span(name, parent) if tracing and parent else nullcontext()
