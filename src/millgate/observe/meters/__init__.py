"""Every metric, declared once: its name, kind, labels, help, and the snapshot field it reads.

House rules: the prefix is `millgate_`; base units, named at the end (`_seconds`, `_bytes`, `_ratio`); counters
end in `_total`; no colons (those are for recording rules). Labels come from the configuration (lane, engine) or
from a closed enum. The only one that a client may bring is the tenant, on counters alone and for a hundred of them.
A field that is None (unknown, stale, switched off) or infinite has no sample. docs/reference/metrics.md is generated from these tables.
"""

from millgate.observe.meters.definition import LABELS, PREFIX, MetricDefinition, MetricKind, Scope
from millgate.observe.meters.engines import ENGINE_METERS
from millgate.observe.meters.gate import GATE_METERS
from millgate.observe.meters.handoffs import HANDOFF_METERS
from millgate.observe.meters.lanes import LANE_METERS, LITTLE_METERS

METERS: tuple[MetricDefinition, ...] = (
    *LANE_METERS,
    *LITTLE_METERS,
    *ENGINE_METERS,
    *GATE_METERS,
    *HANDOFF_METERS,
)
"""All of them, in the order of the page."""

__all__ = ["LABELS", "METERS", "PREFIX", "MetricDefinition", "MetricKind", "Scope"]
