"""The panels as Grafana's JSON, by the typed builders of its foundation SDK."""

from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

from lab.dashboard.panels import ROWS, DashboardPanel

FILE: Final = Path(__file__).parents[2] / "deploy/grafana/millgate.json"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
# Grafana's grid is 24 wide: three panels side by side.
_SPAN, _HEIGHT = 8, 8


def render() -> str:
    """Return the whole dashboard as JSON, the same for the same panels."""
    board = (
        dashboard.Dashboard("Millgate")
        .uid("millgate")
        .description("One gate or several: traffic, queues, engines, and what the gate itself costs.")
        .tags(["millgate", "llm"])
        .timezone("browser")
        .refresh("15s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(millgate_build_info, job)"))
        .with_variable(
            _variable("instance", "Gate", 'label_values(millgate_build_info{job="$job"}, instance)')
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
        )
    )
    numbers = count(1)
    for row in ROWS:
        board.with_row(dashboard.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            board.with_panel(_graph(panel).id(next(numbers)))
    return JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(name).label(label).query(query).datasource(_SOURCE)
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _graph(panel: DashboardPanel) -> timeseries.Panel:
    graph = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.meaning)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .span(_SPAN)
        .height(_HEIGHT)
        .min(0.0)
        .fill_opacity(25.0 if panel.is_stacked else 0.0)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
    )
    if panel.most is not None:
        graph.max(panel.most)
    if panel.is_stacked:
        graph.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend)
        graph.with_target(target.datasource(_SOURCE))
    return graph
