"""Snapshots to Prometheus text: the table of meters is walked at each scrape.

Nothing is counted here and nothing is kept between scrapes; the counts are plain integers. The library is used for
what it is good at: escaping, ordering and the two exposition formats. A whole page of a large gate takes tens of
milliseconds, so it is rendered in pieces, and the loop serves streams between two of them.
"""

import asyncio
import platform
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import version
from math import isinf
from typing import Any, Final, NamedTuple

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from millgate.core.snapshot import LittleSnapshot, Snapshot
from millgate.instruments.littles_law import total
from millgate.observe.build import build_kind
from millgate.observe.door import DoorSnapshot, ServiceSnapshot
from millgate.observe.histogram import Histogram
from millgate.observe.meters import LABELS, METERS, PREFIX, MetricDefinition, MetricKind, Scope
from millgate.observe.traffic import MOST_ENGINES, MOST_LANES, MOST_TENANTS, OTHER
from millgate.observe.traffic_records import TrafficSnapshot

_END = b"# EOF\n"
"""Ends a page of OpenMetrics, and every piece of one."""
_MOST_ENDED = 4096
"""Samples of one metric that are kept of processes that have ended: four times as many as the largest has (INV-5)."""
_ENGINES_OWN = "seen_preemptions"  # every process reads the same, and the next one knows it as well
_MOST_IN_A_PIECE = 128
"""Samples that are rendered without a pause: about a millisecond."""


_APART: Final = {
    Scope.LANE_TRAFFIC: ("lane", MOST_LANES),
    Scope.ENGINE_TRAFFIC: ("engine", MOST_ENGINES),
    Scope.TENANT: ("tenant", MOST_TENANTS),
}
_LABELS_APART: Final = {PREFIX + meter.name: _APART[meter.scope] for meter in METERS if meter.scope in _APART}
"""By metric: the label of which only so many values are told apart."""

Labels = tuple[tuple[str, str], ...]


class Records(NamedTuple):
    """Everything that one scrape reads; None for what there is not (a gate without an HTTP door)."""

    snapshot: Snapshot
    threads: int
    door: DoorSnapshot | None
    service: ServiceSnapshot | None
    traffic: TrafficSnapshot | None = None


class Exposition:
    """Renders the gate's metrics; every call reads new records."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        door: Callable[[], DoorSnapshot] | None = None,
        service: Callable[[], ServiceSnapshot] | None = None,
        traffic: Callable[[], TrafficSnapshot] | None = None,
    ) -> None:
        self.read: Callable[[], Records] = lambda: Records(
            snapshot(),
            threading.active_count(),
            door() if door else None,
            service() if service else None,
            traffic() if traffic else None,
        )
        self.ended = EndedCounts()
        self.processes: Collector = PROCESS_COLLECTOR
        self._others: list[Collector] = []
        # Looking the version up reads files.
        self._build = {
            "version": version("millgate"),
            "python": platform.python_version(),
            "build": build_kind(),
        }

    def add(self, collector: Collector) -> None:
        """Show these metrics too."""
        self._others.append(collector)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type: OpenMetrics where the Accept header asks for it, else classic."""
        pieces, content_type = self._pieces(accept)
        return _page(list(pieces), content_type), content_type

    async def render_in_pieces(self, accept: str = "") -> tuple[bytes, str]:
        """Return the same, of the records as they are at the first step, and let the loop run after every piece."""
        pieces, content_type = self._pieces(accept)
        rendered = []
        for piece in pieces:
            rendered.append(piece)
            await asyncio.sleep(0)
        return _page(rendered, content_type), content_type

    def _pieces(self, accept: str) -> tuple[Iterator[bytes], str]:
        encode, content_type = choose_encoder(accept)
        return self._encoded(encode), content_type

    def _encoded(self, encode: Callable[[CollectorRegistry], bytes]) -> Iterator[bytes]:
        """Yield the records as one empty piece, because reading them takes its time, then the page piece by piece."""
        records = self.read()
        ended = self.ended.of({OTHER, *(engine.name for engine in records.snapshot.engines)})
        yield b""
        snapshot = records.snapshot
        first = [*(lane.name for lane in snapshot.lanes), *(engine.name for engine in snapshot.engines)]
        families = (_bounded(each, first) for each in ended.onto(self._families(records)))
        for batch in _batches(families):
            yield encode(_Batch(batch))

    def _families(self, records: Records) -> Iterator[Metric]:
        yield InfoMetricFamily(
            PREFIX + "build",
            "What runs: the version of Millgate and of Python, and whether it is compiled.",
            value=self._build,
        )
        for meter in METERS:
            yield family(meter, records)
        yield from self.processes.collect()
        for other in self._others:
            yield from other.collect()


