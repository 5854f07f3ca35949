"""What the gateway counts around the core: at the HTTP door, of its own service, and what never became an attempt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoorSnapshot:
    """The HTTP door at one instant.

    `rejected` counts bad requests (wrong framing, wrong path, bad input), `refused_connections` those beyond the
    cap, `refused_callers` requests without a good key, `spoofed_fields` tenant, lane and priority headers that were
    not believed, `steering_fields` those that would steer another gateway or an engine. `unusable_usage` counts whole answers that
    said nothing usable of their tokens. `shed` counts requests refused because this process itself was too slow. `body_bytes` are queued now
    against `body_limit_bytes` (INV-5).
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


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The process as a service: its configuration, its loop and its log.

    `reload_success` is whether the configuration in force is the one that was asked for last. `loop_lag_s` is how
    late the loop's last timer was, `worst_loop_lag_s` the latest since the start. `log_lines_dropped` are those of the
    process, `attempt_lines_dropped` those of attempts.
    """

    reload_success: bool
    reloads: int
    failed_reloads: int
    loop_lag_s: float
    worst_loop_lag_s: float
    log_lines_dropped: int
    attempt_lines_dropped: int = 0
