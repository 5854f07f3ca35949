"""An experiment as one HTML file: the question, the picture, the numbers; no network needed to read it."""

from html import escape

from millgate.sim.experiments.contract import ExperimentResult, SeriesPoint
from millgate.sim.report.drawing import drawing

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:14px}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}code{background:#f3f3f3;padding:.1rem .3rem}"
)


def page(answer: ExperimentResult, command: str) -> str:
    """Return the whole page."""
    facts = "".join(f"<li>{escape(name)}: {value:.4g}</li>" for name, value in answer.facts.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(answer.name)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(answer.question)}</h1>"
        f"<p>Made with <code>{escape(command)}</code>. Lines are means over seeds, bands their 95 % confidence"
        f" intervals; all series meet the same arrivals.</p>{drawing(answer)}<ul>{facts}</ul>{_table(answer)}</body></html>"
    )


def _table(answer: ExperimentResult) -> str:
    names = list(dict.fromkeys(name for place in answer.places for name in place.metrics))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("series", answer.x_label, *names))
    rows = "".join(_row(place, names) for place in answer.places)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(place: SeriesPoint, names: list[str]) -> str:
    cells = [f"<td>{escape(place.series)}</td><td>{place.x:g}</td>"]
    told = {name: f"{each.mean:.4g}" for name, each in place.metrics.items()}
    cells += [f"<td>{told.get(name, '')}</td>" for name in names]
    return f"<tr>{''.join(cells)}</tr>"
