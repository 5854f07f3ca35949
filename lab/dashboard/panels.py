"""What the dashboard shows: rows of panels, each a question in PromQL; a panel says what to read off it."""

from typing import Final, NamedTuple

from grafana_foundation_sdk.models import units

GATE: Final = 'job="$job",instance=~"$instance"'
"""What every query chooses its series by: the two variables at the top of the dashboard."""
OF: Final = "{" + GATE + "}"
_LAG: Final = "[$__rate_interval]"

LANES: Final = "{{lane}}"
ENGINES: Final = "{{engine}}"


class Query(NamedTuple):
    """One question and the name of its lines."""

    expr: str
    legend: str


class DashboardPanel(NamedTuple):
    """One graph; `most` is the upper end of its axis where that is known."""

    title: str
    unit: str
    meaning: str
    queries: tuple[Query, ...]
    most: float | None = None
    is_stacked: bool = False


class PanelRow(NamedTuple):
    """Panels about one subject."""

    title: str
    panels: tuple[DashboardPanel, ...]


def _rate(metric: str, by: str = "", more: str = "") -> str:
    """Return how fast a counter rises, summed over gates, by this label."""
    chosen = f"rate({metric}{{{GATE}{more}}}{_LAG})"
    return f"sum by ({by}) ({chosen})" if by else f"sum({chosen})"


def _quantile(share: float, metric: str, by: str) -> str:
    chosen = f"sum by (le, {by}) (rate({metric}_bucket{OF}{_LAG}))"
    return f"histogram_quantile({share}, {chosen})"


def _sum(metric: str, by: str) -> str:
    return f"sum by ({by}) ({metric}{OF})"


def _max(metric: str, by: str) -> str:
    return f"max by ({by}) ({metric}{OF})"


