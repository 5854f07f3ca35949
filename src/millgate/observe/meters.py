"""Every metric, declared once: its name, kind, labels, help, and the snapshot field it reads.

House rules: the prefix is `millgate_`; base units, named at the end (`_seconds`, `_bytes`, `_ratio`); counters
end in `_total`; no colons (those are for recording rules). Labels come from the configuration (lane, engine) or
from a closed enum. The only one that a client may bring is the tenant, on counters alone and for a hundred of them.
A field that is None (unknown, stale, switched off) or infinite has no sample. docs/reference/metrics.md is generated from this table.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from millgate.core.snapshot import AlarmSignal
from millgate.core.words import FailureKind, Outcome, Reason, Role, Stage

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


_WORDS: Final[Mapping[str, Iterable[StrEnum]]] = {
    "outcome": Outcome,
    # The core hears of no attempt that a gate refuses which is too slow itself (`door_shed`).
    "reason": tuple(reason for reason in Reason if reason is not Reason.OVERLOADED_GATE),
    "stage": Stage,
    "kind": FailureKind,
    "signal": AlarmSignal,
    "role": Role,
}
"""The words of every label that splits a field."""

# name | kind | unit | scope | field, `by` its label where words split it | help
_TABLE: Final = """
# What came in and how it ended.
attempts | counter | attempts | lane | arrived | Attempts that reached the gate; bad input is counted by the door.
admitted | counter | attempts | lane | admitted | Attempts that were given a permit.
outcomes | counter | attempts | lane | outcomes by outcome | Attempts by their one outcome.
yields | counter | attempts | lane | yields by reason | Attempts refused, by reason.
clients_gone | counter | attempts | lane | gone by stage | Attempts whose client left, by the stage that they had reached.
engine_failures | counter | attempts | lane | failures by kind | Attempts that an engine failed, by the kind of failure.
# The queue: where it stands and what it will cost to join it.
queued | gauge | attempts | lane | queued | Attempts in the queue.
queued_tokens | gauge | tokens | lane | queued_tokens | Prompt and expected output tokens of queued attempts.
queued_bytes | gauge | bytes | lane | queued_bytes | Request bytes of queued attempts.
oldest_queued_seconds | gauge | seconds | lane | oldest_queued_s | Age of the oldest queued attempt.
headroom | gauge | streams | lane | headroom | Streams that this lane lends to no other, used or not.
expected_wait_seconds | gauge | seconds | lane | expected_wait_s | Predicted wait of an attempt that arrives now.
running | gauge | attempts | lane | running | Attempts that hold a permit; that of a client that left counts until the engine lets go.
wait_seconds | histogram | seconds | lane_traffic | wait | Wait of admitted attempts in the queue.
window_wait_seconds | histogram | seconds | lane_traffic | window | Part of the wait that an attempt spent in a batch window, of attempts queued for that.
ttft_seconds | histogram | seconds | lane_traffic | ttft | Arrival to first token of streams, the wait included.
duration_seconds | histogram | seconds | lane_traffic | total | Arrival to end of admitted attempts, however they ended.
clipped | counter | attempts | lane_traffic | clipped | Attempts cut to `clip` output tokens instead of being refused, by the lane that they asked for.
demoted | counter | attempts | lane_traffic | demoted | Attempts run in the lane that theirs demotes to, instead of being refused.
tpot_mean_seconds | gauge | seconds | lane_traffic | lately.tpot_mean_s | Mean of the streams' times per output token over about the last minute.
tpot_variance | gauge | seconds squared | lane_traffic | lately.tpot_variance | Variance between the streams' times per output token: some streams of this lane decode worse than others.
hint_seconds | histogram | seconds | lane_traffic | hint | Hints given to refused clients.
hint_return_seconds | histogram | seconds | lane_traffic | hint_return | Seconds between the promised and the actual return of admitted clients.
hint_error_seconds | histogram | seconds | lane_traffic | hint_error | Seconds between the promised time and the admission of returned clients.
hints_kept | counter | attempts | lane | hints_kept | Clients that returned on time and were admitted within 0.5 s of it, or 20 % of their hint.
hints_broken | counter | attempts | lane | hints_broken | Clients that returned on time and were admitted later than 0.5 s and 20 % of their hint, or refused.
# The objective of each lane.
slo_good_ratio | gauge | ratio | lane | slo.short.good_share | Share of requests within five minutes that ended good; a request refused for want of capacity did not.
slo_good_hour_ratio | gauge | ratio | lane | slo.long.good_share | Share of requests within an hour that ended good.
slo_ttft_ratio | gauge | ratio | lane | slo.short.ttft_share | Share of streams within five minutes whose first token was in time.
slo_tpot_ratio | gauge | ratio | lane | slo.short.tpot_share | Share of streams within five minutes whose tokens came fast enough.
slo_burn_ratio | gauge | ratio | lane | slo.short.burn | Error budget burnt within five minutes: 1 uses up exactly all of it.
slo_burn_hour_ratio | gauge | ratio | lane | slo.long.burn | Error budget burnt within an hour: 1 uses up exactly all of it.
slo_burning | gauge | 0 or 1 | lane | slo.is_burning | 1 while the error budget burns fast enough for an alarm within five minutes and within an hour.
ttft_p95_seconds | gauge | seconds | lane | slo.ttft.p95 | 95th percentile of the time to the first token, fading with five minutes.
ttft_p99_seconds | gauge | seconds | lane | slo.ttft.p99 | 99th percentile of the time to the first token, fading with five minutes.
tpot_p95_seconds | gauge | seconds | lane | slo.tpot.p95 | 95th percentile of the time per output token.
tpot_p99_seconds | gauge | seconds | lane | slo.tpot.p99 | 99th percentile of the time per output token.
# What is promised of either.
slo_ttft_target_ratio | gauge | ratio | lane | slo.ttft_promise.share | Share of requests that is to have its first token within `ttft_slo`: 0.99 where that names p99.
slo_tpot_target_ratio | gauge | ratio | lane | slo.tpot_promise.share | Share of requests that is to have its tokens within `tpot_slo`; the lane's target is the smaller of the two.
# Little's law of every part of a stay: three independent readings, and what is left between them.
little_attempts | gauge | attempts | stay | mean_attempts | L: mean attempts inside, by time integral.
little_entered_per_second | gauge | 1/s | stay | entered_per_s | Lambda: attempts per second that came to this part.
little_stay_seconds | gauge | seconds | stay | mean_stay_s | W: mean time in this part, of the attempts that left it.
little_residual_ratio | gauge | ratio | stay | residual | (L - lambda x W) / L; far from 0 means a leak.
little_all_attempts | gauge | attempts | stay_total | mean_attempts | L of all lanes: mean attempts inside, by time integral.
little_all_entered_per_second | gauge | 1/s | stay_total | entered_per_s | Lambda of all lanes: attempts per second that came to this part.
little_all_stay_seconds | gauge | seconds | stay_total | mean_stay_s | W of all lanes: mean time in this part, of the attempts that left it.
little_all_residual_ratio | gauge | ratio | stay_total | residual | (L - lambda x W) / L of all lanes; far from 0 means a leak.
# Engines: use and limit of every meter, learned speed, their own gauges.
engine_up | gauge | 0 or 1 | engine | up | 1 while the engine takes work.
engine_running | gauge | streams | engine | running | Streams that run on the engine.
engine_departing | gauge | streams | engine | departing | Permits whose client left while the engine may still work for it.
engine_limit | gauge | streams | engine | limit | Most streams that the engine may run at once.
engine_kv_tokens | gauge | tokens | engine | kv_tokens | KV tokens reserved by permits.
engine_kv_limit_tokens | gauge | tokens | engine | kv_limit | Most KV tokens reserved at once; absent while this meter is off.
engine_prefill_tokens | gauge | tokens | engine | prefill_tokens | Prompt tokens admitted and not yet prefilled.
engine_prefill_limit_tokens | gauge | tokens | engine | prefill_limit | Most prompt tokens not yet prefilled at once; absent while this meter is off.
engine_prefill_share | gauge | 0..1 | engine | prefill_share | Part of the engine's time that prompts of paced lanes may take; absent where no lane is protected.
engine_account_left_ratio | gauge | ratio | engine | account.left_share | Least share that is left of any limit of the provider's account, by the gate's own count; negative in debt.
engine_account_others_ratio | gauge | ratio | engine | account.others_share | Most of a limit's rate that others seem to take from the same account.
engine_account_paused_seconds | gauge | seconds | engine | account.paused_s | Seconds for which nothing is sent to the provider, because it has refused.
engine_breaker_open | gauge | 0 or 1 | engine | account.breaker_open | 1 while the breaker is open: after failures the engine gets single tries only.
engine_silent_seconds | gauge | seconds | engine | silent_s | How long the engine let a prompt wait until its time ran out, and read none: it gets one prompt at a time until its next first token, which makes this 0.
engine_drain_per_second | gauge | 1/s | engine | drain_per_s | Departures per second while the gate is full.
engine_expected_ttft_seconds | gauge | seconds | engine | expected_ttft_s | Learned time to the first token of a mean prompt.
engine_expected_tpot_seconds | gauge | seconds | engine | expected_tpot_s | Learned time per output token at the present load.
engine_expected_service_seconds | gauge | seconds | engine | expected_service_s | Learned time from admission to the end.
engine_abort_lag_seconds | gauge | seconds | engine | abort_lag_s | Learned time for which an engine works on after its client left.
engine_ignores_hangups | gauge | 0 or 1 | engine | ignores_hangups | 1 where the engine is believed to ignore hang-ups and work to the end.
engine_seen_running | gauge | streams | engine | seen_running | The engine's own count of running requests; absent while unknown.
engine_seen_waiting | gauge | streams | engine | seen_waiting | The engine's own count of waiting requests; absent while unknown.
engine_seen_preemptions | counter | requests | engine | seen_preemptions | The engine's own count of preemptions: requests that lost their KV cache and are computed again; absent while unknown.
engine_adapter_loads | counter | adapters | engine | adapter_loads | Adapters that the engine had to load for a request, by what the gate has sent there before.
engine_seen_kv_ratio | gauge | ratio | engine | seen_kv_share | The engine's own share of KV cache in use; absent while unknown.
engine_seen_age_seconds | gauge | seconds | engine | seen_age_s | Age of the engine's last readable gauges.
engine_ended_attempts | counter | attempts | engine_traffic | ended | Attempts that ended on the engine, however they did.
engine_failed_attempts | counter | attempts | engine_traffic | failed | Attempts that the engine failed, and no other one made good.
engine_ttft_seconds | histogram | seconds | engine_traffic | ttft | Admission to first token of streams.
engine_tpot_seconds | histogram | seconds | engine_traffic | tpot | Mean time per output token, of each stream.
engine_gap_seconds | histogram | seconds | engine_traffic | gap | Time between tokens, of each token: the mean of its stream's last second.
engine_ttft_variance | gauge | seconds squared | engine_traffic | lately.ttft_variance | Variance of the time from admission to first token over about the last minute.
engine_tpot_variance | gauge | seconds squared | engine_traffic | lately.tpot_variance | Variance between the streams' times per output token over about the last minute: some are served worse than others.
engine_gap_mean_seconds | gauge | seconds | engine_traffic | lately.gap_mean_s | Mean time between tokens over about the last minute.
engine_gap_variance | gauge | seconds squared | engine_traffic | lately.gap_variance | Variance of the time between tokens over about the last minute: high where batching stutters.
engine_prefix_hit_ratio | gauge | ratio | engine_traffic | lately.prefix_hit_share | Share of prompt tokens that came from the engine's cache, over about the last minute; absent while it never said.
engine_prompt_tokens | counter | tokens | engine_traffic | prompt_tokens | Prompt tokens of whole answers, since the engine first said what came from its cache.
engine_cached_prompt_tokens | counter | tokens | engine_traffic | cached_tokens | Prompt tokens of whole answers that came from the engine's cache.
# The early warning (docs/policies/monitor.md).
load_ratio | gauge | ratio | pool | warning.load | Work that arrives over work that can be served, now.
load_calm_ratio | gauge | ratio | pool | warning.calm_load | Work that arrives over work that can be served, over the last calm minutes.
load_excess_seconds | gauge | seconds | pool | warning.excess | Work above the calm level, added up, in seconds of capacity; its threshold is in `/api/state`.
occupancy_ratio | gauge | ratio | pool | warning.occupancy | Running and queued streams over the limit of streams.
occupancy_trend_per_second | gauge | 1/s | pool | warning.trend | Growth of the occupancy over the last seconds.
occupancy_acceleration | gauge | 1/s beyond the usual | pool | warning.acceleration | Acceleration of the occupancy: its growth of late less its growth in the last minutes.
backlog_seconds | gauge | seconds | pool | warning.backlog_s | Time that it takes to serve the queue.
time_to_full_seconds | gauge | seconds | pool | warning.time_to_full_s | Time until the queue is full; absent unless more arrives than is served.
alarm | gauge | 0 or 1 | pool | alarms by signal | 1 while this signal has raised an alarm.
# Tenants: the first hundred, the configured ones before all.
tenant_attempts | counter | attempts | tenant | attempts | Attempts of the tenant.
tenant_yields | counter | attempts | tenant | yields | Attempts of the tenant that were refused.
tenant_good | counter | attempts | tenant | good | Attempts of the tenant that ended good.
tenant_judged | counter | attempts | tenant | judged | Attempts of the tenant that were answered: good, late, or failed by an engine.
tenant_prompt_tokens | counter | tokens | tenant | prompt_tokens | Prompt tokens of the tenant's admitted attempts that are over.
tenant_output_tokens | counter | tokens | tenant | output_tokens | Output tokens of the tenant's admitted attempts that are over.
# Requests that return, and the appointments that their clients have.
retry_labelled | counter | attempts | retries | labelled | Attempts whose client said that they are retries.
retry_recognised | counter | attempts | retries | recognised | Attempts that were recognised and got their first arrival time back.
retry_early | counter | attempts | retries | early | Clients that returned before their hint.
appointments | gauge | appointments | retries | appointments | Refused clients that are expected to return.
appointments_dropped | counter | appointments | retries | appointments_dropped | Appointments given up because there were too many.
return_records | gauge | records | retries | records | Fingerprints kept to recognise returning requests.
retry_amplification_ratio | gauge | ratio | retries | amplification | Attempts over requests, since each known tenant began; absent without a retry budget.
appointment_attendance_first_ratio | gauge | ratio | retries | attendance_first | Learned share of clients refused for the first time that return when told.
appointment_attendance_returned_ratio | gauge | ratio | retries | attendance_returned | Learned share of clients refused again after a return that return when told.
quota_left_ratio | gauge | ratio | quota | left_share | Share of the burst that is left; of a quota for each tenant or model the least among those served last.
quota_owners | gauge | owners | quota | owners | Tenants, models or lanes with a bucket of their own in it that were served last, 256 of all quotas at most.
retry_amplification_1m_ratio | gauge | ratio | retries | amplification_1m | Attempts over requests within the last minute: 1 is calm, 3 is a retry storm.
retry_amplification_10m_ratio | gauge | ratio | retries | amplification_10m | Attempts over requests within the last ten minutes.
retry_budget | gauge | attempts | retries | budget | Retries that may pass within ten seconds; absent without a retry budget.
retry_budget_spent | gauge | attempts | retries | budget_spent | Retries that were charged within the last ten seconds.
# The whole gate.
good_output_tokens | counter | tokens | gate | good_output_tokens | Output tokens of attempts that ended good.
wasted_prompt_tokens | counter | tokens | gate | wasted_prompt_tokens | Prompt tokens of admitted attempts that did not end good.
wasted_output_tokens | counter | tokens | gate | wasted_output_tokens | Output tokens of admitted attempts that did not end good.
prompt_estimate_bias_ratio | gauge | ratio | gate | prompt_error.bias | Prompt tokens over their estimates, less 1, of the last few hundred answers.
prompt_estimate_error | gauge | ln | gate | prompt_error.p90 | 90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two.
output_estimate_bias_ratio | gauge | ratio | gate | output_error.bias | Output tokens over their estimates, less 1, of the last few hundred answers.
output_estimate_error | gauge | ln | gate | output_error.p90 | 90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two.
# Sessions and held prefixes.
live_sessions | gauge | sessions | gate | live_sessions | Sessions with a turn that is queued or runs, or whose lease is not over.
working_set_ratio | gauge | ratio | gate | working_set_share | Share of the engines' memory that contexts of live sessions take; new sessions wait at 0.7.
predicted_cached_prompt_tokens | counter | tokens | gate | predicted_cached_tokens | Prompt tokens that were believed to be in the engine's cache, of answers whose engine tells.
found_cached_prompt_tokens | counter | tokens | gate | found_cached_tokens | Prompt tokens that were in the engine's cache, of the same answers: far fewer mean that predictions are wrong.
regret_prompt_tokens | counter | tokens | gate | regret_tokens | Prompt tokens that were read although another engine held them.
draining | gauge | 0 or 1 | gate | draining | 1 while the process drains.
# The HTTP door, before anything reaches the core.
door_connections | gauge | connections | door | connections | Open client connections.
door_refused_connections | counter | connections | door | refused_connections | Connections refused because there were too many.
door_rejected | counter | requests | door | rejected | Bad requests: wrong framing, unknown path, bad input. They do not count as attempts.
door_body_bytes | gauge | bytes | door | body_bytes | Bytes of bodies being received and kept.
door_body_limit_bytes | gauge | bytes | door | body_limit_bytes | Most bytes of bodies at once.
door_refused_callers | counter | requests | door | refused_callers | Requests refused for want of a good key. They do not count as attempts.
door_spoofed_fields | counter | fields | door | spoofed_fields | Tenant, lane and priority headers dropped because their sender is not trusted.
door_shed | counter | requests | door | shed | Requests refused as `overloaded_gate`: this process itself was too slow. `attempts` and `yields` do not have them.
door_steering_fields | counter | fields | door | steering_fields | Headers dropped that would steer another gateway or an engine: X-Forwarded-Host, X-Data-Parallel-Rank and the like.
door_unusable_usage | counter | answers | door | unusable_usage | Whole answers without usable token counts; the estimates stand.
door_coalesced | counter | requests | door | coalesced | Requests for embeddings that shared a call to their engine with others.
extproc_refused_streams | counter | requests | door | refused_streams | Requests of Envoys beyond `extproc.streams`: they got RESOURCE_EXHAUSTED, and their clients 503.
extproc_lost_slots | counter | attempts | door | lost_slots | Attempts of which Envoy's access log told no end: their slots ended by their lease.
extproc_unknown_entries | counter | entries | door | unknown_entries | Entries of Envoy's access log about attempts of another processor, or from before a restart.
# The process as a service.
config_reload_success | gauge | 0 or 1 | service | reload_success | 1 while the last reload succeeded.
config_reloads | counter | reloads | service | reloads | Reloads that were asked for.
config_reloads_failed | counter | reloads | service | failed_reloads | Reloads refused because the new configuration is wrong; the old one stays.
loop_lag_seconds | gauge | seconds | service | loop_lag_s | Delay of the event loop's last timer: how long a ready event waits for its turn.
loop_lag_worst_seconds | gauge | seconds | service | worst_loop_lag_s | Longest delay of the event loop since the start.
log_lines_dropped | counter | lines | service | log_lines_dropped | Log lines of the process that could not be written.
attempt_lines_dropped | counter | lines | service | attempt_lines_dropped | Log lines of attempts that could not be written.
# The cluster, where limits are shared.
cluster_degraded | gauge | 0 or 1 | service | cluster.is_degraded | 1 while this replica has no lease: it joins, or admits by `cluster.when_store_is_gone`. Nothing where one process holds all limits.
cluster_replicas | gauge | replicas | service | cluster.replicas | Replicas with a lease, this one included, as last known.
cluster_renewals | counter | renewals | service | cluster.renewals | Renewals of the lease that the store answered.
cluster_renewals_failed | counter | renewals | service | cluster.failed_renewals | Renewals that the store did not answer in time, or refused.
cluster_renewed_seconds | gauge | seconds | service | cluster.renewed_s | Time since the store answered last.
workers | gauge | processes | service | workers | Worker processes that are ready and answer; absent where one process serves.
workers_wanted | gauge | processes | service | workers_wanted | Worker processes that the configuration asks for; absent where one process serves.
worker_restarts | counter | processes | service | worker_restarts | Worker processes that were started because another had died.
traces_dropped | counter | attempts | service | traces_dropped | Attempts whose spans were lost: too many waited, or the collector did not take them.
# This process; processor time, memory and descriptors are the standard `process_*` of every exporter.
process_threads | gauge | threads | process | threads | Threads of this process.
# Requests whose prompt one engine reads and whose answer another one writes.
legs | counter | legs | gate | legs_by_role by role | Legs that began on engines of each role: a request has one, and two where another engine reads its prompt.
two_leg_requests | counter | requests | gate | legs.begun | Requests whose prompt one engine was to read and whose answer another one writes.
kv_transfers | counter | transfers | gate | legs.fetched | Prompts whose KV went from one engine to another.
kv_transfer_tokens | counter | tokens | gate | legs.tokens | Prompt tokens of these transfers; engines tell no bytes in their answers.
kv_transfer_seconds | counter | seconds | gate | legs.transfer_s | Time from the first engine's answer to the other one's first token, over these transfers; of whole answers, as expected.
kv_transfers_failed | counter | transfers | gate | legs.lost | Prompts that the first engine failed to read, or whose KV could not be fetched in time: the second one read them itself, or the request failed (SGLang).
kv_leases_expired | counter | prompts | gate | legs.expired | Prompts that an engine kept to the end of the lease, as no other fetched them.
"""


def _read(table: str) -> Iterator[MetricDefinition]:
    for line in table.splitlines():
        if line and not line.startswith("#"):
            name, kind, unit, scope, path, told = line.split(" | ", 5)
            field, _, label = path.partition(" by ")
            words = (label, _WORDS[label]) if label else ()
            yield MetricDefinition(name, MetricKind(kind), unit, Scope(scope), field, told, *words)


METERS: Final = tuple(_read(_TABLE))
"""All of them, in the order of the page."""


_INTRODUCTION = """# Metrics reference

