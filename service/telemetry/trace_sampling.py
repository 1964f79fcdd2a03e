"""Which spans are made. Imported only where traces are wanted, see ``tracing``."""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes


class OfRequests(Sampler):
    """Leaves out statements that no request asked for, such as those of polls and scrapes: traces of one span each."""

    def __init__(self, sampler: Sampler) -> None:
        """Leaves all else to the sampler that the environment names."""
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Whether a span is made."""
        if kind is SpanKind.CLIENT and not get_current_span(parent_context).get_span_context().is_valid:
            return SamplingResult(Decision.DROP)
        return self._sampler.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        """What it is."""
        return f"OfRequests{{{self._sampler.get_description()}}}"
