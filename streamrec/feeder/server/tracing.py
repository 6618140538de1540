"""OpenTelemetry spans of subscriptions. Where traces are off nothing of it is imported."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError, FeederDraining, FeederLost, StreamrecError
from streamrec.flow.cleanup import finish
from streamrec.suggestions import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from streamrec.feeder.server.statistics import Subscription

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""The standard variables that name a collector."""
TIMEOUT = 5.0
"""Seconds for one export: a collector that is down must not hold up the end of the daemon."""

log = logging.getLogger("streamrec.feeder")


class Traces:
    """The spans of subscriptions.

    Args:
        tracer: Makes the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def subscribed(self, subscription: Subscription) -> Iterator[None]:
        """Make a span of a subscription, and one below it until its first batch is sent."""
        from opentelemetry.trace import set_span_in_context

        whole = self._tracer.start_span("subscription", attributes=_facts(subscription))
        below = set_span_in_context(whole)
        # The wait for the first batch is what a slow start looks like, so it has a span of its own.
        first = self._tracer.start_span("first batch", below, attributes=_facts(subscription))

        def end_first() -> None:
            first.set_attributes(_measures_of(subscription))
            first.end()

        subscription.on_first_batch = end_first
        try:
            yield
        except Exception as error:
            _note(whole, error)
            raise
        finally:
            if not subscription.batches:
                end_first()
            whole.set_attributes(_counts_of(subscription) | _measures_of(subscription))
            whole.end()


@asynccontextmanager
async def exporting(collector: str | None) -> AsyncIterator[Traces | None]:
    """Send spans to a collector while the block runs; ``None`` where traces are off.

    Args:
        collector: The address of a collector that speaks OTLP over HTTP; ``None``: the one that
            OpenTelemetry's own variables name, if they do.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if collector is None and not _is_wanted(os.environ):
        yield None
        return
    try:
        provider = await asyncio.to_thread(_provider, collector)
    except ImportError:
        text = f"traces need OpenTelemetry's SDK and exporter; {install('otel')}"
        if collector is not None:
            raise ConfigError(text) from None
        log.warning("%s: the environment names a collector, but no span is sent", text)
        yield None
        return
    try:
        yield Traces(provider.get_tracer("streamrec"))
    finally:
        # In a thread: it sends what is left, and waits for the collector.
        await finish(asyncio.to_thread(provider.shutdown))


def _is_wanted(variables: Mapping[str, str]) -> bool:
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return variables.get("OTEL_TRACES_EXPORTER") != "none" and any(map(variables.get, ENDPOINTS))


def _provider(collector: str | None) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from streamrec import __version__

    endpoint = None if collector is None else f"{collector.rstrip('/')}/v1/traces"
    name = os.environ.get("OTEL_SERVICE_NAME") or "streamrec-feeder"
    resource = Resource.create({"service.name": name, "service.version": __version__})
    # The daemon shuts it down itself: a handler at exit would wait for a collector once more.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _facts(subscription: Subscription) -> dict[str, Any]:
    return {
        "streamrec.dataset": subscription.dataset,
        "streamrec.rank": subscription.rank,
        "streamrec.world_size": subscription.world_size,
        "client.address": subscription.peer or "local",
    }


def _counts_of(subscription: Subscription) -> dict[str, Any]:
    names = ("step", "batches", "records", "bytes")
    return {f"streamrec.{name}": getattr(subscription, name) for name in names}


def _measures_of(subscription: Subscription) -> dict[str, Any]:
    measures = subscription.measures()
    fetched = {f"streamrec.fetch.{name}": n for name, n in measures.get("fetch", {}).items()}
    waits = {f"streamrec.wait.{stage}": s for stage, s in measures.get("waits", {}).items()}
    return fetched | waits


def _note(span: Span, error: Exception) -> None:
    """Note why a subscription has failed; a client that left, or was sent away, does not count."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__name__)
    if isinstance(error, FeederLost | FeederDraining):
        return
    # The text of another error may hold anything.
    text = str(error) if isinstance(error, StreamrecError) else type(error).__name__
    span.set_status(Status(StatusCode.ERROR, text))