*Generated from the table in `millgate/observe/meters.py` by `millgate config metrics`; do not edit.*

`GET /metrics` on the admin door answers in the classic Prometheus text format, or in OpenMetrics where the Accept
header asks for it. Labels come from the configuration (`lane`, `engine`, `pool` by its first engine) or from a closed
list of words, but for `tenant`. It stands on counters only, for the configured tenants and the first others up to 100
(`other` is the rest, `-` a request without one). No model is ever a label. A value that is unknown, stale, infinite
or switched off has no sample. Distributions and Little's law know 5 lanes apart, distributions 8 engines, then `other`. A page never has more than
5,300 series. The same numbers, per model where there are models, are in `GET /api/state`.

A histogram has the series `_bucket{le}`, `_sum` and `_count`. How to read these pages, with queries, is in
[how-to/metrics.md](../how-to/metrics.md).

`millgate_build_info{version, python, build}` is always 1 and says what runs; `build` is `compiled`, `interpreted` or
`partly compiled`. On Linux the page also has the standard metrics of a process, which carry no prefix and no label:
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds`,
`process_start_time_seconds`. With several workers they are sums, but for the last.
"""

_TITLES = {
    Scope.LANE: "By lane",
    Scope.LANE_TRAFFIC: "By lane: distributions",
    Scope.STAY: "By lane: Little's law (part: whole, queue, engine)",
    Scope.STAY_TOTAL: "All lanes: Little's law (part: whole, queue, engine)",
    Scope.ENGINE: "By engine",
    Scope.ENGINE_TRAFFIC: "By engine: distributions",
    Scope.POOL: "By pool: the early warning",
    Scope.TENANT: "By tenant",
    Scope.QUOTA: "By quota",
    Scope.RETRIES: "Work that comes back",
    Scope.GATE: "The whole gate",
    Scope.DOOR: "The HTTP door",
    Scope.SERVICE: "The service",
    Scope.PROCESS: "The process",
}


def render_page() -> str:
    """Return the whole page in Markdown."""
    lines = [_INTRODUCTION]
    for scope, title in _TITLES.items():
        lines += [f"## {title}\n", "| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
        lines += [_row(meter) for meter in METERS if meter.scope is scope]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(meter: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in meter.labels) or "-"
    if meter.split is not None:
        labels += " (" + ", ".join(word.value for word in meter.split) + ")"
    return f"| `{meter.full_name}` | {meter.kind.value} | {meter.unit} | {labels} | {meter.help} |"