class EndedCounts:
    """What processes of this gate have counted that serve no more: counters go on from there, and never fall."""

    def __init__(self) -> None:
        self._families: dict[str, dict[tuple[str, Labels], float]] = {}

    def add(self, records: Records) -> None:
        """Keep the counts of a process that has ended."""
        for meter in METERS:
            if meter.kind is MetricKind.GAUGE or meter.field == _ENGINES_OWN:
                continue
            each = family(meter, records)
            kept = self._families.setdefault(each.name, {})
            for sample in each.samples:
                key = sample.name, tuple(sample.labels.items())
                if key in kept or len(kept) < _MOST_ENDED:
                    kept[key] = kept.get(key, 0.0) + sample.value

    def of(self, engines: Collection[str]) -> "EndedCounts":
        """Return the counts as they are now, and forget those of engines that are not among these: pods come with new names."""
        other = EndedCounts()
        for name, kept in self._families.items():
            there = {key: kept[key] for key in kept if dict(key[1]).get("engine", OTHER) in engines}
            self._families[name], other._families[name] = there, dict(there)
        return other

    def onto(self, families: Iterator[Metric]) -> Iterator[Metric]:
        """Add what is kept to these families, with the labels that only a process had which has ended."""
        for each in families:
            kept = dict(self._families.get(each.name, {}))
            if kept:
                each.samples = [
                    sample._replace(
                        value=sample.value + kept.pop((sample.name, tuple(sample.labels.items())), 0.0)
                    )
                    for sample in each.samples
                ]
                each.samples += [Sample(name, dict(labels), value) for (name, labels), value in kept.items()]
            yield each


class _Batch(CollectorRegistry):
    """Families that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _batches(families: Iterator[Metric]) -> Iterator[list[Metric]]:
    """Gather families until they have enough samples for a piece; one alone may have more."""
    batch: list[Metric] = []
    samples = 0
    for each in families:
        if batch and samples + len(each.samples) > _MOST_IN_A_PIECE:
            yield batch
            batch, samples = [], 0
        batch.append(each)
        samples += len(each.samples)
    if batch:
        yield batch


def _page(pieces: list[bytes], content_type: str) -> bytes:
    if not content_type.startswith("application/openmetrics-text"):
        return b"".join(pieces)
    return b"".join(piece.removesuffix(_END) for piece in pieces) + _END


def family(meter: MetricDefinition, records: Records) -> Metric:
    """Return one metric with its samples; a field that is None or infinite has none."""
    name = PREFIX + meter.name
    if meter.kind is MetricKind.HISTOGRAM:
        return _histogram(meter, name, records)
    build = CounterMetricFamily if meter.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = build(name, meter.help, labels=meter.labels)
    for labels, record in _of_scope(meter.scope, records):
        value = _read(record, meter.field)
        if meter.split is not None:
            # An alarm counts 1.
            pairs = value if meter.label != "signal" else ((each.signal, 1) for each in value)
            counts: dict[Any, int] = dict(pairs)
            for word in meter.split:
                metric.add_metric([*labels, word.value], float(counts.get(word, 0)))
        elif value is not None and not isinf(value):
            metric.add_metric(labels, float(value))
    return metric


def _bounded(each: Metric, first: Sequence[str]) -> Metric:
    """Return the metric with as many labels as one process has: several, and those that have ended, may know others apart.

    Those that are `first` stay, then those that come first; the rest adds up as `other`.
    """
    label, most = _LABELS_APART.get(each.name, ("", 0))
    values = dict.fromkeys(sample.labels[label] for sample in each.samples) if label else {}
    values.pop(OTHER, None)
    if len(values) <= most:
        return each
    place = {name: at for at, name in enumerate(first)}
    shown = sorted(values, key=lambda value: place.get(value, len(place)))[:most]
    found: dict[tuple[str, Labels], float] = {}
    for sample in each.samples:
        kept = sample.labels[label] in shown
        key = sample.name, tuple((sample.labels if kept else {**sample.labels, label: OTHER}).items())
        found[key] = found.get(key, 0.0) + sample.value
    each.samples = [Sample(name, dict(labels), value) for (name, labels), value in found.items()]
    return each


def _histogram(meter: MetricDefinition, name: str, records: Records) -> Metric:
    metric = HistogramMetricFamily(name, meter.help, labels=meter.labels)
    for labels, record in _of_scope(meter.scope, records):
        histogram: Histogram = _read(record, meter.field)
        metric.add_metric(labels, list(_cumulative(histogram)), histogram.total)
    return metric


def _cumulative(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Yield each bound with the samples up to it, as the exposition formats count."""
    so_far = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        so_far += count
        yield "+Inf" if isinf(bound) else repr(bound), float(so_far)


