"""What the gateway counts around the core: at the HTTP door, of its own service, and what never became an attempt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoorSnapshot:
    """The HTTP door at one instant.

    `rejected` counts bad requests (wrong framing, wrong path, bad input), `refused_connections` those beyond the cap,
    `refused_callers` requests without a good key, `spoofed_fields` tenant, lane and priority headers that were not
    believed, `steering_fields` those that would steer another gateway or an engine. `unusable_usage` counts whole
    answers that said nothing usable of their tokens. `shed` counts requests refused because this process itself was too
    slow. `body_bytes` are queued now against `body_limit_bytes` (INV-5). Of the external processor: `refused_streams`
    beyond its bound, `lost_slots` that ended by their lease, and `unknown_entries` of Envoy's access log that name no
    attempt of this process.
    """

    connections: int
    refused_connections: int
    rejected: int
    body_bytes: int
    body_limit_bytes: int
    refused_callers: int = 0
    spoofed_fields: int = 0
    shed: int = 0
    steering_fields: int = 0
    unusable_usage: int = 0
    coalesced: int = 0
    refused_streams: int = 0
    lost_slots: int = 0
    unknown_entries: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """This replica's lease: what it admits by, since when, and how its renewals went.

    `state` is `joining` (nothing is let in yet), `leased`, `holding` (the last renewals failed, the lease still lasts)
    or `degraded` (without a lease); `is_degraded` without a lease. `replicas` are those with a lease as last known.
    `renewed_s` ago a renewal was answered last, None before the first; `why` says what is wrong, and is empty while all
    is well.
    """

    replica: str
    state: str
    is_degraded: bool
    since_s: float
    replicas: int
    renewals: int
    failed_renewals: int
    renewed_s: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The process as a service: its configuration, its loop and its log.

    `reload_success` is whether the configuration in force is the one that was asked for last. `loop_lag_s` is how
    late the loop's last timer was, `worst_loop_lag_s` the latest since the start. `log_lines_dropped` are those of the
    process, `attempt_lines_dropped` those of attempts, `traces_dropped` attempts
    whose spans were lost. `cluster` is None where no limits are shared. Of a gate of several processes `workers` of
    `workers_wanted` are ready, and `worker_restarts` counts those that had died; None in a single process.
    """

    reload_success: bool
    reloads: int
    failed_reloads: int
    loop_lag_s: float
    worst_loop_lag_s: float
    log_lines_dropped: int
    attempt_lines_dropped: int = 0
    traces_dropped: int = 0
    cluster: ClusterSnapshot | None = None
    workers: int | None = None
    workers_wanted: int | None = None
    worker_restarts: int | None = None
