"""Metrics of lanes: what came in, what waits, the objective, Little's law."""

from typing import Final

from millgate.core.words import FailureKind, Outcome, Reason, Stage
from millgate.observe.meters.definition import MetricDefinition, MetricKind, Scope

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_LANE_TRAFFIC = Scope.LANE_TRAFFIC
_LANE = Scope.LANE
_YIELDS: Final = tuple(reason for reason in Reason if reason is not Reason.OVERLOADED_GATE)
"""What the core refuses attempts for; it hears of none that a gate refuses which is too slow itself (`door_shed`)."""


LANE_METERS: tuple[MetricDefinition, ...] = (
    # What came in and how it ended.
    MetricDefinition(
        "attempts",
        _COUNTER,
        "attempts",
        _LANE,
        "arrived",
        "Attempts that reached the gate; bad input is counted by the door.",
    ),
    MetricDefinition(
        "admitted", _COUNTER, "attempts", _LANE, "admitted", "Attempts that were given a permit."
    ),
    MetricDefinition(
        "outcomes",
        _COUNTER,
        "attempts",
        _LANE,
        "outcomes",
        "Attempts by their one outcome.",
        "outcome",
        Outcome,
    ),
    MetricDefinition(
        "yields", _COUNTER, "attempts", _LANE, "yields", "Attempts refused, by reason.", "reason", _YIELDS
    ),
    MetricDefinition(
        "clients_gone",
        _COUNTER,
        "attempts",
        _LANE,
        "gone",
        "Attempts whose client left, by how far they were.",
        "stage",
        Stage,
    ),
    MetricDefinition(
        "engine_failures",
        _COUNTER,
        "attempts",
        _LANE,
        "failures",
        "Attempts that an engine failed, by how.",
        "kind",
        FailureKind,
    ),
    # The queue: where it stands and what it will cost to join it.
    MetricDefinition("queued", _GAUGE, "attempts", _LANE, "queued", "Attempts that wait now."),
    MetricDefinition(
        "queued_tokens",
        _GAUGE,
        "tokens",
        _LANE,
        "queued_tokens",
        "Prompt and expected output tokens of what waits.",
    ),
    MetricDefinition("queued_bytes", _GAUGE, "bytes", _LANE, "queued_bytes", "Request bytes of what waits."),
    MetricDefinition(
        "oldest_queued_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "oldest_queued_s",
        "Age of the oldest attempt that waits.",
    ),
    MetricDefinition(
        "headroom",
        _GAUGE,
        "streams",
        _LANE,
        "headroom",
        "Streams that this lane lends to no other, used or not.",
    ),
    MetricDefinition(
        "expected_wait_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "expected_wait_s",
        "Wait that a new attempt would be told.",
    ),
    MetricDefinition(
        "running",
        _GAUGE,
        "attempts",
        _LANE,
        "running",
        "Attempts that hold a permit; that of a client that left counts until the engine lets go.",
    ),
    MetricDefinition(
        "wait_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "wait",
        "Wait of admitted attempts before they were.",
    ),
    MetricDefinition(
        "window_wait_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "window",
        "The part of it that was for the company of a batch, of those queued for that.",
    ),
    MetricDefinition(
        "ttft_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "ttft",
        "Arrival to first token of streams, the wait included.",
    ),
    MetricDefinition(
        "duration_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "total",
        "Arrival to end of admitted attempts, however they ended.",
    ),
    MetricDefinition(
        "clipped",
        _COUNTER,
        "attempts",
        _LANE_TRAFFIC,
        "clipped",
        "Attempts that were cut to `clip_tokens` so that they need not be refused, by the lane they asked for.",
    ),
    MetricDefinition(
        "demoted",
        _COUNTER,
        "attempts",
        _LANE_TRAFFIC,
        "demoted",
        "Attempts that ran in the lane that theirs demotes to so that they need not be refused.",
    ),
    MetricDefinition(
        "tpot_mean_seconds",
        _GAUGE,
        "seconds",
        _LANE_TRAFFIC,
        "lately.tpot_mean_s",
        "Mean of the streams' times per output token over about the last minute.",
    ),
    MetricDefinition(
        "tpot_variance",
        _GAUGE,
        "seconds squared",
        _LANE_TRAFFIC,
        "lately.tpot_variance",
        "Variance between them: some streams of this lane decode worse than others.",
    ),
    MetricDefinition(
        "hint_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "hint", "Hints that refused clients were given."
    ),
    MetricDefinition(
        "hint_return_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "hint_return",
        "Seconds between the promised and the actual return of admitted clients.",
    ),
    MetricDefinition(
        "hint_error_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "hint_error",
        "How far from that time they were admitted.",
    ),
    MetricDefinition(
        "hints_kept",
        _COUNTER,
        "attempts",
        _LANE,
        "hints_kept",
        "Attempts back when told that were admitted within 0.5 s of it, or 20 % of their hint.",
    ),
    MetricDefinition(
        "hints_broken",
        _COUNTER,
        "attempts",
        _LANE,
        "hints_broken",
        "Attempts back when told that were admitted later than that, or refused.",
    ),
    # The objective of each lane.
    MetricDefinition(
        "slo_good_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.short.good_share",
        "Share of requests within five minutes that ended good; one that was refused for want of capacity did not.",
    ),
    MetricDefinition(
        "slo_good_hour_ratio", _GAUGE, "ratio", _LANE, "slo.long.good_share", "The same within an hour."
    ),
    MetricDefinition(
        "slo_ttft_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.short.ttft_share",
        "Share of streams within five minutes whose first token was in time.",
    ),
    MetricDefinition(
        "slo_tpot_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.short.tpot_share",
        "Share of them whose tokens came fast enough.",
    ),
    MetricDefinition(
        "slo_burn_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.short.burn",
        "Error budget burnt within five minutes: 1 uses up exactly all of it.",
    ),
    MetricDefinition(
        "slo_burn_hour_ratio", _GAUGE, "ratio", _LANE, "slo.long.burn", "The same within an hour."
    ),
    MetricDefinition(
        "slo_burning",
        _GAUGE,
        "0 or 1",
        _LANE,
        "slo.is_burning",
        "1 while both burn fast enough for an alarm.",
    ),
    MetricDefinition(
        "ttft_p95_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.ttft.p95",
        "95th percentile of the time to the first token, fading with five minutes.",
    ),
    MetricDefinition("ttft_p99_seconds", _GAUGE, "seconds", _LANE, "slo.ttft.p99", "99th percentile of it."),
    MetricDefinition(
        "tpot_p95_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.tpot.p95",
        "95th percentile of the time per output token.",
    ),
    MetricDefinition("tpot_p99_seconds", _GAUGE, "seconds", _LANE, "slo.tpot.p99", "99th percentile of it."),
    # What is promised of either.
    MetricDefinition(
        "slo_ttft_target_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.ttft_promise.share",
        "Share of requests that is to have its first token within `ttft_slo`: 0.99 where that names p99.",
    ),
    MetricDefinition(
        "slo_tpot_target_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.tpot_promise.share",
        "Share of requests that is to have its tokens within `tpot_slo`; the lane's target is the smaller of the two.",
    ),
)


def _little(prefix: str, scope: Scope, over: str) -> tuple[MetricDefinition, ...]:
    """Return Little's law of every part of a stay: three independent readings and what is left between them."""
    return (
        MetricDefinition(
            prefix + "attempts",
            _GAUGE,
            "attempts",
            scope,
            "mean_attempts",
            f"L{over}: mean attempts inside, by time integral.",
        ),
        MetricDefinition(
            prefix + "entered_per_second",
            _GAUGE,
            "1/s",
            scope,
            "entered_per_s",
            f"Lambda{over}: attempts per second that came to this part.",
        ),
        MetricDefinition(
            prefix + "stay_seconds",
            _GAUGE,
            "seconds",
            scope,
            "mean_stay_s",
            f"W{over}: mean time in this part, of the attempts that left it.",
        ),
        MetricDefinition(
            prefix + "residual_ratio",
            _GAUGE,
            "ratio",
            scope,
            "residual",
            f"(L - lambda x W) / L{over}; far from 0 means a leak.",
        ),
    )


LITTLE_METERS = (
    *_little("little_", Scope.STAY, ""),
    *_little("little_all_", Scope.STAY_TOTAL, " of all lanes"),
)
