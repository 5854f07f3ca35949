"""Metrics of requests whose prompt one engine reads and whose answer another one writes."""

from millgate.core.words import Role
from millgate.observe.meters.definition import MetricDefinition, MetricKind, Scope

HANDOFF_METERS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "legs",
        MetricKind.COUNTER,
        "legs",
        Scope.GATE,
        "legs_by_role",
        "Legs that began on engines of each role: a request has one, and two where another engine reads its prompt.",
        "role",
        Role,
    ),
    MetricDefinition(
        "two_leg_requests",
        MetricKind.COUNTER,
        "requests",
        Scope.GATE,
        "legs.begun",
        "Requests whose prompt one engine was to read and whose answer another one writes.",
    ),
    MetricDefinition(
        "kv_transfers",
        MetricKind.COUNTER,
        "transfers",
        Scope.GATE,
        "legs.fetched",
        "Prompts whose KV went from one engine to another.",
    ),
    MetricDefinition(
        "kv_transfer_tokens",
        MetricKind.COUNTER,
        "tokens",
        Scope.GATE,
        "legs.tokens",
        "Prompt tokens of these transfers; engines tell no bytes in their answers.",
    ),
    MetricDefinition(
        "kv_transfer_seconds",
        MetricKind.COUNTER,
        "seconds",
        Scope.GATE,
        "legs.transfer_s",
        "Time from the first engine's answer to the other one's first token, over these transfers; of whole answers, as expected.",
    ),
    MetricDefinition(
        "kv_transfers_failed",
        MetricKind.COUNTER,
        "transfers",
        Scope.GATE,
        "legs.lost",
        "Prompts that the first engine failed to read, or whose KV could not be fetched in time: the second one read them itself, or the request failed (SGLang).",
    ),
    MetricDefinition(
        "kv_leases_expired",
        MetricKind.COUNTER,
        "prompts",
        Scope.GATE,
        "legs.expired",
        "Prompts that an engine kept to the end of the lease, as no other fetched them.",
    ),
)
