"""Metrics of the gate itself: tenants, returns, the doors, the service and its process."""

from millgate.observe.meters.definition import MetricDefinition, MetricKind, Scope

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_TENANT = Scope.TENANT
_GATE, _RETRIES = Scope.GATE, Scope.RETRIES
_DOOR, _SERVICE, _PROCESS = Scope.DOOR, Scope.SERVICE, Scope.PROCESS

GATE_METERS: tuple[MetricDefinition, ...] = (
    # Tenants: the first hundred, the configured ones before all.
    MetricDefinition("tenant_attempts", _COUNTER, "attempts", _TENANT, "attempts", "Attempts of the tenant."),
    MetricDefinition(
        "tenant_yields", _COUNTER, "attempts", _TENANT, "yields", "Attempts of the tenant that were refused."
    ),
    MetricDefinition(
        "tenant_good", _COUNTER, "attempts", _TENANT, "good", "Attempts of the tenant that ended good."
    ),
    MetricDefinition(
        "tenant_judged",
        _COUNTER,
        "attempts",
        _TENANT,
        "judged",
        "Attempts of the tenant that were answered: good, late, or failed by an engine.",
    ),
    MetricDefinition(
        "tenant_prompt_tokens",
        _COUNTER,
        "tokens",
        _TENANT,
        "prompt_tokens",
        "Prompt tokens of what was admitted and is over.",
    ),
    MetricDefinition(
        "tenant_output_tokens", _COUNTER, "tokens", _TENANT, "output_tokens", "Output tokens of the same."
    ),
    # Requests that return, and the appointments that their clients have.
    MetricDefinition(
        "retry_labelled",
        _COUNTER,
        "attempts",
        _RETRIES,
        "labelled",
        "Attempts whose client said that they are retries.",
    ),
    MetricDefinition(
        "retry_recognised",
        _COUNTER,
        "attempts",
        _RETRIES,
        "recognised",
        "Attempts that were recognised and got their first arrival time back.",
    ),
    MetricDefinition(
        "retry_early", _COUNTER, "attempts", _RETRIES, "early", "Attempts that came back before their hint."
    ),
    MetricDefinition(
        "appointments",
        _GAUGE,
        "appointments",
        _RETRIES,
        "appointments",
        "Refused clients that are expected to come back.",
    ),
    MetricDefinition(
        "appointments_dropped",
        _COUNTER,
        "appointments",
        _RETRIES,
        "appointments_dropped",
        "Appointments given up because there were too many.",
    ),
    MetricDefinition(
        "return_records",
        _GAUGE,
        "records",
        _RETRIES,
        "records",
        "Fingerprints kept to recognise what comes back.",
    ),
    MetricDefinition(
        "retry_amplification_ratio",
        _GAUGE,
        "ratio",
        _RETRIES,
        "amplification",
        "Attempts over requests, since the start of each tenant that is known; absent without a retry budget.",
    ),
    MetricDefinition(
        "appointment_attendance_first_ratio",
        _GAUGE,
        "ratio",
        _RETRIES,
        "attendance_first",
        "Share of clients, refused for the first time, that come back when told; learned.",
    ),
    MetricDefinition(
        "appointment_attendance_returned_ratio",
        _GAUGE,
        "ratio",
        _RETRIES,
        "attendance_returned",
        "Share of clients, refused again after a return, that come back when told; learned.",
    ),
    MetricDefinition(
        "quota_left_ratio",
        _GAUGE,
        "ratio",
        Scope.QUOTA,
        "left_share",
        "Share of the burst that is left; of a quota for each tenant or model the least of those served last.",
    ),
    MetricDefinition(
        "quota_owners",
        _GAUGE,
        "owners",
        Scope.QUOTA,
        "owners",
        "Tenants, models or lanes with a bucket of their own in it that were served last, 256 of all quotas at most.",
    ),
    MetricDefinition(
        "retry_amplification_1m_ratio",
        _GAUGE,
        "ratio",
        _RETRIES,
        "amplification_1m",
        "Attempts over requests within the last minute: 1 is calm, 3 is a retry storm.",
    ),
    MetricDefinition(
        "retry_amplification_10m_ratio",
        _GAUGE,
        "ratio",
        _RETRIES,
        "amplification_10m",
        "The same within ten minutes.",
    ),
    MetricDefinition(
        "retry_budget",
        _GAUGE,
        "attempts",
        _RETRIES,
        "budget",
        "Retries that may pass within ten seconds; absent without a retry budget.",
    ),
    MetricDefinition(
        "retry_budget_spent",
        _GAUGE,
        "attempts",
        _RETRIES,
        "budget_spent",
        "Retries that were charged within the last ten seconds.",
    ),
    # The whole gate.
    MetricDefinition(
        "good_output_tokens",
        _COUNTER,
        "tokens",
        _GATE,
        "good_output_tokens",
        "Output tokens of attempts that ended good.",
    ),
    MetricDefinition(
        "wasted_prompt_tokens",
        _COUNTER,
        "tokens",
        _GATE,
        "wasted_prompt_tokens",
        "Prompt tokens of admitted attempts that did not end good.",
    ),
    MetricDefinition(
        "wasted_output_tokens",
        _COUNTER,
        "tokens",
        _GATE,
        "wasted_output_tokens",
        "Output tokens of admitted attempts that did not end good.",
    ),
    MetricDefinition(
        "prompt_estimate_bias_ratio",
        _GAUGE,
        "ratio",
        _GATE,
        "prompt_error.bias",
        "Prompt tokens over their estimates, less 1, of the last few hundred answers.",
    ),
    MetricDefinition(
        "prompt_estimate_error",
        _GAUGE,
        "ln",
        _GATE,
        "prompt_error.p90",
        "90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two.",
    ),
    MetricDefinition(
        "output_estimate_bias_ratio",
        _GAUGE,
        "ratio",
        _GATE,
        "output_error.bias",
        "Output tokens over their estimates, less 1, of the last few hundred answers.",
    ),
    MetricDefinition(
        "output_estimate_error",
        _GAUGE,
        "ln",
        _GATE,
        "output_error.p90",
        "90th percentile of |ln(actual / estimated)|: 0.69 is a factor of two.",
    ),
    MetricDefinition("draining", _GAUGE, "0 or 1", _GATE, "draining", "1 while the process is leaving."),
    # The HTTP door, before anything reaches the core.
    MetricDefinition(
        "door_connections", _GAUGE, "connections", _DOOR, "connections", "Open client connections."
    ),
    MetricDefinition(
        "door_refused_connections",
        _COUNTER,
        "connections",
        _DOOR,
        "refused_connections",
        "Connections refused because there were too many.",
    ),
    MetricDefinition(
        "door_rejected",
        _COUNTER,
        "requests",
        _DOOR,
        "rejected",
        "Bad requests: wrong framing, unknown path, bad input. They are no attempts.",
    ),
    MetricDefinition(
        "door_body_bytes", _GAUGE, "bytes", _DOOR, "body_bytes", "Bytes of bodies being received and kept."
    ),
    MetricDefinition(
        "door_body_limit_bytes", _GAUGE, "bytes", _DOOR, "body_limit_bytes", "Most of them at once."
    ),
    MetricDefinition(
        "door_refused_callers",
        _COUNTER,
        "requests",
        _DOOR,
        "refused_callers",
        "Requests refused for want of a good key. They are no attempts.",
    ),
    MetricDefinition(
        "door_spoofed_fields",
        _COUNTER,
        "fields",
        _DOOR,
        "spoofed_fields",
        "Tenant, lane and priority headers dropped because their sender is not trusted.",
    ),
    MetricDefinition(
        "door_shed",
        _COUNTER,
        "requests",
        _DOOR,
        "shed",
        "Requests refused as `overloaded_gate`: this process itself was too slow. `attempts` and `yields` do not have them.",
    ),
    MetricDefinition(
        "door_steering_fields",
        _COUNTER,
        "fields",
        _DOOR,
        "steering_fields",
        "Headers dropped that would steer another gateway or an engine: X-Forwarded-Host, X-Data-Parallel-Rank and the like.",
    ),
    MetricDefinition(
        "door_unusable_usage",
        _COUNTER,
        "answers",
        _DOOR,
        "unusable_usage",
        "Whole answers that should have said their tokens and said nothing usable: what was estimated stands.",
    ),
    # The process as a service.
    MetricDefinition(
        "config_reload_success",
        _GAUGE,
        "0 or 1",
        _SERVICE,
        "reload_success",
        "1 while the configuration in force is the one that was asked for last.",
    ),
    MetricDefinition(
        "config_reloads", _COUNTER, "reloads", _SERVICE, "reloads", "Reloads that were asked for."
    ),
    MetricDefinition(
        "config_reloads_failed",
        _COUNTER,
        "reloads",
        _SERVICE,
        "failed_reloads",
        "Reloads that kept the old configuration because the new one is wrong.",
    ),
    MetricDefinition(
        "loop_lag_seconds",
        _GAUGE,
        "seconds",
        _SERVICE,
        "loop_lag_s",
        "How late the loop's last timer was: what a ready event waits for its turn.",
    ),
    MetricDefinition(
        "loop_lag_worst_seconds",
        _GAUGE,
        "seconds",
        _SERVICE,
        "worst_loop_lag_s",
        "The latest since the start.",
    ),
    MetricDefinition(
        "log_lines_dropped",
        _COUNTER,
        "lines",
        _SERVICE,
        "log_lines_dropped",
        "Log lines of the process that could not be written.",
    ),
    MetricDefinition(
        "attempt_lines_dropped",
        _COUNTER,
        "lines",
        _SERVICE,
        "attempt_lines_dropped",
        "Log lines of attempts that could not be written.",
    ),
    # This process.
    MetricDefinition(
        "process_cpu_seconds",
        _COUNTER,
        "seconds",
        _PROCESS,
        "cpu_s",
        "Processor time of this process, user and system.",
    ),
    MetricDefinition(
        "process_resident_bytes",
        _GAUGE,
        "bytes",
        _PROCESS,
        "resident_bytes",
        "Memory of this process that is in RAM.",
    ),
    MetricDefinition(
        "process_open_files", _GAUGE, "files", _PROCESS, "open_files", "Open files and sockets."
    ),
    MetricDefinition(
        "process_max_files", _GAUGE, "files", _PROCESS, "max_files", "Most of them that the system allows."
    ),
    MetricDefinition("process_threads", _GAUGE, "threads", _PROCESS, "threads", "Threads of this process."),
)
