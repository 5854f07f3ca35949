"""Every metric, declared once: its name, kind, labels, help, and the snapshot field it reads.

House rules: the prefix is `headgate_`; base units, named at the end (`_seconds`, `_bytes`, `_ratio`); counters
end in `_total`; no colons (those are for recording rules). Labels come from the configuration (lane, engine) or
from a closed enum, never from a client: tenants and models are not labels. A field that is None (unknown, stale,
switched off) has no sample. docs/reference/metrics.md is generated from this table.
"""

from enum import StrEnum
from typing import NamedTuple

from headgate.core.words import FailureKind, Outcome, Reason, Stage

PREFIX = "headgate_"


class Kind(StrEnum):
    """What may be done with a metric: a counter only rises, a gauge is read as it is."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Scope(StrEnum):
    """Which record a metric is read from; lanes and engines have one sample each, labelled with their name."""

    GATE = "gate"
    LANE = "lane"
    ENGINE = "engine"
    RETRIES = "retries"
    DOOR = "door"
    SERVICE = "service"
    PROCESS = "process"


class Meter(NamedTuple):
    """One metric. `field` is the path of attributes in the record of `scope`; `unit` is for people.

    With `split`, the field holds pairs of (word, count), and each word of that enum is one sample labelled
    `label`; words that have not happened yet are 0, so that rates work from the first time on.
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope
    field: str
    help: str
    label: str | None = None
    split: type[StrEnum] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names, in the order of a sample."""
        own = (self.scope.value,) if self.scope in {Scope.LANE, Scope.ENGINE} else ()
        return (*own, self.label) if self.label else own

    @property
    def full_name(self) -> str:
        """The name as it is exported."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")


_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE
_GATE, _LANE, _ENGINE, _RETRIES = Scope.GATE, Scope.LANE, Scope.ENGINE, Scope.RETRIES
_DOOR, _SERVICE, _PROCESS = Scope.DOOR, Scope.SERVICE, Scope.PROCESS