def _read(record: Any, path: str) -> Any:
    """Return what the dotted path leads to, None where something on the way is."""
    for name in path.split("."):
        if record is None:
            return None
        record = getattr(record, name)
    return record


def _of_scope(scope: Scope, records: Records) -> list[tuple[list[str], Any]]:
    """Return the records that a metric of this scope is read from, each with its label if it has one."""
    snapshot, traffic = records.snapshot, records.traffic
    if scope is Scope.POOL:
        return [([pool.engines[0]], pool) for pool in snapshot.pools if pool.engines]
    if scope is Scope.STAY:
        return [
            ([lane, *part], reading) for lane, little in _stays(snapshot) for part, reading in _parts(little)
        ]
    if scope is Scope.STAY_TOTAL:
        return _parts(snapshot.little)
    read: dict[Scope, Any] = {
        Scope.LANE: snapshot.lanes,
        Scope.ENGINE: snapshot.engines,
        Scope.QUOTA: snapshot.quotas,
        Scope.RETRIES: snapshot.retries,
        Scope.PROCESS: records,
        Scope.GATE: snapshot,
        Scope.DOOR: records.door,
        Scope.SERVICE: records.service,
    }
    if traffic is not None:
        # An engine that has gone leaves the page at once, its distributions at the next change of engines.
        known = {OTHER, *(engine.name for engine in snapshot.engines)}
        read[Scope.ENGINE_TRAFFIC] = tuple(each for each in traffic.engines if each.name in known)
        known = {OTHER, *(lane.name for lane in snapshot.lanes)}
        read[Scope.LANE_TRAFFIC] = tuple(each for each in traffic.lanes if each.name in known)
        read[Scope.TENANT] = traffic.tenants
    found = read.get(scope)
    if found is None:
        return []
    return [([each.name], each) for each in found] if scope in LABELS else [([], found)]


def _stays(snapshot: Snapshot) -> list[tuple[str, LittleSnapshot]]:
    """Return Little's law of the first lanes, and of all others together: a page keeps its bound of series."""
    lanes = snapshot.lanes
    apart = [(lane.name, lane.little) for lane in lanes[:MOST_LANES]]
    others = [lane.little for lane in lanes[MOST_LANES:]]
    return [*apart, (OTHER, total(others))] if others else apart


def _parts(little: LittleSnapshot) -> list[tuple[list[str], Any]]:
    return [(["whole"], little.whole), (["queue"], little.queue), (["engine"], little.engine)]


class HeptaminiCollector(Collector):
    """Renders the line door's numbers as `heptamini_*`, the five metrics of the published daemon, for dashboards that know them.

    `read` returns permits out and their cap over all doors, the door's own starts and yields, and whether it is ready; None where
    there is no such door.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the three gauges and the two counters."""
        if (numbers := self._read()) is None:
            return
        yield GaugeMetricFamily("heptamini_backend_inflight", "Permits out.", value=numbers.inflight)
        yield GaugeMetricFamily("heptamini_backend_cap", "Most permits at once.", value=numbers.cap)
        yield GaugeMetricFamily("heptamini_server_health", "1 ready, 0 saturated.", value=numbers.health)
        yield CounterMetricFamily("heptamini_executed", "Jobs started.", value=numbers.executed)
        yield CounterMetricFamily("heptamini_yielded", "Jobs refused.", value=numbers.yielded)
