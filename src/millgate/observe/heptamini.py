"""The five metrics of the published line daemon, by their own names, for dashboards that know them."""

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class LineNumbers(Protocol):
    """What the line door tells: permits out and their cap over all doors, its own starts and yields."""

    @property
    def inflight(self) -> int:
        """Permits out."""

    @property
    def cap(self) -> int:
        """Most permits at once."""

    @property
    def executed(self) -> int:
        """Jobs started."""

    @property
    def yielded(self) -> int:
        """Jobs refused."""

    @property
    def health(self) -> int:
        """1 ready, 0 saturated."""


class HeptaminiCollector(Collector):
    """Renders the line door's numbers as `heptamini_*`."""

    def __init__(self, read: Callable[[], LineNumbers]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the three gauges and the two counters."""
        numbers = self._read()
        yield GaugeMetricFamily("heptamini_backend_inflight", "Permits out.", value=numbers.inflight)
        yield GaugeMetricFamily("heptamini_backend_cap", "Most permits at once.", value=numbers.cap)
        yield GaugeMetricFamily("heptamini_server_health", "1 ready, 0 saturated.", value=numbers.health)
        yield CounterMetricFamily("heptamini_executed", "Jobs started.", value=numbers.executed)
        yield CounterMetricFamily("heptamini_yielded", "Jobs refused.", value=numbers.yielded)