# fmt: off
METERS: tuple[Meter, ...] = (
    # What came in and how it ended.
    Meter("attempts", _COUNTER, "attempts", _LANE, "arrived", "Attempts that reached the gate; bad input is counted by the door."),
    Meter("admitted", _COUNTER, "attempts", _LANE, "admitted", "Attempts that were given a permit."),
    Meter("outcomes", _COUNTER, "attempts", _LANE, "outcomes", "Attempts by their one outcome.", "outcome", Outcome),
    Meter("yields", _COUNTER, "attempts", _LANE, "yields", "Attempts refused, by reason.", "reason", Reason),
    Meter("clients_gone", _COUNTER, "attempts", _LANE, "gone", "Attempts whose client left, by how far they were.", "stage", Stage),
    Meter("engine_failures", _COUNTER, "attempts", _LANE, "failures", "Attempts that an engine failed, by how.", "kind", FailureKind),
    # The queue: where it stands and what it will cost to join it.
    Meter("held", _GAUGE, "attempts", _LANE, "held", "Attempts that wait now."),
    Meter("held_tokens", _GAUGE, "tokens", _LANE, "held_tokens", "Prompt and expected output tokens of what waits."),
    Meter("held_bytes", _GAUGE, "bytes", _LANE, "held_bytes", "Request bytes of what waits."),
    Meter("oldest_held_seconds", _GAUGE, "seconds", _LANE, "oldest_held_s", "Age of the oldest attempt that waits."),
    Meter("expected_wait_seconds", _GAUGE, "seconds", _LANE, "expected_wait_s", "Wait that a new attempt would be told."),
    Meter("running", _GAUGE, "attempts", _LANE, "running", "Attempts that run now and whose client is still there."),
    # Little's law, three independent readings and what is left between them.
    Meter("little_running", _GAUGE, "attempts", _LANE, "little.mean_running", "L: mean attempts running, by time integral."),
    Meter("little_admitted_per_second", _GAUGE, "1/s", _LANE, "little.admitted_per_s", "Lambda: attempts admitted per second."),
    Meter("little_stay_seconds", _GAUGE, "seconds", _LANE, "little.mean_stay_s", "W: mean time from admission to the end."),
    Meter("little_residual_ratio", _GAUGE, "ratio", _LANE, "little.residual", "(L - lambda x W) / L; far from 0 means a leak."),
    # Engines: use and limit of every meter, learned speed, their own gauges.
    Meter("engine_up", _GAUGE, "0 or 1", _ENGINE, "up", "1 while the engine takes work."),
    Meter("engine_running", _GAUGE, "streams", _ENGINE, "running", "Permits out on the engine."),
    Meter("engine_departing", _GAUGE, "streams", _ENGINE, "departing", "Permits whose client left while the engine may still work for it."),
    Meter("engine_limit", _GAUGE, "streams", _ENGINE, "limit", "Most permits at once."),
    Meter("engine_kv_tokens", _GAUGE, "tokens", _ENGINE, "kv_tokens", "KV tokens reserved by permits."),
    Meter("engine_kv_limit_tokens", _GAUGE, "tokens", _ENGINE, "kv_limit", "Most KV tokens reserved at once; absent while this meter is off."),
    Meter("engine_prefill_tokens", _GAUGE, "tokens", _ENGINE, "prefill_tokens", "Prompt tokens admitted and not yet prefilled."),
    Meter("engine_prefill_limit_tokens", _GAUGE, "tokens", _ENGINE, "prefill_limit", "Most of them at once; absent while this meter is off."),
    Meter("engine_drain_per_second", _GAUGE, "1/s", _ENGINE, "drain_per_s", "Departures per second while the gate is full."),
    Meter("engine_expected_ttft_seconds", _GAUGE, "seconds", _ENGINE, "expected_ttft_s", "Learned time to the first token of a mean prompt."),
    Meter("engine_expected_tpot_seconds", _GAUGE, "seconds", _ENGINE, "expected_tpot_s", "Learned time per output token at the present load."),
    Meter("engine_expected_service_seconds", _GAUGE, "seconds", _ENGINE, "expected_service_s", "Learned time from admission to the end."),
    Meter("engine_abort_lag_seconds", _GAUGE, "seconds", _ENGINE, "abort_lag_s", "Learned time that an engine goes on for a client that left."),
    Meter("engine_ignores_hangups", _GAUGE, "0 or 1", _ENGINE, "ignores_hangups", "1 where the engine is held to go on to the end."),
    Meter("engine_seen_running", _GAUGE, "streams", _ENGINE, "seen_running", "The engine's own count of running requests; absent while unknown."),
    Meter("engine_seen_waiting", _GAUGE, "streams", _ENGINE, "seen_waiting", "The engine's own count of waiting requests; absent while unknown."),
    Meter("engine_seen_kv_ratio", _GAUGE, "ratio", _ENGINE, "seen_kv_share", "The engine's own share of KV cache in use; absent while unknown."),
    Meter("engine_seen_age_seconds", _GAUGE, "seconds", _ENGINE, "seen_age_s", "Age of the engine's last readable gauges."),
    # Work that comes back, and the places kept for it.
    Meter("retry_labelled", _COUNTER, "attempts", _RETRIES, "labelled", "Attempts whose client said that they are retries."),
    Meter("retry_recognised", _COUNTER, "attempts", _RETRIES, "recognised", "Attempts that were recognised and got their first arrival time back."),
    Meter("retry_early", _COUNTER, "attempts", _RETRIES, "early", "Attempts that came back before their hint."),
    Meter("retry_places", _GAUGE, "places", _RETRIES, "places", "Refused clients that are expected to come back."),
    Meter("retry_places_dropped", _COUNTER, "places", _RETRIES, "places_dropped", "Places given up because there were too many."),
    Meter("retry_entries", _GAUGE, "entries", _RETRIES, "entries", "Fingerprints kept to recognise what comes back."),
    # The whole gate.
    Meter("good_output_tokens", _COUNTER, "tokens", _GATE, "good_output_tokens", "Output tokens of attempts that ended good."),
    Meter("wasted_prompt_tokens", _COUNTER, "tokens", _GATE, "wasted_prompt_tokens", "Prompt tokens of admitted attempts that did not end good."),
    Meter("wasted_output_tokens", _COUNTER, "tokens", _GATE, "wasted_output_tokens", "Output tokens of admitted attempts that did not end good."),
    Meter("draining", _GAUGE, "0 or 1", _GATE, "draining", "1 while the process is leaving."),
    # The HTTP door, before anything reaches the core.
    Meter("door_connections", _GAUGE, "connections", _DOOR, "connections", "Open client connections."),
    Meter("door_refused_connections", _COUNTER, "connections", _DOOR, "refused_connections", "Connections refused because there were too many."),
    Meter("door_rejected", _COUNTER, "requests", _DOOR, "rejected", "Bad requests: wrong framing, unknown path, bad input. They are no attempts."),
    Meter("door_body_bytes", _GAUGE, "bytes", _DOOR, "body_bytes", "Bytes of bodies being received and held."),
    Meter("door_body_limit_bytes", _GAUGE, "bytes", _DOOR, "body_limit_bytes", "Most of them at once."),
    Meter("door_refused_callers", _COUNTER, "requests", _DOOR, "refused_callers", "Requests refused for want of a good key. They are no attempts."),
    Meter("door_spoofed_fields", _COUNTER, "fields", _DOOR, "spoofed_fields", "Tenant, lane and priority headers dropped because their sender is not trusted."),
    Meter("door_shed", _COUNTER, "requests", _DOOR, "shed", "Requests refused because this process itself was too slow."),
    # The process as a service.
    Meter("config_reload_success", _GAUGE, "0 or 1", _SERVICE, "reload_success", "1 while the configuration in force is the one that was asked for last."),
    Meter("config_reloads", _COUNTER, "reloads", _SERVICE, "reloads", "Reloads that were asked for."),
    Meter("config_reloads_failed", _COUNTER, "reloads", _SERVICE, "failed_reloads", "Reloads that kept the old configuration because the new one is wrong."),
    Meter("loop_lag_seconds", _GAUGE, "seconds", _SERVICE, "loop_lag_s", "How late the loop's last timer was: what a ready event waits for its turn."),
    Meter("loop_lag_worst_seconds", _GAUGE, "seconds", _SERVICE, "worst_loop_lag_s", "The latest since the start."),
    Meter("log_lines_dropped", _COUNTER, "lines", _SERVICE, "log_lines_dropped", "Log lines that nobody could take."),
    # This process.
    Meter("process_cpu_seconds", _COUNTER, "seconds", _PROCESS, "cpu_s", "Processor time of this process, user and system."),
    Meter("process_resident_bytes", _GAUGE, "bytes", _PROCESS, "resident_bytes", "Memory of this process that is in RAM."),
    Meter("process_open_files", _GAUGE, "files", _PROCESS, "open_files", "Open files and sockets."),
    Meter("process_max_files", _GAUGE, "files", _PROCESS, "max_files", "Most of them that the system allows."),
    Meter("process_threads", _GAUGE, "threads", _PROCESS, "threads", "Threads of this process."),
)
# fmt: on
