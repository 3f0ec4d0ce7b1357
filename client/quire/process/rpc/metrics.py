"""What a server counts of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class CallMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "quire_rpc_calls", "Calls that ended, by method and gRPC status.", ["method", "status"], registry=registry
        )
        self._seconds = Counter("quire_rpc_seconds", "What calls took altogether.", ["method"], registry=registry)

    def call_ended(self, method: str, status: str, seconds: float) -> None:
        self._calls.labels(method, status).inc()
        self._seconds.labels(method).inc(seconds)


class GaugeCollector(Collector):
    """Gauges that are looked at when they are asked for."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, what, value in self._gauges():
            yield GaugeMetricFamily(name, what, value=float(value))
