"""Every metric, declared once: its name, kind, labels, help, and the snapshot field it reads.

House rules: the prefix is `millgate_`; base units, named at the end (`_seconds`, `_bytes`, `_ratio`); counters
end in `_total`; no colons (those are for recording rules). Labels come from the configuration (lane, engine) or
from a closed enum; the only one that a client may bring is the tenant, on counters alone and for a hundred of them.
A field that is None (unknown, stale, switched off) or infinite has no sample. docs/reference/metrics.md is generated from this table.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from millgate.core.snapshot import AlarmSignal
from millgate.core.words import FailureKind, Outcome, Reason, Stage

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
    ENGINE = "engine"
    ENGINE_TRAFFIC = "engine_traffic"
    POOL = "pool"
    TENANT = "tenant"
    RETRIES = "retries"
    DOOR = "door"
    SERVICE = "service"
    PROCESS = "process"


LABELS = {
    Scope.LANE: "lane",
    Scope.LANE_TRAFFIC: "lane",
    Scope.ENGINE: "engine",
    Scope.ENGINE_TRAFFIC: "engine",
    Scope.POOL: "pool",
    Scope.TENANT: "tenant",
}
"""What a record of each kind is labelled with: its name; a pool's is that of its first engine."""


_YIELDS: Final = tuple(reason for reason in Reason if reason is not Reason.OVERLOADED_GATE)
"""What the core refuses attempts for; it hears of none that a gate refuses which is too slow itself (`door_shed`)."""


