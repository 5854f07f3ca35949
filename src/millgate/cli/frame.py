"""One frame of `millgate top`: a gate's state as tables; what arrives is the answer of `/api/state`.

The gate may be foreign: names are shown without what a terminal would obey, and a field that is missing is a dash.
"""

from collections.abc import Callable, Iterable, Iterator
from math import sqrt
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

State = dict[str, Any]
Cell = Callable[[State], str | Text]
"""What a column shows of a row."""
_UNKNOWN: Final = "-"
_LONGEST_NAME: Final = 40
_FULL, _HIGH = 1.0, 0.8
_LEVELS: Final = {"calm": "green", "warned": "yellow", "overloaded": "red", "down": "red"}


def frame(url: str, state: State, before: State | None, silence: str = "") -> RenderableType:
    """Return the frame of this state; rates are those since `before`, dashes without it. `silence` is why it is old."""
    passed_s = _number(state, "now") - _number(before, "now") if before is not None else 0.0
    parts: list[RenderableType] = [_title(url, state, silence), *_verdict(state), *_warnings(state)]
    parts += [_lanes(state, before, passed_s), _lane_times(state), _stays(state)]
    parts += [_engines(state), _engine_times(state), *_sessions(state), _load(state), _retries(state)]
    refused = _refused(state, before, passed_s)
    return Group(*parts, refused) if refused is not None else Group(*parts)


def _title(url: str, state: State, silence: str) -> Text:
    title = Text.assemble(("millgate ", "bold"), _clean(url))
    if host := state.get("host"):
        title.append(f" on {_clean(host)}")
    if state.get("draining"):
        title.append("  draining", "yellow")
    if silence:
        title.append(f"  no answer: {_clean(silence, 200)}", "red")
    title.append("   q ends", "dim")
    return title


def _verdict(state: State) -> Iterator[Text]:
    """Yield the page's sentence: is it overloaded, where, since when."""
    verdict = state.get("verdict")
    if isinstance(verdict, dict):
        colour = _LEVELS.get(str(verdict.get("level")), "")
        yield Text(_clean(verdict.get("text", ""), 400), f"bold {colour}".strip())


def _warnings(state: State) -> Iterator[Text]:
    for pool in _rows(state, "pools"):
        for alarm in _rows(pool, "alarms"):
            yield Text(f"! {_clean(alarm.get('words', ''), 300)}", "yellow")
    for lane in _rows(state, "lanes"):
        if advice := lane.get("slo", {}).get("advice"):
            yield Text(f"! {_clean(advice, 300)}", "red")


def _lanes(state: State, before: State | None, passed_s: float) -> Table:
    earlier = {lane.get("name"): lane for lane in _rows(before or {}, "lanes")}

    def rate(path: str) -> Cell:
        return lambda lane: _rate(lane, earlier.get(lane.get("name")), path, passed_s)

    return _table(
        _rows(state, "lanes"),
        ("lane", _own_name),
        ("queued", _of(_count, "queued")),
        ("oldest", _of(_seconds, "oldest_queued_s")),
        ("wait", _of(_seconds, "expected_wait_s")),
        ("run", _of(_count, "running")),
        ("in/s", rate("arrived")),
        ("good/s", rate("outcomes.good")),
        ("refused/s", rate("outcomes.yielded")),
        ("good 5m", _good),
        ("burn", _of(_decimal, "slo.short.burn")),
    )


def _lane_times(state: State) -> Table:
    """Return what answers take: each time at the promised quantile and at p99, and how long a batch window held them."""
    return _table(
        _rows(state, "lanes"),
        ("lane", _own_name),
        ("ttft promised", _of(_kept, "ttft")),
        ("p99", _of(_seconds, "slo.ttft.p99")),
        ("tpot promised", _of(_kept, "tpot")),
        ("p99", _of(_seconds, "slo.tpot.p99")),
        ("window", _of(_seconds, "lately.window_s")),
    )


def _stays(state: State) -> Table:
    """Return Little's law of whole stays (inside, entered a second, stay), of the queue and of engines, and what is left over."""
    lanes = list(_rows(state, "lanes"))
    if len(lanes) > 1:
        lanes.append({"name": "all lanes", "little": state.get("little")})
    return _table(
        lanes,
        ("lane", _own_name),
        ("L", _of(_decimal, "little.whole.mean_attempts")),
        ("lambda", _of(_decimal, "little.whole.entered_per_s")),
        ("W", _of(_stay, "little.whole")),
        ("queue L", _of(_decimal, "little.queue.mean_attempts")),
        ("W", _of(_stay, "little.queue")),
        ("engine L", _of(_decimal, "little.engine.mean_attempts")),
        ("W", _of(_stay, "little.engine")),
        ("residual", _of(_percent, "little.whole.residual")),
    )


