"""The reference page of the metrics, generated from the table of meters.

`millgate config metrics > docs/reference/metrics.md` writes it; a test fails while the page is not current.
"""

from millgate.observe.meters import METERS, MetricDefinition, Scope

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
`process_start_time_seconds`. They are those of the process that answers.
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