class MetricDefinition(NamedTuple):
    """One metric. `field` is the path of attributes in the record of `scope`; `unit` is for people.

    With `split`, the field holds pairs of (word, count), or one word that counts 1, and each of those words is one
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
        own = (LABELS[self.scope],) if self.scope in LABELS else ()
        return (*own, self.label) if self.label else own

    @property
    def full_name(self) -> str:
        """The name as it is exported."""
        return PREFIX + self.name + ("_total" if self.kind is MetricKind.COUNTER else "")


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_LANE_TRAFFIC, _ENGINE_TRAFFIC = Scope.LANE_TRAFFIC, Scope.ENGINE_TRAFFIC
_POOL, _TENANT = Scope.POOL, Scope.TENANT
_GATE, _LANE, _ENGINE, _RETRIES = Scope.GATE, Scope.LANE, Scope.ENGINE, Scope.RETRIES
_DOOR, _SERVICE, _PROCESS = Scope.DOOR, Scope.SERVICE, Scope.PROCESS

# fmt: off
METERS: tuple[MetricDefinition, ...] = (
    # What came in and how it ended.
    MetricDefinition("attempts", _COUNTER, "attempts", _LANE, "arrived", "Attempts that reached the gate; bad input is counted by the door."),
    MetricDefinition("admitted", _COUNTER, "attempts", _LANE, "admitted", "Attempts that were given a permit."),
    MetricDefinition("outcomes", _COUNTER, "attempts", _LANE, "outcomes", "Attempts by their one outcome.", "outcome", Outcome),
    MetricDefinition("yields", _COUNTER, "attempts", _LANE, "yields", "Attempts refused, by reason.", "reason", _YIELDS),
    MetricDefinition("clients_gone", _COUNTER, "attempts", _LANE, "gone", "Attempts whose client left, by how far they were.", "stage", Stage),
    MetricDefinition("engine_failures", _COUNTER, "attempts", _LANE, "failures", "Attempts that an engine failed, by how.", "kind", FailureKind),
    # The queue: where it stands and what it will cost to join it.
    MetricDefinition("queued", _GAUGE, "attempts", _LANE, "queued", "Attempts that wait now."),
    MetricDefinition("queued_tokens", _GAUGE, "tokens", _LANE, "queued_tokens", "Prompt and expected output tokens of what waits."),
    MetricDefinition("queued_bytes", _GAUGE, "bytes", _LANE, "queued_bytes", "Request bytes of what waits."),
    MetricDefinition("oldest_queued_seconds", _GAUGE, "seconds", _LANE, "oldest_queued_s", "Age of the oldest attempt that waits."),
    MetricDefinition("headroom", _GAUGE, "streams", _LANE, "headroom", "Streams that this lane lends to nobody, used or not."),
    MetricDefinition("expected_wait_seconds", _GAUGE, "seconds", _LANE, "expected_wait_s", "Wait that a new attempt would be told."),
    MetricDefinition("running", _GAUGE, "attempts", _LANE, "running", "Attempts that run now and whose client is still there."),
    MetricDefinition("wait_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "wait", "Wait of admitted attempts before they were."),
    MetricDefinition("window_wait_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "window", "The part of it that was for the company of a batch, of those queued for that."),
    MetricDefinition("ttft_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "ttft", "Arrival to first token of streams, the wait included."),
    MetricDefinition("duration_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "total", "Arrival to end of admitted attempts, however they ended."),
    MetricDefinition("hint_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "hint", "Hints that refused clients were given."),
    MetricDefinition("hint_return_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "hint_return", "How far from the time that they had been told those were back who were then admitted."),
    MetricDefinition("hint_error_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "hint_error", "How far from that time they were admitted."),
    MetricDefinition("hints_kept", _COUNTER, "attempts", _LANE, "hints_kept", "Attempts back when told that were admitted within 0.5 s of it, or 20 % of their hint."),
    MetricDefinition("hints_broken", _COUNTER, "attempts", _LANE, "hints_broken", "Attempts back when told that were admitted later than that, or refused."),
    # The objective of each lane.
    MetricDefinition("slo_good_ratio", _GAUGE, "ratio", _LANE, "slo.short.good_share", "Share of answers within five minutes that were good."),
    MetricDefinition("slo_good_hour_ratio", _GAUGE, "ratio", _LANE, "slo.long.good_share", "The same within an hour."),
    MetricDefinition("slo_ttft_ratio", _GAUGE, "ratio", _LANE, "slo.short.ttft_share", "Share of streams within five minutes whose first token was in time."),
    MetricDefinition("slo_tpot_ratio", _GAUGE, "ratio", _LANE, "slo.short.tpot_share", "Share of them whose tokens came fast enough."),
    MetricDefinition("slo_burn_ratio", _GAUGE, "ratio", _LANE, "slo.short.burn", "Error budget burnt within five minutes: 1 uses up exactly all of it."),
    MetricDefinition("slo_burn_hour_ratio", _GAUGE, "ratio", _LANE, "slo.long.burn", "The same within an hour."),
    MetricDefinition("slo_burning", _GAUGE, "0 or 1", _LANE, "slo.is_burning", "1 while both burn fast enough for an alarm."),
    MetricDefinition("ttft_p95_seconds", _GAUGE, "seconds", _LANE, "slo.ttft.p95", "95th percentile of the time to the first token, fading with five minutes."),
    MetricDefinition("ttft_p99_seconds", _GAUGE, "seconds", _LANE, "slo.ttft.p99", "99th percentile of it."),
    MetricDefinition("tpot_p95_seconds", _GAUGE, "seconds", _LANE, "slo.tpot.p95", "95th percentile of the time per output token."),
    MetricDefinition("tpot_p99_seconds", _GAUGE, "seconds", _LANE, "slo.tpot.p99", "99th percentile of it."),
    # Little's law, three independent readings and what is left between them.
    MetricDefinition("little_running", _GAUGE, "attempts", _LANE, "little.mean_running", "L: mean attempts running, by time integral."),
    MetricDefinition("little_admitted_per_second", _GAUGE, "1/s", _LANE, "little.admitted_per_s", "Lambda: attempts admitted per second."),
    MetricDefinition("little_stay_seconds", _GAUGE, "seconds", _LANE, "little.mean_stay_s", "W: mean time from admission to the end."),
    MetricDefinition("little_residual_ratio", _GAUGE, "ratio", _LANE, "little.residual", "(L - lambda x W) / L; far from 0 means a leak."),
    # Engines: use and limit of every meter, learned speed, their own gauges.
    MetricDefinition("engine_up", _GAUGE, "0 or 1", _ENGINE, "up", "1 while the engine takes work."),
    MetricDefinition("engine_running", _GAUGE, "streams", _ENGINE, "running", "Permits out on the engine."),
    MetricDefinition("engine_departing", _GAUGE, "streams", _ENGINE, "departing", "Permits whose client left while the engine may still work for it."),
    MetricDefinition("engine_limit", _GAUGE, "streams", _ENGINE, "limit", "Most permits at once."),
    MetricDefinition("engine_kv_tokens", _GAUGE, "tokens", _ENGINE, "kv_tokens", "KV tokens reserved by permits."),
    MetricDefinition("engine_kv_limit_tokens", _GAUGE, "tokens", _ENGINE, "kv_limit", "Most KV tokens reserved at once; absent while this meter is off."),
    MetricDefinition("engine_prefill_tokens", _GAUGE, "tokens", _ENGINE, "prefill_tokens", "Prompt tokens admitted and not yet prefilled."),
    MetricDefinition("engine_prefill_limit_tokens", _GAUGE, "tokens", _ENGINE, "prefill_limit", "Most of them at once; absent while this meter is off."),
    MetricDefinition("engine_drain_per_second", _GAUGE, "1/s", _ENGINE, "drain_per_s", "Departures per second while the gate is full."),
    MetricDefinition("engine_expected_ttft_seconds", _GAUGE, "seconds", _ENGINE, "expected_ttft_s", "Learned time to the first token of a mean prompt."),
    MetricDefinition("engine_expected_tpot_seconds", _GAUGE, "seconds", _ENGINE, "expected_tpot_s", "Learned time per output token at the present load."),
    MetricDefinition("engine_expected_service_seconds", _GAUGE, "seconds", _ENGINE, "expected_service_s", "Learned time from admission to the end."),
    MetricDefinition("engine_abort_lag_seconds", _GAUGE, "seconds", _ENGINE, "abort_lag_s", "Learned time that an engine goes on for a client that left."),
    MetricDefinition("engine_ignores_hangups", _GAUGE, "0 or 1", _ENGINE, "ignores_hangups", "1 where the engine is held to go on to the end."),
    MetricDefinition("engine_seen_running", _GAUGE, "streams", _ENGINE, "seen_running", "The engine's own count of running requests; absent while unknown."),
    MetricDefinition("engine_seen_waiting", _GAUGE, "streams", _ENGINE, "seen_waiting", "The engine's own count of waiting requests; absent while unknown."),
    MetricDefinition("engine_seen_kv_ratio", _GAUGE, "ratio", _ENGINE, "seen_kv_share", "The engine's own share of KV cache in use; absent while unknown."),
    MetricDefinition("engine_seen_age_seconds", _GAUGE, "seconds", _ENGINE, "seen_age_s", "Age of the engine's last readable gauges."),
    MetricDefinition("engine_ttft_seconds", _HISTOGRAM, "seconds", _ENGINE_TRAFFIC, "ttft", "Admission to first token of streams."),
    MetricDefinition("engine_tpot_seconds", _HISTOGRAM, "seconds", _ENGINE_TRAFFIC, "tpot", "Mean time per output token, of each stream."),
    MetricDefinition("engine_gap_seconds", _HISTOGRAM, "seconds", _ENGINE_TRAFFIC, "gap", "Time between tokens, of each token: the mean of its stream's last second."),
    MetricDefinition("engine_ttft_variance", _GAUGE, "seconds squared", _ENGINE_TRAFFIC, "lately.ttft_variance", "Variance of the time from admission to first token over about the last minute."),
    MetricDefinition("engine_tpot_variance", _GAUGE, "seconds squared", _ENGINE_TRAFFIC, "lately.tpot_variance", "Variance between the streams' times per output token over about the last minute: some are served worse than others."),
    MetricDefinition("engine_gap_mean_seconds", _GAUGE, "seconds", _ENGINE_TRAFFIC, "lately.gap_mean_s", "Mean time between tokens over about the last minute."),
    MetricDefinition("engine_gap_variance", _GAUGE, "seconds squared", _ENGINE_TRAFFIC, "lately.gap_variance", "Variance of it over about the last minute: batching that stutters."),
    MetricDefinition("engine_prefix_hit_ratio", _GAUGE, "ratio", _ENGINE_TRAFFIC, "lately.prefix_hit_share", "Share of prompt tokens that came from the engine's cache, over about the last minute; absent while it never said."),
    MetricDefinition("engine_prompt_tokens", _COUNTER, "tokens", _ENGINE_TRAFFIC, "prompt_tokens", "Prompt tokens of whole answers, since the engine first said what came from its cache."),
    MetricDefinition("engine_cached_prompt_tokens", _COUNTER, "tokens", _ENGINE_TRAFFIC, "cached_tokens", "Those of them that came from its cache."),
    # The early warning (docs/policies/monitor.md).
    MetricDefinition("load_ratio", _GAUGE, "ratio", _POOL, "warning.load", "Work that arrives over work that can be served, now."),
    MetricDefinition("load_calm_ratio", _GAUGE, "ratio", _POOL, "warning.calm_load", "The same over the last calm minutes."),
    MetricDefinition("load_excess_seconds", _GAUGE, "seconds", _POOL, "warning.excess", "Work above the calm level, added up, in seconds of capacity."),
    MetricDefinition("load_excess_threshold_seconds", _GAUGE, "seconds", _POOL, "warning.excess_threshold", "Where that is an alarm."),
    MetricDefinition("occupancy_ratio", _GAUGE, "ratio", _POOL, "warning.occupancy", "What runs and waits, over the limit of streams."),
    MetricDefinition("occupancy_trend_per_second", _GAUGE, "1/s", _POOL, "warning.trend", "First derivative of it."),
    MetricDefinition("occupancy_acceleration", _GAUGE, "1/s per second", _POOL, "warning.acceleration", "Second derivative of it: the fast trend less the slow one."),
    MetricDefinition("backlog_seconds", _GAUGE, "seconds", _POOL, "warning.backlog_s", "Time that what waits takes to serve."),
    MetricDefinition("time_to_full_seconds", _GAUGE, "seconds", _POOL, "warning.time_to_full_s", "Time until no more may wait; absent unless more arrives than is served."),
    MetricDefinition("alarm", _GAUGE, "0 or 1", _POOL, "alarm.signal", "1 while this signal has raised an alarm.", "signal", AlarmSignal),
    # Tenants: the first hundred, the configured ones before all.
    MetricDefinition("tenant_attempts", _COUNTER, "attempts", _TENANT, "attempts", "Attempts of the tenant."),
    MetricDefinition("tenant_yields", _COUNTER, "attempts", _TENANT, "yields", "Attempts of the tenant that were refused."),
    MetricDefinition("tenant_good", _COUNTER, "attempts", _TENANT, "good", "Attempts of the tenant that ended good."),
    MetricDefinition("tenant_judged", _COUNTER, "attempts", _TENANT, "judged", "Attempts of the tenant that were answered: good, late, or failed by an engine."),
    MetricDefinition("tenant_prompt_tokens", _COUNTER, "tokens", _TENANT, "prompt_tokens", "Prompt tokens of what was admitted and is over."),
    MetricDefinition("tenant_output_tokens", _COUNTER, "tokens", _TENANT, "output_tokens", "Output tokens of the same."),
    # Work that comes back, and the places kept for it.
    MetricDefinition("retry_labelled", _COUNTER, "attempts", _RETRIES, "labelled", "Attempts whose client said that they are retries."),
    MetricDefinition("retry_recognised", _COUNTER, "attempts", _RETRIES, "recognised", "Attempts that were recognised and got their first arrival time back."),
    MetricDefinition("retry_early", _COUNTER, "attempts", _RETRIES, "early", "Attempts that came back before their hint."),
    MetricDefinition("retry_places", _GAUGE, "places", _RETRIES, "places", "Refused clients that are expected to come back."),
    MetricDefinition("retry_places_dropped", _COUNTER, "places", _RETRIES, "places_dropped", "Places given up because there were too many."),
    MetricDefinition("retry_entries", _GAUGE, "entries", _RETRIES, "entries", "Fingerprints kept to recognise what comes back."),
    MetricDefinition("retry_amplification_ratio", _GAUGE, "ratio", _RETRIES, "amplification", "Attempts over requests, since the start of each tenant that is known; absent without a retry budget."),
    MetricDefinition("retry_budget", _GAUGE, "attempts", _RETRIES, "budget", "Retries that may pass within ten seconds; absent without a retry budget."),
    MetricDefinition("retry_budget_spent", _GAUGE, "attempts", _RETRIES, "budget_spent", "Retries that were charged within the last ten seconds."),
    # The whole gate.
    MetricDefinition("good_output_tokens", _COUNTER, "tokens", _GATE, "good_output_tokens", "Output tokens of attempts that ended good."),
    MetricDefinition("wasted_prompt_tokens", _COUNTER, "tokens", _GATE, "wasted_prompt_tokens", "Prompt tokens of admitted attempts that did not end good."),
    MetricDefinition("wasted_output_tokens", _COUNTER, "tokens", _GATE, "wasted_output_tokens", "Output tokens of admitted attempts that did not end good."),
    MetricDefinition("prompt_estimate_bias_ratio", _GAUGE, "ratio", _GATE, "prompt_error.bias", "Prompt tokens over their estimates, less 1, of the last few hundred answers."),
    MetricDefinition("prompt_estimate_error", _GAUGE, "ln", _GATE, "prompt_error.p90", "90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two."),
    MetricDefinition("output_estimate_bias_ratio", _GAUGE, "ratio", _GATE, "output_error.bias", "Output tokens over their estimates, less 1, of the last few hundred answers."),
    MetricDefinition("output_estimate_error", _GAUGE, "ln", _GATE, "output_error.p90", "90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two."),
    MetricDefinition("draining", _GAUGE, "0 or 1", _GATE, "draining", "1 while the process is leaving."),
    # The HTTP door, before anything reaches the core.
    MetricDefinition("door_connections", _GAUGE, "connections", _DOOR, "connections", "Open client connections."),
    MetricDefinition("door_refused_connections", _COUNTER, "connections", _DOOR, "refused_connections", "Connections refused because there were too many."),
    MetricDefinition("door_rejected", _COUNTER, "requests", _DOOR, "rejected", "Bad requests: wrong framing, unknown path, bad input. They are no attempts."),
    MetricDefinition("door_body_bytes", _GAUGE, "bytes", _DOOR, "body_bytes", "Bytes of bodies being received and kept."),
    MetricDefinition("door_body_limit_bytes", _GAUGE, "bytes", _DOOR, "body_limit_bytes", "Most of them at once."),
    MetricDefinition("door_refused_callers", _COUNTER, "requests", _DOOR, "refused_callers", "Requests refused for want of a good key. They are no attempts."),
    MetricDefinition("door_spoofed_fields", _COUNTER, "fields", _DOOR, "spoofed_fields", "Tenant, lane and priority headers dropped because their sender is not trusted."),
    MetricDefinition("door_shed", _COUNTER, "requests", _DOOR, "shed", "Requests refused as `overloaded_gate`: this process itself was too slow. `attempts` and `yields` do not have them."),
    MetricDefinition("door_steering_fields", _COUNTER, "fields", _DOOR, "steering_fields", "Headers dropped that would steer another gateway: X-Forwarded-Host, Forwarded, X-Original-URL and the like."),
    MetricDefinition("door_unusable_usage", _COUNTER, "answers", _DOOR, "unusable_usage", "Whole answers that should have said their tokens and said nothing usable: what was estimated stands."),
    # The process as a service.
    MetricDefinition("config_reload_success", _GAUGE, "0 or 1", _SERVICE, "reload_success", "1 while the configuration in force is the one that was asked for last."),
    MetricDefinition("config_reloads", _COUNTER, "reloads", _SERVICE, "reloads", "Reloads that were asked for."),
    MetricDefinition("config_reloads_failed", _COUNTER, "reloads", _SERVICE, "failed_reloads", "Reloads that kept the old configuration because the new one is wrong."),
    MetricDefinition("loop_lag_seconds", _GAUGE, "seconds", _SERVICE, "loop_lag_s", "How late the loop's last timer was: what a ready event waits for its turn."),
    MetricDefinition("loop_lag_worst_seconds", _GAUGE, "seconds", _SERVICE, "worst_loop_lag_s", "The latest since the start."),
    MetricDefinition("log_lines_dropped", _COUNTER, "lines", _SERVICE, "log_lines_dropped", "Log lines of the process that nobody could take."),
    MetricDefinition("attempt_lines_dropped", _COUNTER, "lines", _SERVICE, "attempt_lines_dropped", "Log lines of attempts that nobody could take."),
    # This process.
    MetricDefinition("process_cpu_seconds", _COUNTER, "seconds", _PROCESS, "cpu_s", "Processor time of this process, user and system."),
    MetricDefinition("process_resident_bytes", _GAUGE, "bytes", _PROCESS, "resident_bytes", "Memory of this process that is in RAM."),
    MetricDefinition("process_open_files", _GAUGE, "files", _PROCESS, "open_files", "Open files and sockets."),
    MetricDefinition("process_max_files", _GAUGE, "files", _PROCESS, "max_files", "Most of them that the system allows."),
    MetricDefinition("process_threads", _GAUGE, "threads", _PROCESS, "threads", "Threads of this process."),
)
# fmt: on