_TRAFFIC = PanelRow(
    "Traffic and outcomes",
    (
        DashboardPanel(
            "Attempts",
            units.RequestsPerSecond,
            "What arrives, by lane. A client that returns counts again.",
            (Query(_rate("millgate_attempts_total", "lane"), LANES),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Outcomes",
            units.RequestsPerSecond,
            "Good is a whole answer within its objective. Under overload `yielded` grows and `late` must not.",
            (Query(_rate("millgate_outcomes_total", "outcome") + " > 0", "{{outcome}}"),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Refusals by reason",
            units.RequestsPerSecond,
            "saturated, queue_full, displaced, too_late and expired are want of capacity; quota and tenant_limit are rules.",
            (Query(_rate("millgate_yields_total", "reason") + " > 0", "{{reason}}"),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Good requests",
            units.PercentUnit,
            "Share of the requests of five minutes that ended good, and the share that is promised.",
            (
                Query(f"min by (lane) (millgate_slo_good_ratio{OF})", LANES),
                Query(f"max by (lane) (millgate_slo_ttft_target_ratio{OF})", "{{lane}} promised"),
            ),
            most=1.0,
        ),
        DashboardPanel(
            "Error budget burnt",
            units.Short,
            "1 uses the budget up exactly. The alert MillgateSloBurning waits for both windows.",
            (
                Query(_max("millgate_slo_burn_ratio", "lane"), "{{lane}} 5 min"),
                Query(_max("millgate_slo_burn_hour_ratio", "lane"), "{{lane}} 1 h"),
            ),
        ),
        DashboardPanel(
            "Time to the first token, p50 and p95",
            units.Seconds,
            "From arrival, the wait included, of streams that were admitted.",
            (
                Query(_quantile(0.5, "millgate_ttft_seconds", "lane"), "{{lane}} p50"),
                Query(_quantile(0.95, "millgate_ttft_seconds", "lane"), "{{lane}} p95"),
            ),
        ),
    ),
)

_QUEUES = PanelRow(
    "Queues by lane",
    (
        DashboardPanel(
            "Queued", units.Short, "Requests that wait now.", (Query(_sum("millgate_queued", "lane"), LANES),)
        ),
        DashboardPanel(
            "Age of the oldest",
            units.Seconds,
            "Near the lane's deadline nothing more can be queued.",
            (Query(_max("millgate_oldest_queued_seconds", "lane"), LANES),),
        ),
        DashboardPanel(
            "Predicted and measured wait",
            units.Seconds,
            "What a newcomer would be told now, and the p95 of what admitted requests have waited.",
            (
                Query(_max("millgate_expected_wait_seconds", "lane"), "{{lane}} predicted"),
                Query(_quantile(0.95, "millgate_wait_seconds", "lane"), "{{lane}} p95"),
            ),
        ),
        DashboardPanel(
            "Queued tokens",
            units.Short,
            "Prompt and expected output tokens of what waits.",
            (Query(_sum("millgate_queued_tokens", "lane"), LANES),),
        ),
        DashboardPanel(
            "Load over capacity",
            units.Short,
            "Above 1 more arrives than can be served. The calm level is what is usual.",
            (
                Query(_max("millgate_load_ratio", "pool"), "{{pool}} now"),
                Query(_max("millgate_load_calm_ratio", "pool"), "{{pool}} calm"),
            ),
        ),
        DashboardPanel(
            "Occupancy",
            units.Short,
            "What runs and waits, over what may run. The autoscaler of the engines holds it at 0.8.",
            (Query(_max("millgate_occupancy_ratio", "pool"), "{{pool}}"),),
        ),
        DashboardPanel(
            "Filling",
            units.Short,
            "A minute over the time until no more may wait: 1 is full within a minute, 0 is not filling.",
            (Query(_max("pool:millgate_filling:ratio", "pool"), "{{pool}}"),),
        ),
    ),
)


def _law(part: str, title: str) -> DashboardPanel:
    chosen = "{" + f'{GATE},part="{part}"' + "}"
    return DashboardPanel(
        f"Little's law: {title}",
        units.Short,
        "L, the mean number inside, and lambda x W, rate times stay. Lines that part for long mean a leak.",
        (
            Query(f"sum by (lane) (millgate_little_attempts{chosen})", "{{lane}} L"),
            Query(
                f"sum by (lane) (millgate_little_entered_per_second{chosen} * millgate_little_stay_seconds{chosen})",
                "{{lane}} lambda x W",
            ),
        ),
    )


_LITTLE = PanelRow(
    "Little's law",
    (
        _law("whole", "the whole gate"),
        _law("queue", "the queue"),
        _law("engine", "the engines"),
        DashboardPanel(
            "What does not add up",
            units.PercentUnit,
            "(L - lambda x W) / L. The alert MillgatePermitsLeak waits for half an hour beyond a tenth.",
            (
                Query(
                    f"max by (lane, part) (abs(millgate_little_residual_ratio{OF}))",
                    "{{lane}} {{part}}",
                ),
            ),
        ),
    ),
)

_ENGINES = PanelRow(
    "Engines",
    (
        DashboardPanel(
            "Streams against the limit",
            units.Short,
            "Permits out and the limit in force, of all gates together, and the engine's own count.",
            (
                Query(_sum("millgate_engine_running", "engine"), "{{engine}} running"),
                Query(_sum("millgate_engine_limit", "engine"), "{{engine}} limit"),
                Query(_max("millgate_engine_seen_running", "engine"), "{{engine}} own count"),
            ),
        ),
        DashboardPanel(
            "Waiting inside the engine",
            units.Short,
            "Requests that the engine itself queues: none, where the cap is right.",
            (Query(_max("millgate_engine_seen_waiting", "engine"), ENGINES),),
        ),
        DashboardPanel(
            "KV cache",
            units.PercentUnit,
            "The engine's own share in use, and what permits have reserved.",
            (
                Query(_max("millgate_engine_seen_kv_ratio", "engine"), "{{engine}} in use"),
                Query(
                    f"{_sum('millgate_engine_kv_tokens', 'engine')} / {_max('millgate_engine_kv_limit_tokens', 'engine')}",
                    "{{engine}} reserved",
                ),
            ),
            most=1.0,
        ),
        DashboardPanel(
            "Prefill meter",
            units.Short,
            "Prompt tokens that were admitted and are not read, and the most at once.",
            (
                Query(_sum("millgate_engine_prefill_tokens", "engine"), "{{engine}} unread"),
                Query(_max("millgate_engine_prefill_limit_tokens", "engine"), "{{engine}} limit"),
            ),
        ),
        DashboardPanel(
            "Time per output token",
            units.Seconds,
            "The p95 of streams by engine, what the gate expects at the present load, and the p95 by lane that its objective is for.",
            (
                Query(_quantile(0.95, "millgate_engine_tpot_seconds", "engine"), "{{engine}} p95"),
                Query(_max("millgate_engine_expected_tpot_seconds", "engine"), "{{engine}} expected"),
                Query(_max("millgate_tpot_p95_seconds", "lane"), "{{lane}} p95"),
            ),
        ),
        DashboardPanel(
            "Objectives kept",
            units.PercentUnit,
            "Share of streams whose first token was in time, and whose tokens came fast enough.",
            (
                Query(f"min by (lane) (millgate_slo_ttft_ratio{OF})", "{{lane}} TTFT"),
                Query(f"min by (lane) (millgate_slo_tpot_ratio{OF})", "{{lane}} TPOT"),
            ),
            most=1.0,
        ),
        DashboardPanel(
            "Admission to first token",
            units.Seconds,
            "The p95 by engine, without the wait in the gate, and what the gate expects of a mean prompt.",
            (
                Query(_quantile(0.95, "millgate_engine_ttft_seconds", "engine"), "{{engine}} p95"),
                Query(_max("millgate_engine_expected_ttft_seconds", "engine"), "{{engine}} expected"),
            ),
        ),
        DashboardPanel(
            "Takes work",
            units.Short,
            "1 while the engine is up.",
            (Query(f"min by (engine) (millgate_engine_up{OF})", ENGINES),),
            most=1.0,
        ),
    ),
)

_QUOTAS = PanelRow(
    "Quotas and tenants",
    (
        DashboardPanel(
            "Left of each quota",
            units.PercentUnit,
            "Share of the burst that is left; of a quota for each tenant, that of the tenant with the least.",
            (Query(f"min by (quota) (millgate_quota_left_ratio{OF})", "{{quota}}"),),
            most=1.0,
        ),
        DashboardPanel(
            "Attempts by tenant",
            units.RequestsPerSecond,
            "The ten tenants that ask most.",
            (Query(f"topk(10, {_rate('millgate_tenant_attempts_total', 'tenant')})", "{{tenant}}"),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Refused by tenant",
            units.RequestsPerSecond,
            "The ten tenants that are refused most, for whatever reason.",
            (Query(f"topk(10, {_rate('millgate_tenant_yields_total', 'tenant')})", "{{tenant}}"),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Provider accounts",
            units.PercentUnit,
            "Least share that is left of any limit of the account. Empty without an engine with `account`.",
            (Query(f"min by (engine) (millgate_engine_account_left_ratio{OF})", ENGINES),),
            most=1.0,
        ),
    ),
)

_RETURNS = PanelRow(
    "Retries and hints",
    (
        DashboardPanel(
            "Attempts for each request",
            units.Short,
            "1 is calm, 3 is a retry storm.",
            (
                Query(f"max(millgate_retry_amplification_1m_ratio{OF})", "1 min"),
                Query(f"max(millgate_retry_amplification_10m_ratio{OF})", "10 min"),
            ),
        ),
        DashboardPanel(
            "Hints kept and broken",
            units.RequestsPerSecond,
            "Clients back when told that were admitted then, and those that were not.",
            (
                Query(_rate("millgate_hints_kept_total", "lane"), "{{lane}} kept"),
                Query(_rate("millgate_hints_broken_total", "lane"), "{{lane}} broken"),
            ),
        ),
        DashboardPanel(
            "Hints given",
            units.Seconds,
            "How long refused clients are told to stay away.",
            (
                Query(_quantile(0.5, "millgate_hint_seconds", "lane"), "{{lane}} p50"),
                Query(_quantile(0.95, "millgate_hint_seconds", "lane"), "{{lane}} p95"),
            ),
        ),
        DashboardPanel(
            "Appointments and retry budget",
            units.Short,
            "Refused clients that are expected back; retries that were charged within ten seconds, and that may be.",
            (
                Query(f"sum(millgate_appointments{OF})", "appointments"),
                Query(f"sum(millgate_retry_budget_spent{OF})", "retries charged"),
                Query(f"sum(millgate_retry_budget{OF})", "retry budget"),
            ),
        ),
    ),
)

_WASTE = PanelRow(
    "Waste and cancellations",
    (
        DashboardPanel(
            "Output tokens, good and wasted",
            units.CountsPerSecond,
            "Wasted tokens were made for answers that were late, broke off, or had no reader.",
            (
                Query(_rate("millgate_good_output_tokens_total"), "good"),
                Query(_rate("millgate_wasted_output_tokens_total"), "wasted"),
            ),
            is_stacked=True,
        ),
        DashboardPanel(
            "Clients that left",
            units.RequestsPerSecond,
            "By how far the request had come. The engine is told at once.",
            (Query(_rate("millgate_clients_gone_total", "stage"), "{{stage}}"),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Permits of clients that left",
            units.Short,
            "Slots that an engine may still work on for no reader, and how long it takes to let go.",
            (
                Query(_sum("millgate_engine_departing", "engine"), "{{engine}} permits"),
                Query(_max("millgate_engine_abort_lag_seconds", "engine"), "{{engine}} seconds"),
            ),
        ),
        DashboardPanel(
            "Failures by engine",
            units.RequestsPerSecond,
            "Attempts that the engine failed, and no other one made good.",
            (Query(_rate("millgate_engine_failed_attempts_total", "engine") + " > 0", ENGINES),),
            is_stacked=True,
        ),
        DashboardPanel(
            "Failures of engines",
            units.RequestsPerSecond,
            "By kind.",
            (Query(_rate("millgate_engine_failures_total", "kind") + " > 0", "{{kind}}"),),
            is_stacked=True,
        ),
    ),
)

_SELF = PanelRow(
    "The gate itself",
    (
        DashboardPanel(
            "Loop lag",
            units.Seconds,
            "How late a ready event is served. Beyond `limits.loop_lag` for a second the gate refuses.",
            (Query(f"max by (instance) (millgate_loop_lag_seconds{OF})", "{{instance}}"),),
        ),
        DashboardPanel(
            "Processor time",
            units.PercentUnit,
            "1 is the one core that a process can use.",
            (Query(f"rate(process_cpu_seconds_total{OF}{_LAG})", "{{instance}}"),),
        ),
        DashboardPanel(
            "Memory",
            units.BytesIEC,
            "Resident memory, and bodies that are being received and kept.",
            (
                Query(f"process_resident_memory_bytes{OF}", "{{instance}} resident"),
                Query(f"millgate_door_body_bytes{OF}", "{{instance}} bodies"),
            ),
        ),
        DashboardPanel(
            "Descriptors and connections",
            units.Short,
            "Open files and sockets, the most that there may be, and client connections.",
            (
                Query(f"process_open_fds{OF}", "{{instance}} open"),
                Query(f"process_max_fds{OF}", "{{instance}} most"),
                Query(f"millgate_door_connections{OF}", "{{instance}} clients"),
            ),
        ),
        DashboardPanel(
            "Refused by the door",
            units.RequestsPerSecond,
            "Bad requests, unknown keys, connections beyond the bound, and requests refused because the gate itself was too slow.",
            (
                Query(_rate("millgate_door_rejected_total"), "bad requests"),
                Query(_rate("millgate_door_refused_callers_total"), "unknown keys"),
                Query(_rate("millgate_door_refused_connections_total"), "connections"),
                Query(_rate("millgate_door_shed_total"), "gate too slow"),
            ),
        ),
        DashboardPanel(
            "Configuration and logs",
            units.Short,
            "1 while the configuration in force is the one that was asked for; log lines that were lost within five minutes.",
            (
                Query(
                    f"min by (instance) (millgate_config_reload_success{OF})", "{{instance}} configuration"
                ),
                Query(
                    f"sum by (instance) (increase(millgate_log_lines_dropped_total{OF}[5m]) "
                    f"+ increase(millgate_attempt_lines_dropped_total{OF}[5m]))",
                    "{{instance}} lines lost",
                ),
            ),
        ),
    ),
)

ROWS: Final = (_TRAFFIC, _QUEUES, _LITTLE, _ENGINES, _QUOTAS, _RETURNS, _WASTE, _SELF)
