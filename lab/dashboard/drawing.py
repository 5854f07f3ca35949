"""A page with a graph for each panel of a recorded run: what Grafana would draw, for eyes that have no Grafana."""

import re
from pathlib import Path

import plotly.graph_objects as figures  # type: ignore[import-untyped]
from plotly.subplots import make_subplots  # type: ignore[import-untyped]

from lab.dashboard.recording import Line, Shown

_COLUMNS = 3
_HEIGHT_PX = 260


def draw(shown: list[Shown], file: Path) -> None:
    """Write the page, which holds its own script."""
    titles = list(dict.fromkeys((each.row, each.panel.title) for each in shown))
    rows = -(-len(titles) // _COLUMNS)
    names = [f"{row}: {title}" for row, title in titles]
    page = make_subplots(rows, _COLUMNS, subplot_titles=names, vertical_spacing=0.25 / rows)
    for each in shown:
        row, column = divmod(titles.index((each.row, each.panel.title)), _COLUMNS)
        for line in each.lines:
            page.add_trace(_trace(each, line), row + 1, column + 1)
    page.update_layout(height=_HEIGHT_PX * rows, width=1600, showlegend=False, template="plotly_white")
    page.update_annotations(font_size=12)
    page.write_html(file, include_plotlyjs=True)


def _trace(shown: Shown, line: Line) -> figures.Scatter:
    name = re.sub(r"{{(\w+)}}", lambda match: line.labels.get(match[1], ""), shown.query.legend)
    start = line.samples[0][0]
    times = [at - start for at, _value in line.samples]
    stacked = {"stackgroup": "one"} if shown.panel.is_stacked else {}
    return figures.Scatter(
        x=times, y=[value for _at, value in line.samples], name=name, mode="lines", **stacked
    )
