"""The dashboard: what is committed is what the panels say, every query is PromQL and asks for metrics that there are.

`python -m lab dashboard` asks a real Prometheus every query during an overload.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.dashboard.grafana import FILE, render
from lab.dashboard.panels import ROWS
from lab.dashboard.recording import Line, Shown, report

from deploy.test_alerts import existing, metrics_in, needs_promtool, rules

QUERIES = [query for row in ROWS for panel in row.panels for query in panel.queries]
_VARIABLES = {"$job": "millgate", "$instance": ".*", "$__rate_interval": "1m"}
_PROCESS = {
    f"process_{name}" for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds")
}


def board() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return data


def test_the_committed_dashboard_is_current() -> None:
    """Write it with `python -m lab dashboard --write`."""
    assert FILE.read_text(encoding="utf-8") == render()


def test_every_panel_has_a_meaning_a_unit_and_a_place_of_its_own() -> None:
    panels = [panel for panel in board()["panels"] if panel["type"] != "row"]
    places = {tuple(sorted(panel["gridPos"].items())) for panel in panels}

    assert [panel["title"] for panel in panels] == [panel.title for row in ROWS for panel in row.panels]
    assert len({panel["title"] for panel in panels}) == len(panels) == len(places) > 30
    assert all(panel["description"].endswith(".") for panel in panels)
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
    assert len({panel["id"] for panel in board()["panels"]}) == len(board()["panels"])


def test_every_query_chooses_by_the_variables_that_the_dashboard_has() -> None:
    variables = {each["name"] for each in board()["templating"]["list"]}

    assert variables == {"source", "job", "instance"}
    for query in QUERIES:
        selectors = re.findall(r"\{(job=[^}]*)\}", query.expr)
        assert selectors, query.expr
        assert all(each.startswith('job="$job",instance=~"$instance"') for each in selectors)
        assert len(re.findall(r"\b(?:millgate|process|pool:millgate)_\w+", query.expr)) <= len(selectors)
        assert set(re.findall(r"\$(\w+)", query.expr)) <= variables | {"__rate_interval"}


def test_what_each_gate_has_out_is_added_up_over_gates() -> None:
    """Of three replicas with 20 streams each on an engine the dashboard showed 20, beside the engine's own 60."""
    own = r"max by \(engine\) \(millgate_engine_(?:running|limit|departing|kv_tokens|prefill_tokens)\b"
    assert [query.expr for query in QUERIES if re.search(own, query.expr)] == []


def test_every_query_asks_for_metrics_that_there_are() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for query in QUERIES:
        assert metrics_in(query.expr) <= existing()
        assert set(re.findall(r"\bprocess_\w+", query.expr)) <= _PROCESS
        assert set(re.findall(r"\w+:millgate_\w+:\w+", query.expr)) <= recorded


def test_every_part_of_the_gate_has_its_row() -> None:
    assert [row.title for row in ROWS] == [
        "Traffic and outcomes",
        "Queues by lane",
        "Little's law",
        "Engines",
        "Quotas and tenants",
        "Retries and hints",
        "Waste and cancellations",
        "The gate itself",
    ]


@needs_promtool
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    found = []
    for number, query in enumerate(QUERIES):
        expr = query.expr
        for name, value in _VARIABLES.items():
            expr = expr.replace(name, value)
        found.append({"record": f"query:number_{number}", "expr": expr})
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": found}]}), encoding="utf-8")

    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


@pytest.mark.parametrize(("samples", "shows"), [([(0.0, 1.5), (1.0, 2.5)], "1.5 .. 2.5"), ([], "EMPTY")])
def test_a_query_that_shows_nothing_is_reported(samples: list[tuple[float, float]], shows: str) -> None:
    panel = ROWS[0].panels[0]
    lines = [Line({"lane": "interactive"}, samples)] if samples else []

    text, empty = report([Shown(ROWS[0].title, panel, panel.queries[0], lines)])

    assert text.endswith(shows)
    assert empty == ([] if samples else ["Attempts: {{lane}}"])
