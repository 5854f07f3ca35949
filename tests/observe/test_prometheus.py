"""What is scraped is what the snapshot says, in a form that Prometheus and OpenMetrics accept."""

import dataclasses
import re
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_classic

from millgate import __version__
from millgate.core.decisions import Admit, Ended
from millgate.core.snapshot import (
    AccountReading,
    Alarm,
    AlarmSignal,
    Attainment,
    EngineSnapshot,
    ErrorReading,
    LaneSnapshot,
    LittleReading,
    LittleSnapshot,
    PoolSnapshot,
    Promise,
    Quantiles,
    QuotaLevel,
    RetrySnapshot,
    SloReading,
    Snapshot,
    TenantSnapshot,
    WarningReading,
)
from millgate.core.words import FailureKind, Outcome, Reason, Stage
from millgate.observe.door import DoorSnapshot
from millgate.observe.meters import METERS, MetricDefinition, MetricKind, Scope
from millgate.observe.prometheus import Exposition, HeptaminiCollector
from millgate.observe.traffic import Traffic

# A different number in every field, so that a metric that reads the wrong one is seen.
LITTLE = LittleSnapshot(
    whole=LittleReading(
        60.0, mean_attempts=1.5, entered_per_s=2.5, completed=90, mean_stay_s=3.5, residual=-0.25
    ),
    queue=LittleReading(
        60.0, mean_attempts=1.6, entered_per_s=2.6, completed=91, mean_stay_s=3.6, residual=-0.26
    ),
    engine=LittleReading(
        60.0, mean_attempts=1.7, entered_per_s=2.7, completed=92, mean_stay_s=3.7, residual=-0.27
    ),
)
SLO = SloReading(
    ttft=Quantiles(p95=0.51, p99=0.52, promised=0.505),
    tpot=None,
    short=Attainment(300.0, 10, 10, 0, good_share=0.53, ttft_share=0.54, tpot_share=0.55, burn=0.56),
    long=Attainment(3600.0, 20, 20, 0, good_share=0.57, ttft_share=0.58, tpot_share=0.59, burn=0.60),
    target_share=0.565,
    ttft_promise=Promise(0.575, 0.585),
    tpot_promise=Promise(0.595, 0.605),
    is_burning=True,
    advice="Engines are missing.",
)
LANE = LaneSnapshot(
    name="interactive",
    queued=11,
    queued_tokens=12,
    queued_bytes=13,
    headroom=0,
    oldest_queued_s=1.25,
    expected_wait_s=2.25,
    running=14,
    arrived=15,
    admitted=16,
    outcomes=((Outcome.GOOD, 17), (Outcome.LATE, 18)),
    yields=((Reason.TOO_LATE, 19),),
    gone=((Stage.PREFILL, 20),),
    failures=((FailureKind.TIMEOUT, 21),),
    little=LITTLE,
    slo=SLO,
    hints_kept=22,
    hints_broken=23,
)
ENGINE = EngineSnapshot(
    name="gpu-0",
    up=True,
    running=31,
    departing=32,
    limit=33,
    kv_tokens=34,
    kv_limit=None,
    prefill_tokens=35,
    prefill_limit=36,
    prefill_share=0.4,
    drain_per_s=4.5,
    expected_ttft_s=5.5,
    expected_tpot_s=6.5,
    expected_service_s=7.5,
    abort_lag_s=0.3,
    ignores_hangups=False,
    seen_running=37,
    seen_waiting=None,
    seen_kv_share=0.5,
    seen_preemptions=38,
    seen_age_s=0.75,
    account=AccountReading(left_share=0.25, others_share=0.125, paused_s=2.25, breaker_open=True),
)
RETRIES = RetrySnapshot(
    attempts=41,
    labelled=42,
    recognised=43,
    early=44,
    appointments=45,
    records=46,
    appointments_dropped=47,
    amplification=1.25,
    amplification_1m=1.75,
    amplification_10m=1.5,
    budget=48.5,
    budget_spent=49,
    attendance_first=0.875,
    attendance_returned=0.8125,
)
WARNING = WarningReading(
    load=0.61,
    calm_load=0.62,
    noise=0.63,
    excess=0.64,
    excess_threshold=0.65,
    occupancy=0.66,
    trend=0.67,
    acceleration=0.68,
    acceleration_threshold=0.695,
    backlog_s=0.69,
    time_to_full_s=float("inf"),
)
ALARM = Alarm(AlarmSignal.BACKLOG, 0.7, 0.5, 990.0, 999.0, "Half of what may wait waits.")
SNAPSHOT = Snapshot(
    now=1000.0,
    draining=False,
    is_served=True,
    lanes=(LANE,),
    engines=(ENGINE,),
    retries=RETRIES,
    good_output_tokens=51,
    wasted_prompt_tokens=52,
    wasted_output_tokens=53,
    bytes_per_token=(("model-a", 4.25),),
    mean_output_tokens=(("model-a", 200.0),),
    prompt_error=ErrorReading(samples=300.0, bias=0.71, p90=0.72),
    output_error=ErrorReading(samples=300.0, bias=0.73, p90=0.74),
    pools=(PoolSnapshot(("gpu-0",), WARNING, (ALARM,)),),
    tenants=(TenantSnapshot("acme", 81, 82),),
    little=LittleSnapshot(LITTLE.engine, LITTLE.whole, LITTLE.queue),
    quotas=(QuotaLevel("acme.rpm", 0.375, 83),),
)
TRAFFIC = Traffic(["acme"])
TRAFFIC.arrived("acme", 1000.0)
ENDED = Ended(1, Outcome.GOOD, "interactive", "gpu-0", 0.3, 2.7, 0.7, 5, 21, None, cached_tokens=4)
TRAFFIC.ended("acme", "model-a", ENDED, 1000.0)
TRAFFIC.decoded("gpu-0", 1000.0, 2.0, 20)
BACK = Admit(1, (), 0.5, 0.1, 1.0, due_at=999.25, window_s=0.04)
TRAFFIC.admitted("interactive", BACK, 1000.0)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(snapshot: Snapshot = SNAPSHOT, traffic: Traffic = TRAFFIC) -> Samples:
    body, _ = Exposition(lambda: snapshot, traffic=traffic.read).render()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_classic(body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples["millgate_" + name, tuple(sorted(labels.items()))]


def test_counts_of_a_lane_are_exported_by_word() -> None:
    samples = scrape()

    assert value(samples, "attempts_total", lane="interactive") == 15
    assert value(samples, "outcomes_total", lane="interactive", outcome="good") == 17
    assert value(samples, "yields_total", lane="interactive", reason="too_late") == 19
    assert value(samples, "clients_gone_total", lane="interactive", stage="prefill") == 20
    assert value(samples, "engine_failures_total", lane="interactive", kind="timeout") == 21


def test_what_ended_on_an_engine_and_what_it_failed_are_counted() -> None:
    traffic = Traffic()
    for outcome in (Outcome.GOOD, Outcome.ENGINE_FAILED, Outcome.CLIENT_GONE):
        traffic.ended("", "m", Ended(1, outcome, "interactive", "gpu-0", 0.0, 1.0, None, 10, 5, None), 2.0)
    samples = scrape(traffic=traffic)

    assert value(samples, "engine_ended_attempts_total", engine="gpu-0") == 3
    assert value(samples, "engine_failed_attempts_total", engine="gpu-0") == 1


def test_every_word_has_a_sample_before_it_happens_for_the_first_time() -> None:
    samples = scrape()

    assert value(samples, "yields_total", lane="interactive", reason="draining") == 0
    yields = [
        reason for reason in Reason if reason is not Reason.OVERLOADED_GATE
    ]  # no attempt is made of such
    counts = {
        "outcomes": len(Outcome),
        "yields": len(yields),
        "clients_gone": len(Stage),
        "engine_failures": len(FailureKind),
    }
    for name, count in counts.items():
        assert sum(sample == f"millgate_{name}_total" for sample, _ in samples) == count


def test_gauges_of_lane_engine_and_gate_are_exported() -> None:
    samples = scrape()

    assert value(samples, "queued", lane="interactive") == 11
    assert value(samples, "oldest_queued_seconds", lane="interactive") == 1.25
    assert value(samples, "engine_up", engine="gpu-0") == 1
    assert value(samples, "engine_running", engine="gpu-0") == 31
    assert value(samples, "engine_prefill_limit_tokens", engine="gpu-0") == 36
    assert value(samples, "engine_seen_preemptions_total", engine="gpu-0") == 38
    assert value(samples, "appointments") == 45
    assert value(samples, "wasted_output_tokens_total") == 53
    assert value(samples, "draining") == 0


def test_littles_law_is_exported_of_the_whole_stay_and_of_its_parts_by_lane_and_in_total() -> None:
    samples = scrape()

    def read(name: str, **labels: str) -> list[float]:
        return [value(samples, name, part=part, **labels) for part in ("whole", "queue", "engine")]

    assert read("little_attempts", lane="interactive") == [1.5, 1.6, 1.7]
    assert read("little_entered_per_second", lane="interactive") == [2.5, 2.6, 2.7]
    assert read("little_stay_seconds", lane="interactive") == [3.5, 3.6, 3.7]
    assert read("little_residual_ratio", lane="interactive") == [-0.25, -0.26, -0.27]
    assert read("little_all_attempts") == [1.7, 1.5, 1.6]
    assert read("little_all_stay_seconds") == [3.7, 3.5, 3.6]


def test_a_gate_of_many_lanes_has_littles_law_of_the_first_five_and_of_the_others_together() -> None:
    lanes = tuple(dataclasses.replace(LANE, name=f"lane-{number}") for number in range(13))
    samples = scrape(dataclasses.replace(SNAPSHOT, lanes=lanes))

    assert sum(name == "millgate_little_attempts" for name, _ in samples) == 3 * 6
    assert value(samples, "little_attempts", lane="lane-4", part="whole") == 1.5
    assert value(samples, "little_attempts", lane="other", part="whole") == pytest.approx(8 * 1.5)
    assert value(samples, "little_stay_seconds", lane="other", part="queue") == pytest.approx(3.6)


def test_accounts_quotas_and_attendance_are_exported() -> None:
    samples = scrape()

    assert value(samples, "engine_account_left_ratio", engine="gpu-0") == 0.25
    assert value(samples, "engine_account_others_ratio", engine="gpu-0") == 0.125
    assert value(samples, "engine_account_paused_seconds", engine="gpu-0") == 2.25
    assert value(samples, "engine_breaker_open", engine="gpu-0") == 1
    assert value(samples, "quota_left_ratio", quota="acme.rpm") == 0.375
    assert value(samples, "quota_owners", quota="acme.rpm") == 83
    assert value(samples, "appointment_attendance_first_ratio") == 0.875
    assert value(samples, "appointment_attendance_returned_ratio") == 0.8125


def test_an_engine_that_is_no_account_has_no_samples_of_one() -> None:
    names = {
        name
        for name, _ in scrape(
            dataclasses.replace(SNAPSHOT, engines=(dataclasses.replace(ENGINE, account=None),))
        )
    }

    assert not {name for name in names if "account" in name or "breaker" in name}


def test_what_is_unknown_or_off_has_no_sample() -> None:
    names = {name for name, _ in scrape()}

    assert "millgate_engine_seen_waiting" not in names
    assert "millgate_engine_kv_limit_tokens" not in names
    assert "millgate_engine_seen_running" in names


def test_objectives_and_the_early_warning_are_exported() -> None:
    samples = scrape()

    assert value(samples, "slo_good_ratio", lane="interactive") == 0.53
    assert value(samples, "slo_good_hour_ratio", lane="interactive") == 0.57
    assert value(samples, "slo_burn_ratio", lane="interactive") == 0.56
    assert value(samples, "slo_burning", lane="interactive") == 1
    assert value(samples, "ttft_p99_seconds", lane="interactive") == 0.52
    assert value(samples, "slo_ttft_target_ratio", lane="interactive") == 0.585
    assert value(samples, "slo_tpot_target_ratio", lane="interactive") == 0.605
    assert value(samples, "load_ratio", pool="gpu-0") == 0.61
    assert value(samples, "occupancy_acceleration", pool="gpu-0") == 0.68
    assert [value(samples, "alarm", pool="gpu-0", signal=each.value) for each in AlarmSignal] == [0, 0, 1]
    assert value(samples, "retry_amplification_ratio") == 1.25
    assert value(samples, "retry_amplification_1m_ratio") == 1.75
    assert value(samples, "retry_amplification_10m_ratio") == 1.5
    assert value(samples, "output_estimate_bias_ratio") == 0.73


def test_a_quantile_of_nothing_and_an_infinite_time_have_no_sample() -> None:
    names = {name for name, _ in scrape()}

    assert "millgate_ttft_p95_seconds" in names
    assert "millgate_tpot_p95_seconds" not in names
    assert "millgate_time_to_full_seconds" not in names


def test_a_histogram_counts_upwards_as_prometheus_reads_it() -> None:
    samples = scrape()

    def bucket(bound: str) -> float:
        return value(samples, "engine_ttft_seconds_bucket", engine="gpu-0", le=bound)

    assert [bucket(bound) for bound in ("0.2", "0.5", "1.0", "+Inf")] == [0, 1, 1, 1]
    assert value(samples, "engine_ttft_seconds_sum", engine="gpu-0") == pytest.approx(0.4)
    assert value(samples, "ttft_seconds_sum", lane="interactive") == pytest.approx(0.7)
    assert value(samples, "engine_tpot_seconds_sum", engine="gpu-0") == pytest.approx(0.1)
    assert value(samples, "engine_gap_seconds_count", engine="gpu-0") == 20
    assert value(samples, "tenant_good_total", tenant="acme") == 1


def test_the_truth_of_hints_the_window_and_the_cache_are_exported() -> None:
    samples = scrape()

    assert value(samples, "hints_kept_total", lane="interactive") == 22
    assert value(samples, "hints_broken_total", lane="interactive") == 23
    assert value(samples, "hint_return_seconds_sum", lane="interactive") == pytest.approx(0.25)
    assert value(samples, "hint_error_seconds_sum", lane="interactive") == pytest.approx(0.75)
    assert value(samples, "window_wait_seconds_sum", lane="interactive") == pytest.approx(0.04)
    assert value(samples, "engine_prefix_hit_ratio", engine="gpu-0") == pytest.approx(0.8)
    assert value(samples, "engine_cached_prompt_tokens_total", engine="gpu-0") == 4
    assert value(samples, "engine_tpot_variance", engine="gpu-0") == pytest.approx(0.0)


def test_the_tenant_is_the_only_label_that_a_client_may_bring_and_stands_on_counters_alone() -> None:
    for meter in METERS:
        assert ("tenant" in meter.labels) == (meter.scope is Scope.TENANT)
        assert meter.scope is not Scope.TENANT or meter.kind is MetricKind.COUNTER
        assert len(meter.labels) <= 2


def test_the_door_is_measured_where_there_is_one() -> None:
    door = DoorSnapshot(
        connections=61, refused_connections=62, rejected=63, body_bytes=64, body_limit_bytes=65
    )

    with_door = Exposition(lambda: SNAPSHOT, lambda: door).render()[0].decode()

    assert "millgate_door_connections 61.0\n" in with_door
    assert "millgate_door_refused_connections_total 62.0\n" in with_door
    assert "millgate_door_rejected_total 63.0\n" in with_door
    assert "millgate_door_body_bytes 64.0\n" in with_door
    assert "millgate_door_body_limit_bytes 65.0\n" in with_door
    assert "millgate_door_connections" not in {name for name, _ in scrape()}


def test_a_line_door_that_no_worker_has_any_more_is_left_out_of_the_page() -> None:
    """A file without one that was read before all workers were replaced: the whole page was an error."""
    assert list(HeptaminiCollector(lambda: None).collect()) == []


def test_the_build_is_told() -> None:
    build = [dict(labels) for name, labels in scrape() if name == "millgate_build_info"]

    assert [labels["version"] for labels in build] == [__version__]


def test_the_process_is_measured() -> None:
    samples = scrape()

    assert samples["process_resident_memory_bytes", ()] > 10_000_000
    assert samples["process_cpu_seconds_total", ()] > 0
    assert 2 < samples["process_open_fds", ()] < samples["process_max_fds", ()]
    assert 0 < time.time() - samples["process_start_time_seconds", ()] < 86_400
    assert value(samples, "process_threads") >= 1


def test_every_scrape_reads_a_new_snapshot() -> None:
    numbers = iter((1, 2))
    exposition = Exposition(lambda: dataclasses.replace(SNAPSHOT, good_output_tokens=next(numbers)))

    assert [b"millgate_good_output_tokens_total %d.0" % n in exposition.render()[0] for n in (1, 2)] == [
        True,
        True,
    ]


def test_openmetrics_is_answered_where_it_is_asked_for() -> None:
    body, content_type = Exposition(lambda: SNAPSHOT).render("application/openmetrics-text; version=1.0.0")

    families = {family.name: family.type for family in read_openmetrics(body.decode())}  # type: ignore[no-untyped-call]

    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert families["millgate_attempts"] == "counter"
    assert families["millgate_queued"] == "gauge"


def test_a_hostile_lane_name_cannot_break_the_page() -> None:
    lane = dataclasses.replace(LANE, name='a"} 1\nmillgate_fake 2')

    samples = scrape(dataclasses.replace(SNAPSHOT, lanes=(lane,)))

    assert value(samples, "queued", lane='a"} 1\nmillgate_fake 2') == 11
    assert "millgate_fake" not in {name for name, _ in samples}


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: meter.name)
def test_a_name_keeps_the_house_rules(meter: MetricDefinition) -> None:
    assert re.fullmatch(r"millgate_[a-z][a-z0-9_]*[a-z]", meter.full_name)
    assert meter.full_name.endswith("_total") == (meter.kind is MetricKind.COUNTER)
    if meter.unit in {"seconds", "bytes", "ratio", "1/s"}:
        suffix = "per_second" if meter.unit == "1/s" else meter.unit
        assert meter.name.endswith("_" + suffix)
    assert meter.help.endswith(".")


def test_names_are_declared_once() -> None:
    assert len({meter.name for meter in METERS}) == len(METERS)


def test_every_number_of_a_lane_and_an_engine_is_exported_or_known_not_to_be() -> None:
    """A new snapshot field needs a row in the table, or a reason here."""
    left_out = {"name", "little", "slo", "role"}
    for scope, record in ((Scope.LANE, LANE), (Scope.ENGINE, ENGINE)):
        read = {meter.field for meter in METERS if meter.scope is scope}
        read |= {field.partition(".")[0] for field in read}
        assert {field.name for field in dataclasses.fields(record)} - read - left_out == set()