def _stay(lane: State, part: str) -> str:
    """Return W, a dash where no stay is over."""
    return _seconds(lane, f"{part}.mean_stay_s") if _known(lane, f"{part}.completed") else _UNKNOWN


def _engines(state: State) -> Table:
    """Return permits and limits, and the engine's own gauges: running, waiting, KV in use."""
    return _table(
        _rows(state, "engines"),
        ("engine", _own_name),
        ("state", _stance),
        ("run", lambda engine: _used(engine, "running", "limit")),
        ("left", _of(_count, "departing")),
        ("KV", lambda engine: _share(engine, "kv_tokens", "kv_limit")),
        ("prefill", lambda engine: _share(engine, "prefill_tokens", "prefill_limit")),
        ("drain/s", _of(_decimal, "drain_per_s")),
        ("own gauges", _gauges),
    )


def _gauges(engine: State) -> str:
    seen = f"{_count(engine, 'seen_running')}+{_count(engine, 'seen_waiting')}"
    return f"{seen} {_percent(engine, 'seen_kv_share')}"


def _stance(engine: State) -> Text:
    account = engine.get("account") or {}
    silent = "silent" if engine.get("silent_s") else ""
    trouble = (
        "breaker open" if account.get("breaker_open") else "paused" if account.get("paused_s") else silent
    )
    return Text(trouble or "up", "red" if trouble else "green") if engine.get("up") else Text("down", "red")


def _engine_times(state: State) -> Table:
    """Return what is expected of engines, what was measured in the last minute, and how much of prompts was cached.

    Each ± is one standard deviation: of streams from each other, and of the time between tokens.
    """
    return _table(
        _rows(state, "engines"),
        ("engine", _own_name),
        ("ttft", _of(_seconds, "expected_ttft_s")),
        ("tpot", _of(_seconds, "expected_tpot_s")),
        ("streams", _of(_seconds, "lately.tpot_mean_s")),
        ("±", _of(_deviation, "lately.tpot_variance")),
        ("tokens", _of(_seconds, "lately.gap_mean_s")),
        ("±", _of(_deviation, "lately.gap_variance")),
        ("cached", _of(_percent, "lately.prefix_hit_share")),
    )


def _sessions(state: State) -> Iterator[Text]:
    """Yield how many sessions are live, their part of the engines' memory, and how much of what was believed to be cached was found."""
    live, predicted = _number(state, "live_sessions"), _number(state, "predicted_cached_tokens")
    if live or predicted:
        has_memory = any(_known(engine, "kv_limit") for engine in _rows(state, "engines"))
        memory = _percent(state, "working_set_share") if has_memory else _UNKNOWN
        found = (
            f"{100.0 * _number(state, 'found_cached_tokens') / predicted:.0f} %" if predicted else _UNKNOWN
        )
        yield Text(
            f"live sessions {live:,.0f}  of KV memory {memory}  of predicted cached tokens found {found}"
        )


def _load(state: State) -> Table:
    return _table(
        _rows(state, "pools"),
        ("pool", lambda pool: _name(" ".join(str(name) for name in pool.get("engines", ())))),
        ("load", _of(_percent, "warning.load")),
        ("calm", _of(_percent, "warning.calm_load")),
        ("occupancy", _of(_percent, "warning.occupancy")),
        ("trend/s", _of(_trend, "warning.trend")),
        ("accel", _of(_trend, "warning.acceleration")),
        ("backlog", _of(_seconds, "warning.backlog_s")),
        ("full in", _of(_seconds, "warning.time_to_full_s")),
    )


def _retries(state: State) -> Text:
    retries = state.get("retries") or {}
    shown = (
        ("amplification 1 min", _ratio(retries, "amplification_1m")),
        ("retry budget", f"{_count(retries, 'budget_spent')} of {_decimal(retries, 'budget')}"),
        ("expected back", _count(retries, "appointments")),
        ("recognised", _count(retries, "recognised")),
        ("hints kept", _hints(state)),
        ("early", _count(retries, "early")),
        ("wasted tokens", _count(state, "wasted_output_tokens")),
    )
    return Text("  ".join(f"{name} {value}" for name, value in shown))


def _hints(state: State) -> str:
    """Return how many of the hints that were followed were kept, over all lanes since the start."""
    kept = sum([_number(lane, "hints_kept") for lane in _rows(state, "lanes")])
    broken = sum([_number(lane, "hints_broken") for lane in _rows(state, "lanes")])
    return f"{kept:,.0f} of {kept + broken:,.0f}"


