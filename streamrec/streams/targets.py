"""Trackers of experiments that take the figures of a stream; none of them is imported here.

A tracker is known by the module of its type, or by a method that it has.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamrec.config.arguments import kind_of
from streamrec.errors import ConfigError
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

Write: TypeAlias = "Callable[[int, Mapping[str, float]], object]"
"""A function that takes the step, and the figures by name."""

PREFIX = "streamrec/"
"""The folder of our figures, among those of the training job."""


def _nothing() -> None:
    pass


class Tracker(NamedTuple):
    """A tracker as a function, and the call that ends its use."""

    write: Write
    end: Callable[[], object] = _nothing


def target_of(target: Any, labels: Mapping[str, str]) -> Tracker:
    """Return how to write to a tracker.

    Args:
        target: The tracker; ``None``: the figures are written nowhere.
        labels: The names and values that tell this rank from others, for Prometheus.

    Raises:
        ConfigError: It is of no kind that is known, or has no run yet.
    """
    library = _library_of(target)
    if target is None:
        return Tracker(lambda *_: None)
    if library == "wandb":
        return _wandb(target)
    if library == "mlflow":
        return _mlflow(target)
    if isinstance(target, str):
        return _pushgateway(target, labels)
    if hasattr(target, "add_scalar"):
        return _tensorboard(target)
    if hasattr(target, "log_metrics"):
        return Tracker(lambda step, values: target.log_metrics(_ours(values), step=step))
    if hasattr(target, "register") and hasattr(target, "unregister"):
        return _registry(target, labels)
    if callable(target):
        return Tracker(lambda step, values: target(step, dict(values)))
    raise ConfigError(
        f"report_to cannot write to {kind_of(target)}; give a SummaryWriter of TensorBoard, a run "
        "of Weights & Biases or MLflow, a CollectorRegistry of Prometheus, the URL of a "
        "Pushgateway, or a function f(step, values)"
    )


def _library_of(target: Any) -> str:
    name = target.__name__ if isinstance(target, ModuleType) else type(target).__module__
    return name.partition(".")[0]


def _ours(values: Mapping[str, float]) -> dict[str, float]:
    return {PREFIX + name: value for name, value in values.items()}


def _tensorboard(writer: Any) -> Tracker:
    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in _ours(values).items():
            writer.add_scalar(name, value, step)

    return Tracker(write)


def _wandb(target: Any) -> Tracker:
    run = target.run if isinstance(target, ModuleType) else target
    if run is None:
        raise ConfigError("Weights & Biases has no run yet; call wandb.init() before report_to")
    run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
    # Without a commit: that would count a step of the run, and drop what the job logs with its own.
    return Tracker(lambda step, values: run.log(_ours({**values, "step": step}), commit=False))


def _mlflow(target: Any) -> Tracker:
    mlflow = sys.modules["mlflow"]
    run = mlflow.active_run() if isinstance(target, ModuleType) else target
    if run is None:
        raise ConfigError("MLflow has no active run; call mlflow.start_run() before report_to")
    # By its name: the active run is one of the thread, and this is called in another.
    name = run.info.run_id
    return Tracker(lambda step, values: mlflow.log_metrics(_ours(values), step=step, run_id=name))


class _Gauges:
    """The latest figures as a collector of Prometheus.

    Args:
        labels: The labels of each gauge.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._values: Mapping[str, float] = {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._values = {**values, "step": step}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for name, value in self._values.items():
            text = f"{name} of the last period, as stream.report_to describes it."
            gauge = GaugeMetricFamily(
                f"streamrec_stream_{name.replace('/', '_')}", text, labels=list(self._labels)
            )
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge


def _registry(registry: Any, labels: Mapping[str, str]) -> Tracker:
    gauges = _Gauges(labels)
    registry.register(gauges)
    return Tracker(gauges.write, lambda: registry.unregister(gauges))


def _pushgateway(url: str, labels: Mapping[str, str]) -> Tracker:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"report_to cannot write to {masked(url)!r}; give the URL of a Pushgateway, such as "
            "'http://pushgateway:9091'"
        )
    from prometheus_client import CollectorRegistry, push_to_gateway

    registry, gauges = CollectorRegistry(), _Gauges({})
    registry.register(gauges)

    def write(step: int, values: Mapping[str, float]) -> None:
        gauges.write(step, values)
        push_to_gateway(url, job="streamrec", registry=registry, grouping_key=dict(labels))

    return Tracker(write)
