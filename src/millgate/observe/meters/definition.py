"""What a metric is: its name, kind, labels, help, and the snapshot field that it reads."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

PREFIX = "millgate_"


class MetricKind(StrEnum):
    """What may be done with a metric: a counter only rises, a gauge is read as it is, a histogram counts by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Which record a metric is read from; where `LABELS` names a label, every record of its kind has a sample."""

    GATE = "gate"
    LANE = "lane"
    LANE_TRAFFIC = "lane_traffic"
    STAY = "stay"
    STAY_TOTAL = "stay_total"
    ENGINE = "engine"
    ENGINE_TRAFFIC = "engine_traffic"
    POOL = "pool"
    TENANT = "tenant"
    QUOTA = "quota"
    RETRIES = "retries"
    DOOR = "door"
    SERVICE = "service"
    PROCESS = "process"


LABELS: dict[Scope, tuple[str, ...]] = {
    Scope.LANE: ("lane",),
    Scope.LANE_TRAFFIC: ("lane",),
    Scope.STAY: ("lane", "part"),
    Scope.STAY_TOTAL: ("part",),
    Scope.ENGINE: ("engine",),
    Scope.ENGINE_TRAFFIC: ("engine",),
    Scope.POOL: ("pool",),
    Scope.TENANT: ("tenant",),
    Scope.QUOTA: ("quota",),
}
"""What a record of each kind is labelled with: its name; a pool's is that of its first engine."""


class MetricDefinition(NamedTuple):
    """One metric. `field` is the path of attributes in the record of `scope`; `unit` is for people.

    With `split`, the field holds pairs of (word, count), or alarms, whose signals count 1, and each of those words is one
    sample labelled `label`; words that have not happened yet are 0, so that rates work from the first time on.
    """

    name: str
    kind: MetricKind
    unit: str
    scope: Scope
    field: str
    help: str
    label: str | None = None
    split: Iterable[StrEnum] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names, in the order of a sample."""
        own = LABELS.get(self.scope, ())
        return (*own, self.label) if self.label else own

    @property
    def full_name(self) -> str:
        """The name as it is exported."""
        return PREFIX + self.name + ("_total" if self.kind is MetricKind.COUNTER else "")
