"""What is scraped is what the snapshot says, in a form that Prometheus and OpenMetrics accept."""

import dataclasses
import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_classic

from headgate import __version__
from headgate.core.snapshot import EngineSnapshot, LaneSnapshot, LittleSnapshot, RetrySnapshot, Snapshot
from headgate.core.words import FailureKind, Outcome, Reason, Stage
from headgate.observe.door import DoorSnapshot
from headgate.observe.meters import METERS, Kind, Meter, Scope
from headgate.observe.prometheus import Exposition

# A different number in every field, so that a metric that reads the wrong one is seen.
LITTLE = LittleSnapshot(window_s=60.0, mean_running=1.5, admitted_per_s=2.5, mean_stay_s=3.5, residual=-0.25)
LANE = LaneSnapshot(
    name="interactive",
    held=11,
    held_tokens=12,
    held_bytes=13,
    oldest_held_s=1.25,
    expected_wait_s=2.25,
    running=14,
    arrived=15,
    admitted=16,
    outcomes=((Outcome.GOOD, 17), (Outcome.LATE, 18)),
    yields=((Reason.TOO_LATE, 19),),
    gone=((Stage.PREFILL, 20),),
    failures=((FailureKind.TIMEOUT, 21),),
    little=LITTLE,
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
    drain_per_s=4.5,
    expected_ttft_s=5.5,
    expected_tpot_s=6.5,
    expected_service_s=7.5,
    abort_lag_s=0.3,
    ignores_hangups=False,
    seen_running=37,
    seen_waiting=None,
    seen_kv_share=0.5,
    seen_age_s=0.75,
)
RETRIES = RetrySnapshot(
    attempts=41, labelled=42, recognised=43, early=44, places=45, entries=46, places_dropped=47
)
SNAPSHOT = Snapshot(
    now=1000.0,
    draining=False,
    lanes=(LANE,),
    engines=(ENGINE,),
    retries=RETRIES,
    good_output_tokens=51,
    wasted_prompt_tokens=52,
    wasted_output_tokens=53,
    bytes_per_token=(("model-a", 4.25),),
    mean_output_tokens=(("model-a", 200.0),),
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(snapshot: Snapshot = SNAPSHOT) -> Samples:
    body, _ = Exposition(lambda: snapshot).render()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read_classic(body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples["headgate_" + name, tuple(sorted(labels.items()))]


def test_counts_of_a_lane_are_exported_by_word() -> None:
    samples = scrape()

    assert value(samples, "attempts_total", lane="interactive") == 15
    assert value(samples, "outcomes_total", lane="interactive", outcome="good") == 17
    assert value(samples, "yields_total", lane="interactive", reason="too_late") == 19
    assert value(samples, "clients_gone_total", lane="interactive", stage="prefill") == 20
    assert value(samples, "engine_failures_total", lane="interactive", kind="timeout") == 21


def test_every_word_has_a_sample_before_it_happens_for_the_first_time() -> None:
    samples = scrape()

    assert value(samples, "yields_total", lane="interactive", reason="draining") == 0
    for name, words in {
        "outcomes": Outcome,
        "yields": Reason,
        "clients_gone": Stage,
        "engine_failures": FailureKind,
    }.items():
        assert sum(sample == f"headgate_{name}_total" for sample, _ in samples) == len(words)


def test_gauges_of_lane_engine_and_gate_are_exported() -> None:
    samples = scrape()

    assert value(samples, "held", lane="interactive") == 11
    assert value(samples, "oldest_held_seconds", lane="interactive") == 1.25
    assert value(samples, "little_residual_ratio", lane="interactive") == -0.25
    assert value(samples, "engine_up", engine="gpu-0") == 1
    assert value(samples, "engine_running", engine="gpu-0") == 31
    assert value(samples, "engine_prefill_limit_tokens", engine="gpu-0") == 36
    assert value(samples, "retry_places") == 45
    assert value(samples, "wasted_output_tokens_total") == 53
    assert value(samples, "draining") == 0


def test_what_is_unknown_or_off_has_no_sample() -> None:
    names = {name for name, _ in scrape()}

    assert "headgate_engine_seen_waiting" not in names
    assert "headgate_engine_kv_limit_tokens" not in names
    assert "headgate_engine_seen_running" in names


def test_the_door_is_measured_where_there_is_one() -> None:
    door = DoorSnapshot(
        connections=61, refused_connections=62, rejected=63, body_bytes=64, body_limit_bytes=65
    )

    with_door = Exposition(lambda: SNAPSHOT, lambda: door).render()[0].decode()

    assert "headgate_door_connections 61.0\n" in with_door
    assert "headgate_door_refused_connections_total 62.0\n" in with_door
    assert "headgate_door_rejected_total 63.0\n" in with_door
    assert "headgate_door_body_bytes 64.0\n" in with_door
    assert "headgate_door_body_limit_bytes 65.0\n" in with_door
    assert "headgate_door_connections" not in {name for name, _ in scrape()}


def test_the_build_is_told() -> None:
    build = [dict(labels) for name, labels in scrape() if name == "headgate_build_info"]

    assert [labels["version"] for labels in build] == [__version__]


def test_the_process_is_measured() -> None:
    samples = scrape()

    assert value(samples, "process_resident_bytes") > 10_000_000
    assert value(samples, "process_cpu_seconds_total") > 0
    assert 2 < value(samples, "process_open_files") < value(samples, "process_max_files")
    assert value(samples, "process_threads") >= 1


def test_every_scrape_reads_a_new_snapshot() -> None:
    numbers = iter((1, 2))
    exposition = Exposition(lambda: dataclasses.replace(SNAPSHOT, good_output_tokens=next(numbers)))

    assert [b"headgate_good_output_tokens_total %d.0" % n in exposition.render()[0] for n in (1, 2)] == [
        True,
        True,
    ]


def test_openmetrics_is_answered_where_it_is_asked_for() -> None:
    body, content_type = Exposition(lambda: SNAPSHOT).render("application/openmetrics-text; version=1.0.0")

    families = {family.name: family.type for family in read_openmetrics(body.decode())}  # type: ignore[no-untyped-call]

    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert families["headgate_attempts"] == "counter"
    assert families["headgate_held"] == "gauge"


def test_a_hostile_lane_name_cannot_break_the_page() -> None:
    lane = dataclasses.replace(LANE, name='a"} 1\nheadgate_fake 2')

    samples = scrape(dataclasses.replace(SNAPSHOT, lanes=(lane,)))

    assert value(samples, "held", lane='a"} 1\nheadgate_fake 2') == 11
    assert "headgate_fake" not in {name for name, _ in samples}


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: meter.name)
def test_a_name_keeps_the_house_rules(meter: Meter) -> None:
    assert re.fullmatch(r"headgate_[a-z][a-z_]*[a-z]", meter.full_name)
    assert meter.full_name.endswith("_total") == (meter.kind is Kind.COUNTER)
    if meter.unit in {"seconds", "bytes", "ratio", "1/s"}:
        suffix = "per_second" if meter.unit == "1/s" else meter.unit
        assert meter.name.endswith("_" + suffix)
    assert meter.help.endswith(".")


def test_names_are_declared_once() -> None:
    assert len({meter.name for meter in METERS}) == len(METERS)


def test_every_number_of_a_lane_and_an_engine_is_exported_or_known_not_to_be() -> None:
    """A new snapshot field needs a row in the table, or a reason here."""
    left_out = {"name", "little"}
    for scope, record in ((Scope.LANE, LANE), (Scope.ENGINE, ENGINE)):
        read = {meter.field for meter in METERS if meter.scope is scope}
        assert {field.name for field in dataclasses.fields(record)} - read - left_out == set()
