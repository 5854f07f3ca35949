"""Records of several processes that serve as one gate, put together: one record of the same kind.

Each field has a rule, found by its name: counts, streams and tokens add up, times that promise something take the worst, and
shares are means that are weighted by what they are shares of. A field without a rule is a fault that a test finds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from millgate.core.snapshot import Alarm
from millgate.observe.histogram import Histogram
from millgate.observe.live.banner import Banner, Level

Rule = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Returns the value of a field from its values, which are not all None, and from the records that they stand in."""

_Record = TypeVar("_Record")
_LEVELS: Final = tuple(Level)


def merged(records: Sequence[_Record]) -> _Record:
    """Return one record for these, which are of one kind and at least one; a field that is None everywhere stays None."""
    kind = type(records[0])
    if kind in _WHOLE:
        return _WHOLE[kind](records)  # type: ignore[no-any-return]
    return kind(**{name: _field(kind, name, records) for name in names(kind)})


def names(kind: type) -> tuple[str, ...]:
    """Return the fields of a record's class."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return kind._fields  # type: ignore[attr-defined, no-any-return]


def rule_of(kind: type, field: str) -> Rule | None:
    """Return the rule of a field, None where there is none."""
    return _SPECIAL.get((kind.__name__, field)) or _RULES.get(field)


def _field(kind: type, field: str, records: Sequence[Any]) -> Any:
    known = [(value, record) for record in records if (value := getattr(record, field)) is not None]
    if not known:
        return None
    rule = rule_of(kind, field)
    if rule is None:
        raise TypeError(f"{kind.__name__}.{field} has no rule in observe/merging")
    return rule([value for value, _ in known], [record for _, record in known])


# ---- rules


def _of(rule: Callable[[Sequence[Any]], Any]) -> Rule:
    """Return the rule of what follows from the values alone."""
    return lambda values, _: rule(values)


def _first(values: Sequence[Any], _: Sequence[Any]) -> Any:
    return values[0]


def _first_said(values: Sequence[Any], _: Sequence[Any]) -> Any:
    """Return the first that is not empty."""
    return next((value for value in values if value), values[0])


def _mean(values: Sequence[Any], _: Sequence[Any]) -> float:
    return float(sum(values) / len(values))


def _by(weight: str) -> Rule:
    """Return the rule of a mean that is weighted by another field of the record; a plain mean where all weights are 0."""

    def rule(values: Sequence[Any], records: Sequence[Any]) -> float:
        weights = [getattr(record, weight) for record in records]
        if not sum(weights):
            return _mean(values, records)
        return float(sum(value * each for value, each in zip(values, weights, strict=True)) / sum(weights))

    return rule


def _with(*used: str) -> Rule:
    """Return the rule of a limit: a process whose share has shrunk still uses what runs, and no other one has it yet."""

    def rule(values: Sequence[Any], records: Sequence[Any]) -> int:
        running = [sum(getattr(record, name) for name in used) for record in records]
        return sum(map(max, values, running))

    return rule


def _rows(key: str) -> Rule:
    """Return the rule of a list of records that are the same thing where this field, or the field of a field, is the same."""

    def rule(values: Sequence[Any], _: Sequence[Any]) -> tuple[Any, ...]:
        found: dict[Any, list[Any]] = {}
        for rows in values:
            for row in rows:
                found.setdefault(_reach(row, key), []).append(row)
        return tuple(merged(same) for same in found.values())

    return rule


def _reach(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = getattr(row, name)
    return row


def _counts(values: Sequence[Iterable[tuple[Any, Any]]], _: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
    """Add up pairs of word and count."""
    found: dict[Any, Any] = {}
    for pairs in values:
        for word, count in pairs:
            found[word] = found.get(word, 0) + count
    return tuple(found.items())


def _means(values: Sequence[Iterable[tuple[str, float]]], _: Sequence[Any]) -> tuple[tuple[str, float], ...]:
    """Take the mean of the values under one name."""
    found: dict[str, list[float]] = {}
    for pairs in values:
        for name, value in pairs:
            found.setdefault(name, []).append(value)
    return tuple((name, sum(each) / len(each)) for name, each in found.items())


def _rates(values: Sequence[Mapping[str, float]], _: Sequence[Any]) -> dict[str, float]:
    return dict(_counts([tuple(each.items()) for each in values], _))


def _alarms(values: Sequence[Sequence[Any]], _: Sequence[Any]) -> tuple[Any, ...]:
    """Return the oldest alarm of each signal, the oldest first."""
    found: dict[Any, Any] = {}
    for alarm in sorted((each for alarms in values for each in alarms), key=lambda each: each.since):
        found.setdefault(alarm.signal, alarm)
    return tuple(found.values())


def _latest(values: Sequence[Any], _: Sequence[Any]) -> Any:
    return max(values, key=lambda each: each.since)


def _newest(values: Sequence[Sequence[Any]], _: Sequence[Any]) -> tuple[Any, ...]:
    """Return as many decisions as the longest list has, the newest of all."""
    rows = sorted((row for rows in values for row in rows), key=lambda row: -row.at)
    return tuple(rows[: max(map(len, values))])


def _histogram(records: Sequence[Histogram]) -> Histogram:
    counts = tuple(sum(column) for column in zip(*(each.counts for each in records), strict=True))
    return Histogram(records[0].bounds, counts, sum(each.total for each in records))


def _tenants(values: Sequence[Sequence[Any]], records: Sequence[Any]) -> tuple[Any, ...]:
    """Put tenants together, those with the most attempts first; shares are of what all processes have served and answered.

    A process that knows a tenant alone gives it all of its tokens.
    """
    shares = [(sum(map(_tokens, rows)), sum(row.tokens_share for row in rows)) for rows in values]
    whole = sum(tokens / share for tokens, share in shares if share)
    found = [
        replace(
            row,
            tokens_share=_tokens(row) / whole if whole else 0.0,
            good_share=row.served.good / row.served.judged if row.served.judged else 1.0,
        )
        for row in _rows("served.name")(values, records)
    ]
    return tuple(sorted(found, key=lambda row: -row.served.attempts))


def _tokens(row: Any) -> int:
    return row.served.prompt_tokens + row.served.output_tokens  # type: ignore[no-any-return]


def _degraded(values: Sequence[Any], records: Sequence[Any]) -> Any:
    """Return the value of a replica whose lease is not in order, if there is one."""
    return next((value for value, each in zip(values, records, strict=True) if each.is_degraded), values[0])


_WHOLE: Final[Mapping[type, Callable[[Sequence[Any]], Any]]] = {
    Histogram: _histogram,
    # The sentence of the process that is worst off.
    Banner: lambda records: max(records, key=lambda each: _LEVELS.index(each.level)),
    Alarm: lambda records: records[0],
}

_FIELDS: Final[Mapping[Rule, str]] = {
    # What a process has of its own: everything adds up.
    _of(sum): """
        queued queued_tokens queued_bytes running other_running arrived admitted hints_kept hints_broken
        hints_followed departing kv_tokens prefill_tokens drain_per_s adapter_loads
        attempts requests labelled recognised early appointments records appointments_dropped budget
        budget_spent refused answers long_requests good_output_tokens wasted_prompt_tokens
        wasted_output_tokens samples completed mean_attempts entered_per_s clipped demoted prompt_tokens
        cached_tokens output_tokens yields judged good late client_gone engine_failed ended failed
        connections refused_connections rejected body_bytes body_limit_bytes refused_callers spoofed_fields
        shed steering_fields unusable_usage log_lines_dropped attempt_lines_dropped reloads failed_reloads
        threads arrived_per_s good_per_s refused_per_s executed yielded renewals failed_renewals workers
        workers_wanted worker_restarts trend_per_s acceleration_per_s2 inflight cap live live_sessions begun fetched lost
        predicted_cached_tokens found_cached_tokens regret_tokens expired tokens transfer_s coalesced
        traces_dropped refused_streams lost_slots unknown_entries working_set_share memory_share
    """,
    # What promises or warns: the worst.
    _of(max): """
        now at oldest_queued_s expected_wait_s deadline_s headroom abort_lag_s p95 p99 promised window_s
        over_s excess excess_threshold backlog_s acceleration_threshold others_share paused_s silent_s wait_s
        loop_lag_s worst_loop_lag_s ttft_p95_s ttft_p99_s measured_s owners seen_running seen_waiting
        seen_kv_share seen_preemptions replicas renewed_s since_s kv_limit prefill_limit
    """,
    _of(min): "seen_age_s time_to_full_s left_share attendance_first attendance_returned",
    # What is a share or a mean.
    _mean: """
        load calm_load noise occupancy trend acceleration used prefill_share expected_ttft_s expected_tpot_s
        expected_service_s tpot_mean_s tpot_variance ttft_mean_s ttft_variance gap_mean_s gap_variance
        gap_deviation_s prefix_hit_share tokens_share good_share found_share
    """,
    _by("completed"): "mean_stay_s",
    _by("mean_attempts"): "residual",
    _by("attempts"): "amplification amplification_1m amplification_10m",
    _by("samples"): "bias p90",
    _by("answers"): "ttft_share tpot_share",
    _by("requests"): "burn",
    _by("long_requests"): "long_good_share",
    # What is the same everywhere.
    _first: """
        name tenant host engines target_share ttft_promise tpot_promise target quantile promised_s newcomer
        replica role
    """,
    _first_said: "advice why",
    _degraded: "state",
    _of(any): "is_degraded draining is_served up ignores_hangups is_burning breaker_open",
    _of(all): "reload_success",
    # Lists and records.
    _rows("name"): "lanes models quotas",
    _counts: "outcomes gone failures legs_by_role",
    _means: "bytes_per_token mean_output_tokens",
    _alarms: "alarms",
    _latest: "cleared",
    _newest: "decisions",
    _of(merged): """
        legs sessions little slo whole queue engine ttft tpot short long retries prompt_error output_error
        warning account lately wait window total hint hint_return hint_error gap banner rates objective
        signals seen served returns history snapshot door service traffic cluster
    """,
}
"""Which fields have which rule, by their names."""
_RULES: Final[Mapping[str, Rule]] = {name: rule for rule, names in _FIELDS.items() for name in names.split()}
_SPECIAL: Final[Mapping[tuple[str, str], Rule]] = {
    ("Snapshot", "engines"): _rows("name"),
    ("Snapshot", "pools"): _rows("engines"),
    ("Snapshot", "tenants"): _rows("tenant"),
    ("TrafficSnapshot", "engines"): _rows("name"),
    ("TrafficSnapshot", "tenants"): _rows("name"),
    ("Picture", "engines"): _rows("seen.name"),
    ("Picture", "pools"): _rows("engines"),
    ("Picture", "tenants"): _tenants,
    ("EngineSnapshot", "limit"): _with("running"),
    ("LanePicture", "stream_limit"): _with("running", "other_running"),
    ("LaneSnapshot", "yields"): _counts,
    ("Rates", "yielded"): _rates,
    ("Attainment", "good_share"): _by("requests"),
    ("ObjectivePicture", "good_share"): _by("requests"),
    ("ModelTraffic", "prefix_hit_share"): _by("prompt_tokens"),
    ("TenantPicture", "amplification"): _mean,
    ("LanePicture", "window_s"): _mean,
    ("LaneLately", "window_s"): _mean,
}
