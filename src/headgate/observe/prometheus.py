"""Snapshots to Prometheus text: a collector that walks the table of meters each time somebody scrapes.

Nothing is counted here and nothing is kept between scrapes; the counts are plain integers of the core. The
library is used for what it is good at: escaping, ordering and the two exposition formats.
"""

import platform
from collections.abc import Callable, Iterator
from functools import reduce
from importlib.metadata import version
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headgate.core.snapshot import Snapshot
from headgate.observe.door import DoorSnapshot, ServiceSnapshot
from headgate.observe.meters import METERS, PREFIX, Kind, Meter, Scope
from headgate.observe.process import ProcessSnapshot, read_process


class Records(NamedTuple):
    """Everything that one scrape reads; None for what there is not (a gate without an HTTP door)."""

    snapshot: Snapshot
    process: ProcessSnapshot
    door: DoorSnapshot | None
    service: ServiceSnapshot | None


class Exposition:
    """Renders the gate's metrics; every call reads new records."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        door: Callable[[], DoorSnapshot] | None = None,
        service: Callable[[], ServiceSnapshot] | None = None,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(
            _RecordsCollector(
                lambda: Records(
                    snapshot(),
                    read_process(),
                    door() if door else None,
                    service() if service else None,
                )
            )
        )

    def add(self, collector: Collector) -> None:
        """Show these metrics too."""
        self._registry.register(collector)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type: OpenMetrics where the Accept header asks for it, else classic."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _RecordsCollector(Collector):
    def __init__(self, read: Callable[[], Records]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the table, with the samples of this instant."""
        records = self._read()
        yield InfoMetricFamily(
            PREFIX + "build",
            "What runs: the version of Headgate and of Python.",
            value={"version": version("headgate"), "python": platform.python_version()},
        )
        for meter in METERS:
            yield family(meter, records)


def family(meter: Meter, records: Records) -> Metric:
    """Return one metric with its samples; a field that is None has none."""
    build = CounterMetricFamily if meter.kind is Kind.COUNTER else GaugeMetricFamily
    metric = build(PREFIX + meter.name, meter.help, labels=meter.labels)
    for labels, record in _of_scope(meter.scope, records):
        value = reduce(getattr, meter.field.split("."), record)
        if meter.split is not None:
            counts = dict(value)
            for word in meter.split:
                metric.add_metric([*labels, word.value], float(counts.get(word, 0)))
        elif value is not None:
            metric.add_metric(labels, float(value))
    return metric


def _of_scope(scope: Scope, records: Records) -> list[tuple[list[str], Any]]:
    snapshot = records.snapshot
    if scope is Scope.LANE:
        return [([lane.name], lane) for lane in snapshot.lanes]
    if scope is Scope.ENGINE:
        return [([engine.name], engine) for engine in snapshot.engines]
    if scope is Scope.DOOR:
        return [([], records.door)] if records.door else []
    if scope is Scope.SERVICE:
        return [([], records.service)] if records.service else []
    alone = {Scope.RETRIES: snapshot.retries, Scope.PROCESS: records.process, Scope.GATE: snapshot}
    return [([], alone[scope])]
