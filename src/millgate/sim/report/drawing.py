"""An experiment as one small SVG for a README or a report: lines, intervals, a legend; readable on light and dark pages."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, inf, log10

from millgate.sim.experiments.contract import ExperimentResult, SeriesPoint

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-size:14px}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}code{background:#f3f3f3;padding:.1rem .3rem}"
)
# Colour-blind safe (Okabe and Ito).
_COLOURS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 180, 44, 52
_TICKS = 5
_MOST_PLACES_LABELLED = 12

Scale = Callable[[float], float]


def drawing(answer: ExperimentResult) -> str:
    """Return the picture as SVG text."""
    xs = sorted({place.x for place in answer.places})
    highest = max(place.metrics[answer.metric].high for place in answer.places)
    x_scale = _scale(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT, logarithmic=answer.logarithmic_x)
    y_ticks = _ticks(highest)
    y_scale = _scale(0.0, y_ticks[-1], _HEIGHT - _BOTTOM, _TOP, logarithmic=False)
    parts = [_frame(answer), _grid(y_ticks, y_scale), _x_axis(_x_ticks(xs, x_scale), x_scale)]
    for number, series in enumerate(dict.fromkeys(place.series for place in answer.places)):
        places = sorted(
            (place for place in answer.places if place.series == series), key=lambda place: place.x
        )
        parts.append(_line(places, answer.metric, x_scale, y_scale, number))
        parts.append(_legend(series, number))
    parts.append(_seeds(answer))
    return f"{''.join(parts)}</svg>\n"


def _scale(low: float, high: float, begin: float, end: float, *, logarithmic: bool) -> Scale:
    if logarithmic and low > 0.0:
        plain = _scale(log10(low), log10(high), begin, end, logarithmic=False)
        return lambda value: plain(log10(value))
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _ticks(highest: float, most: int = _TICKS) -> list[float]:
    """Return round numbers from 0 to at least the highest value."""
    rough = max(highest, 1e-9) / most
    size = 10.0 ** floor(log10(rough))
    step = next(size * nice for nice in (1.0, 2.0, 2.5, 5.0, 10.0) if size * nice >= rough)
    return [step * index for index in range(ceil(highest / step - 1e-9) + 1)]


def _x_ticks(xs: Sequence[float], scale: Scale) -> list[float]:
    """Return where labels go: round numbers on a long axis, else the places that have room for one."""
    if len(xs) > _MOST_PLACES_LABELLED:
        return [tick for tick in _ticks(xs[-1], _TICKS + 3) if xs[0] <= tick <= xs[-1]]
    chosen = [xs[0]]
    for x in xs[1:]:
        if scale(x) - scale(chosen[-1]) >= 36.0:
            chosen.append(x)
    return chosen


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _frame(answer: ExperimentResult) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    upright = f'transform="rotate(-90 16 {_HEIGHT / 2:.0f})" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="#444">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        + _text(_LEFT, 24, answer.question, 'font-size="15" font-weight="600" fill="#222"')
        + _text(middle, _HEIGHT - 12, answer.x_label, 'text-anchor="middle"')
        + _text(16, _HEIGHT / 2, answer.y_label, upright)
    )


def _grid(ticks: Sequence[float], scale: Scale) -> str:
    lines = "".join(
        f'<path d="M{_LEFT} {scale(tick):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>' for tick in ticks
    )
    labels = "".join(_text(_LEFT - 8, scale(tick) + 4, f"{tick:.4g}", 'text-anchor="end"') for tick in ticks)
    return lines + labels


def _x_axis(ticks: Sequence[float], scale: Scale) -> str:
    base = _HEIGHT - _BOTTOM
    marks = "".join(f'<path d="M{scale(tick):.1f} {base}v5" stroke="#888"/>' for tick in ticks)
    labels = "".join(_text(scale(tick), base + 19, f"{tick:g}", 'text-anchor="middle"') for tick in ticks)
    return marks + labels


def _line(places: Sequence[SeriesPoint], metric: str, x_scale: Scale, y_scale: Scale, number: int) -> str:
    """Return one series: its 95 % band, its line, and a dot a place where there are few; a lone place has an upright for its band."""
    colour = _COLOURS[number % len(_COLOURS)]
    rows = [(x_scale(place.x), place.metrics[metric]) for place in places]
    upper = [f"{x:.1f},{y_scale(each.high):.1f}" for x, each in rows]
    lower = [f"{x:.1f},{y_scale(max(0.0, each.low)):.1f}" for x, each in reversed(rows)]
    points = [f"{x:.1f},{y_scale(each.mean):.1f}" for x, each in rows]
    gaps = [right[0] - left[0] for left, right in pairwise(rows)]
    dots = "" if gaps else f'<path d="M{upper[0]}L{lower[0]}" stroke="{colour}"/>'
    if min(gaps, default=inf) > 8.0:
        dots += "".join(
            f'<circle cx="{x:.1f}" cy="{y_scale(each.mean):.1f}" r="3" fill="{colour}"/>' for x, each in rows
        )
    return (
        f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.18"/>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'
    )


def _legend(series: str, number: int) -> str:
    x, y = _WIDTH - _RIGHT + 18, _TOP + 12 + 22 * number
    colour = _COLOURS[number % len(_COLOURS)]
    return f'<path d="M{x} {y - 4}h20" stroke="{colour}" stroke-width="3"/>' + _text(x + 28, y, series)


def _seeds(answer: ExperimentResult) -> str:
    """Say what the lines and the bands are; one value a place has no band."""
    seeds = max(place.metrics[answer.metric].seeds for place in answer.places)
    if seeds == 1:
        return ""
    x, y = _WIDTH - _RIGHT + 18, _HEIGHT - _BOTTOM
    return _text(x, y - 16, f"mean of {seeds} seeds", 'font-size="12"') + _text(
        x, y, "bands: 95 % intervals", 'font-size="12"'
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
