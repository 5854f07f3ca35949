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
        "Attempts whose client left, by the stage that they had reached.",
        "stage",
        Stage,
    ),
    MetricDefinition(
        "engine_failures",
        _COUNTER,
        "attempts",
        _LANE,
        "failures",
        "Attempts that an engine failed, by the kind of failure.",
        "kind",
        FailureKind,
    ),
    # The queue: where it stands and what it will cost to join it.
    MetricDefinition("queued", _GAUGE, "attempts", _LANE, "queued", "Attempts in the queue."),
    MetricDefinition(
        "queued_tokens",
        _GAUGE,
        "tokens",
        _LANE,
        "queued_tokens",
        "Prompt and expected output tokens of queued attempts.",
    ),
    MetricDefinition(
        "queued_bytes", _GAUGE, "bytes", _LANE, "queued_bytes", "Request bytes of queued attempts."
    ),
    MetricDefinition(
        "oldest_queued_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "oldest_queued_s",
        "Age of the oldest queued attempt.",
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
        "Predicted wait of an attempt that arrives now.",
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
        "Wait of admitted attempts in the queue.",
    ),
    MetricDefinition(
        "window_wait_seconds",
        _HISTOGRAM,
        "seconds",
        _LANE_TRAFFIC,
        "window",
        "Part of the wait that an attempt spent in a batch window, of attempts queued for that.",
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
        "Attempts cut to `clip` output tokens instead of being refused, by the lane that they asked for.",
    ),
    MetricDefinition(
        "demoted",
        _COUNTER,
        "attempts",
        _LANE_TRAFFIC,
        "demoted",
        "Attempts run in the lane that theirs demotes to, instead of being refused.",
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
        "Variance between the streams' times per output token: some streams of this lane decode worse than others.",
    ),
    MetricDefinition(
        "hint_seconds", _HISTOGRAM, "seconds", _LANE_TRAFFIC, "hint", "Hints given to refused clients."
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
        "Seconds between the promised time and the admission of returned clients.",
    ),
    MetricDefinition(
        "hints_kept",
        _COUNTER,
        "attempts",
        _LANE,
        "hints_kept",
        "Clients that returned on time and were admitted within 0.5 s of it, or 20 % of their hint.",
    ),
    MetricDefinition(
        "hints_broken",
        _COUNTER,
        "attempts",
        _LANE,
        "hints_broken",
        "Clients that returned on time and were admitted later than 0.5 s and 20 % of their hint, or refused.",
    ),
    # The objective of each lane.
    MetricDefinition(
        "slo_good_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.short.good_share",
        "Share of requests within five minutes that ended good; a request refused for want of capacity did not.",
    ),
    MetricDefinition(
        "slo_good_hour_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.long.good_share",
        "Share of requests within an hour that ended good.",
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
        "Share of streams within five minutes whose tokens came fast enough.",
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
        "slo_burn_hour_ratio",
        _GAUGE,
        "ratio",
        _LANE,
        "slo.long.burn",
        "Error budget burnt within an hour: 1 uses up exactly all of it.",
    ),
    MetricDefinition(
        "slo_burning",
        _GAUGE,
        "0 or 1",
        _LANE,
        "slo.is_burning",
        "1 while the error budget burns fast enough for an alarm within five minutes and within an hour.",
    ),
    MetricDefinition(
        "ttft_p95_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.ttft.p95",
        "95th percentile of the time to the first token, fading with five minutes.",
    ),
    MetricDefinition(
        "ttft_p99_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.ttft.p99",
        "99th percentile of the time to the first token, fading with five minutes.",
    ),
    MetricDefinition(
        "tpot_p95_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.tpot.p95",
        "95th percentile of the time per output token.",
    ),
    MetricDefinition(
        "tpot_p99_seconds",
        _GAUGE,
        "seconds",
        _LANE,
        "slo.tpot.p99",
        "99th percentile of the time per output token.",
    ),
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
