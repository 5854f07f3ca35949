"""Each alert fires in its recorded case and none in calm, by Prometheus' own tool; each has its page; every metric exists."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.recorded import CALM, SCRAPE_S, RecordedGate
from millgate.core.events import EngineDown, EngineUp
from millgate.observe.door import ClusterSnapshot
from millgate.observe.meters import METERS, PREFIX, MetricKind

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
RULES = FOLDER / "millgate.rules.yaml"
PAGES = ROOT / "docs/runbooks"
OVERLOAD = 6.0
"""Three times what both engines can do."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on this machine"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"(?<!:)\bmillgate_\w+", text))


def existing() -> set[str]:
    """Return every name that a page of metrics can hold."""
    found = {f"{PREFIX}build_info"}
    for meter in METERS:
        name = PREFIX + meter.name
        found.add(f"{name}_total" if meter.kind is MetricKind.COUNTER else name)
        if meter.kind is MetricKind.HISTOGRAM:
            found |= {name + end for end in ("_bucket", "_sum", "_count")}
    return found


def calm(gate: RecordedGate) -> None:
    gate.run(60, CALM)


def down(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.answers_prometheus = False
    gate.run(3, CALM)


def no_engine(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.step(EngineDown("gpu-0"))
    gate.step(EngineDown("gpu-1"))
    gate.run(3, CALM)


def one_engine_down(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.step(EngineDown("gpu-1"))
    gate.run(5, CALM / 2)


def one_engine_hangs(gate: RecordedGate) -> None:
    """Its health page is well, and it begins nothing; it gets one request at a time."""
    gate.run(5, CALM / 2)
    gate.hanging.add("gpu-1")
    gate.run(10, CALM / 2)


def one_engine_restarts(gate: RecordedGate) -> None:
    """It loads its model for half a minute, serves for as long, and dies."""
    gate.run(5, CALM / 2)
    for _ in range(6):
        gate.step(EngineDown("gpu-1"))
        gate.run(0.5, CALM / 2)
        gate.step(EngineUp("gpu-1"))
        gate.run(0.5, CALM / 2)


def one_engine_is_replaced(gate: RecordedGate) -> None:
    gate.run(5, CALM / 2)
    gate.step(EngineDown("gpu-1"))
    gate.run(1.5, CALM / 2)
    gate.step(EngineUp("gpu-1"))
    gate.run(20, CALM / 2)


def one_prompt_at_night(gate: RecordedGate) -> None:
    """It is too long for its deadline, and no other one comes for hours: by then the engine is silent."""
    gate.run(30, 1 / 300)
    gate.hanging = {"gpu-0", "gpu-1"}
    gate.run(5, 1 / 300)
    gate.hanging.clear()
    gate.shows["millgate_engine_silent_seconds", 'engine="gpu-0"'] = "20.0"
    gate.run(60, 1 / 3600)


def overload(gate: RecordedGate) -> None:
    gate.returns = lambda _hint_s, _tries: None
    gate.run(15, CALM)
    gate.run(30, OVERLOAD)


def retry_storm(gate: RecordedGate) -> None:
    gate.returns = lambda _hint_s, tries: 0.3 if tries < 8 else None
    gate.run(5, CALM)
    gate.run(6, OVERLOAD)


def broken_hints(gate: RecordedGate) -> None:
    """Engines that become four times as slow a moment after clients were told when to return."""
    gate.run(5, CALM)
    for turn in range(40):
        gate.service_s = 2.0 if turn % 2 == 0 else 12.0
        gate.run(1, OVERLOAD / 2)


def failures(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.fails = lambda attempt: attempt % 5 == 0
    gate.run(15, CALM)


def left_answers(gate: RecordedGate) -> None:
    gate.leaves = lambda attempt: attempt % 4 < 2
    gate.run(60, CALM)


def slow_gate(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.rise("shed", 4)


def refused_reload(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.say(reload_success=False)
    gate.run(3, CALM)


def lease(**changes: Any) -> ClusterSnapshot:
    """Return what a replica tells of a lease with which all is well, but for these changes."""
    well = ClusterSnapshot("gate-0", "leased", False, 60.0, 2, 240, 0, 0.1)
    return replace(well, **changes)


def lost_lease(gate: RecordedGate) -> None:
    gate.say(cluster=lease())
    gate.run(5, CALM)
    gate.say(cluster=lease(state="degraded", is_degraded=True, failed_renewals=8))
    gate.run(3, CALM)


def failing_renewals(gate: RecordedGate) -> None:
    for failed in range(12):
        gate.say(cluster=lease(failed_renewals=failed))
        gate.run(1, CALM)


def missing_workers(gate: RecordedGate) -> None:
    gate.say(workers=2, workers_wanted=2)
    gate.run(5, CALM)
    gate.say(workers=1)
    gate.run(7, CALM)


def lost_lines(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.rise("attempt_lines_dropped", 5)


def refused_connections(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.rise("refused_connections", 5)


def paused_provider(gate: RecordedGate) -> None:
    """A provider that refuses the first request after each pause of a minute: between two pauses there is none."""
    paused, shut = (f"millgate_engine_{name}" for name in ("account_paused_seconds", "breaker_open"))
    gate.shows[shut, 'engine="provider"'] = "0"
    for left_s in ("0", *("0", "45.0", "30.0", "15.0") * 9):
        gate.shows[paused, 'engine="provider"'] = left_s
        gate.run(SCRAPE_S / 60.0, CALM)


def leaking_permits(gate: RecordedGate) -> None:
    gate.run(5, CALM)
    gate.shows["millgate_little_residual_ratio", 'lane="interactive",part="engine"'] = "0.25"
    gate.run(35, CALM)


CASES: dict[str, Callable[[RecordedGate], None]] = {
    "MillgateDown": down,
    "MillgateNoEngine": no_engine,
    "MillgateSloBurning": overload,
    "MillgateGateTooSlow": slow_gate,
    "MillgateEngineDown": one_engine_down,
    "MillgateEngineFailures": failures,
    "MillgateOverloaded": overload,
    "MillgateOverloadComing": overload,
    "MillgateRetryStorm": retry_storm,
    "MillgateHintsBroken": broken_hints,
    "MillgateProviderPaused": paused_provider,
    "MillgateWastedWork": left_answers,
    "MillgatePermitsLeak": leaking_permits,
    "MillgateLeaseLost": lost_lease,
    "MillgateRenewalsFail": failing_renewals,
    "MillgateReloadFailed": refused_reload,
    "MillgateWorkersMissing": missing_workers,
    "MillgateLogLinesLost": lost_lines,
    "MillgateConnectionsRefused": refused_connections,
}


def fired(case: Callable[[RecordedGate], None], alert: str, folder: Path, *, expected: bool) -> None:
    """Record a case and have promtool say whether this alert, a regular expression, has ever fired in it."""
    gate = RecordedGate()
    case(gate)
    wanted = {"up"} | {name for rule in rules() for name in metrics_in(rule["expr"])}
    ever = f'max by (alertname) (max_over_time(ALERTS{{alertname=~"{alert}",alertstate="firing"}}[3h]))'
    asked = {
        "expr": ever,
        "eval_time": f"{gate.scrapes * SCRAPE_S:.0f}s",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if expected else [],
    }
    judge(gate.of(wanted), {"promql_expr_test": [asked]}, folder)


def judge(series: dict[str, str], expected: dict[str, Any], folder: Path) -> None:
    """Have promtool say whether these series, one sample a scrape, bring about what is expected."""
    interval = f"{SCRAPE_S:.0f}s"
    test = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        **expected,
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(document, width=1_000_000), encoding="utf-8")

    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_in_its_recorded_case(alert: str, tmp_path: Path) -> None:
    fired(CASES[alert], alert, tmp_path, expected=True)


@needs_promtool
@pytest.mark.parametrize(("up", "who"), [("1x8 0x8", "gate:8081"), ("1x8 stale", "Every gate")])
def test_a_gate_that_is_no_target_any_more_is_down_too(up: str, who: str, tmp_path: Path) -> None:
    """A pod that was evicted and finds no node: its target goes, and with it the series that was to become 0."""
    instance = {} if who == "Every gate" else {"instance": who}
    alert = {
        "exp_labels": {"severity": "page", "job": "millgate", **instance},
        "exp_annotations": {
            "summary": f"{who} does not answer Prometheus",
            "runbook_url": "https://github.com/millgate/millgate/blob/main/docs/runbooks/MillgateDown.md",
        },
    }
    asked = {"eval_time": "4m", "alertname": "MillgateDown", "exp_alerts": [alert]}
    judge({'up{job="millgate",instance="gate:8081"}': up}, {"alert_rule_test": [asked]}, tmp_path)


def one_stall(gate: RecordedGate) -> None:
    """The machine's host moves it: for a second and a half nothing runs, and what came in that time is refused."""
    gate.run(5, CALM)
    gate.say(shed=12, loop_lag_s=0.001, worst_loop_lag_s=1.5)
    gate.run(10, CALM)


@needs_promtool
def test_one_stall_that_is_over_wakes_no_person(tmp_path: Path) -> None:
    fired(one_stall, "Millgate.*", tmp_path, expected=False)


def one_tab_at_night(gate: RecordedGate) -> None:
    """A request every five minutes, and two people who close their tabs."""
    gate.run(30, 1 / 300)
    gate.leaves = lambda attempt: attempt % 2 == 0
    gate.run(20, 1 / 300)
    gate.leaves = lambda _attempt: False
    gate.run(40, 1 / 300)


@needs_promtool
def test_two_closed_tabs_of_a_quiet_night_are_no_ticket(tmp_path: Path) -> None:
    fired(one_tab_at_night, "Millgate.*", tmp_path, expected=False)


@needs_promtool
@pytest.mark.parametrize("case", [one_engine_hangs, one_engine_restarts])
def test_an_engine_that_hangs_or_goes_down_and_up_is_a_ticket_though_it_is_never_down_for_long(
    case: Callable[[RecordedGate], None], tmp_path: Path
) -> None:
    """One of four engines was lost all night, and requests with it, of which no alert said anything."""
    fired(case, "MillgateEngineDown", tmp_path, expected=True)


@needs_promtool
@pytest.mark.parametrize("case", [one_engine_is_replaced, one_prompt_at_night])
def test_an_engine_that_restarts_once_or_has_had_one_prompt_too_long_is_no_ticket(
    case: Callable[[RecordedGate], None], tmp_path: Path
) -> None:
    fired(case, "MillgateEngineDown", tmp_path, expected=False)


@needs_promtool
def test_no_alert_fires_in_calm(tmp_path: Path) -> None:
    fired(calm, "Millgate.*", tmp_path, expected=False)


@needs_promtool
def test_prometheus_takes_the_rules_and_the_example_of_a_configuration(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "millgate.token").write_text("hush", encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_a_severity_and_a_page_that_its_link_leads_to() -> None:
    assert {rule["alert"] for rule in ALERTS} == set(CASES)
    for rule in ALERTS:
        page = PAGES / f"{rule['alert']}.md"
        assert page.is_file(), rule["alert"]
        assert rule["annotations"]["runbook_url"].endswith(str(page.relative_to(ROOT)))
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert f"Severity: `{rule['labels']['severity']}`." in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(CASES))
def test_a_page_says_what_an_alert_means_what_to_look_at_and_what_to_do(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "What it means",
        "What to look at",
        "What to do",
    ]
    assert metrics_in(text) - existing() == set()


def test_every_metric_of_the_rules_exists() -> None:
    wanted = {name for rule in rules() for name in metrics_in(rule["expr"])}

    assert wanted
    assert wanted - existing() == set()
