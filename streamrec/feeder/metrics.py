"""A feeder's statistics for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from streamrec.feeder.server import Feeder

__all__ = ["FeederCollector"]


class FeederCollector(Collector):
    """A collector that reads a feeder's statistics when they are scraped: nothing is counted twice.

    Args:
        feeder: The feeder.
    """

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        now = self._feeder.statistics
        is_ready = self._feeder.obstacle is None
        yield _gauge("ready", "1 while a new client could be served", is_ready)
        yield _gauge("connections", "clients now", self._feeder.admission.clients)
        yield _gauge(
            "handshakes", "connections that are no clients yet", self._feeder.admission.handshakes
        )
        total = "connections since the start"
        yield CounterMetricFamily(_name("connections_opened"), total, now.connections_total)
        yield _counter("batches", "batches sent", "dataset", now.batches)
        yield _counter("records", "records sent", "dataset", now.records)
        yield _counter("sent_bytes", "bytes of batches sent, as frames", "dataset", now.bytes)
        dropped = "connections that the feeder ended: no room, or nothing came from them"
        yield _counter("dropped", dropped, "reason", now.dropped)
        yield _counter("faults", "errors sent to clients", "type", now.faults)
        waited = (
            "seconds that connections waited: for the client's credit, for data, for the socket"
        )
        yield _counter("wait_seconds", waited, "reason", now.waited)


def _name(name: str) -> str:
    return f"streamrec_feeder_{name}"


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_name(name), text, value)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(_name(name), text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