def _refused(state: State, before: State | None, passed_s: float) -> Text | None:
    """Return the refusals by reason, since the start and now; None while there was none."""
    reasons: dict[str, list[str]] = {}
    earlier = {lane.get("name"): lane for lane in _rows(before or {}, "lanes")}
    for lane in _rows(state, "lanes"):
        for reason in lane.get("yields") or {}:
            rate = _rate(lane, earlier.get(lane.get("name")), f"yields.{reason}", passed_s)
            said = f"{_clean(lane.get('name', ''))} {_count(lane['yields'], reason)} ({rate}/s)"
            reasons.setdefault(_clean(reason), []).append(said)
    if not reasons:
        return None
    return Text("refused  " + "  ".join(f"{reason}: {', '.join(said)}" for reason, said in reasons.items()))


# ---- cells


def _table(rows: Iterable[State], *columns: tuple[str, Cell]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for number, (title, _) in enumerate(columns):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[cell(row) for _, cell in columns])
    return table


def _of(show: Callable[[State, str], str], path: str) -> Cell:
    return lambda row: show(row, path)


def _rows(state: State, name: str) -> Iterable[State]:
    return [row for row in state.get(name) or () if isinstance(row, dict)]


def _clean(text: object, longest: int = _LONGEST_NAME) -> str:
    """Return text that a terminal only shows."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:longest])


def _name(text: object) -> Text:
    """Return a name for a cell, where plain strings could hold markup."""
    return Text(_clean(text))


def _own_name(row: State) -> Text:
    return _name(row.get("name", ""))


def _number(record: State | None, path: str) -> float:
    """Return what the dotted path leads to, 0 where it leads nowhere."""
    return _known(record, path) or 0.0


def _known(record: State | None, path: str) -> float | None:
    """Return the number that the dotted path leads to, None where it leads nowhere."""
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _time(value: float) -> str:
    return f"{1000.0 * value:.0f} ms" if 0.0 < value < 1.0 else f"{value:.1f} s"


def _shown_as(write: Callable[[float], str]) -> Callable[[State | None, str], str]:
    """Return what writes the number that a dotted path leads to, a dash where it leads nowhere."""

    def show(record: State | None, path: str) -> str:
        value = _known(record, path)
        return _UNKNOWN if value is None else write(value)

    return show


_count: Final = _shown_as("{:,.0f}".format)
_decimal: Final = _shown_as("{:,.1f}".format)
_ratio: Final = _shown_as("{:,.2f}".format)
_trend: Final = _shown_as("{:,.4f}".format)
_percent: Final = _shown_as(lambda share: f"{100.0 * share:.0f} %")
_seconds: Final = _shown_as(_time)
# The square root of a variance, as a time.
_deviation: Final = _shown_as(lambda variance: _time(sqrt(max(0.0, variance))))


def _good(lane: State) -> str:
    """Return the share that was good, and the quantile that is to be."""
    good, target = _percent(lane, "slo.short.good_share"), _known(lane, "slo.target_share")
    return good if target is None else f"{good} ({_quantile(target)})"


def _kept(lane: State, time: str) -> str:
    """Return a time at the promised quantile, beside the promise: p95 1.2 s of 2.0 s."""
    measured, share = _seconds(lane, f"slo.{time}.promised"), _known(lane, f"slo.{time}_promise.share")
    if share is None:
        return measured
    return f"{_quantile(share)} {measured} of {_seconds(lane, f'slo.{time}_promise.time_s')}"


def _quantile(share: float) -> str:
    return f"p{100.0 * share:g}"


def _rate(record: State, before: State | None, path: str, passed_s: float) -> str:
    """Return how fast a count rises; a dash when there is nothing to compare with or the gate has started anew."""
    risen = _number(record, path) - _number(before, path)
    if before is None or passed_s <= 0.0 or risen < 0.0:
        return _UNKNOWN
    return f"{risen / passed_s:.1f}"


def _used(record: State, name: str, limit: str) -> Text:
    """Return use and limit, coloured by how full it is."""
    most = _known(record, limit)
    return Text(f"{_count(record, name)}/{_count(record, limit)}", _colour(record, name, most))


def _share(record: State, name: str, limit: str) -> Text:
    """Return how full it is, or the use where there is no limit."""
    most = _known(record, limit)
    if not most:
        return Text(_count(record, name))
    return Text(f"{100.0 * _number(record, name) / most:.0f} %", _colour(record, name, most))


def _colour(record: State, name: str, most: float | None) -> str:
    share = _number(record, name) / most if most else 0.0
    return "red" if share >= _FULL else "yellow" if share >= _HIGH else ""
