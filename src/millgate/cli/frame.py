"""One frame of `millgate top`: a gate's state as tables; what arrives is the answer of `/api/state`.

The gate may be foreign: names are shown without what a terminal would obey, and a field that is missing is a dash.
"""

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

State = dict[str, Any]
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
    """Yield alarms and advice in words."""
    for pool in _rows(state, "pools"):
        for alarm in _rows(pool, "alarms"):
            yield Text(f"! {_clean(alarm.get('words', ''), 300)}", "yellow")
    for lane in _rows(state, "lanes"):
        if advice := lane.get("slo", {}).get("advice"):
            yield Text(f"! {_clean(advice, 300)}", "red")


def _lanes(state: State, before: State | None, passed_s: float) -> Table:
    table = _table(
        "lane", "queued", "oldest", "wait", "run", "in/s", "good/s", "refused/s", "good 5m", "burn"
    )
    earlier = {lane.get("name"): lane for lane in _rows(before or {}, "lanes")}
    for lane in _rows(state, "lanes"):
        was = earlier.get(lane.get("name"))
        short = (lane.get("slo") or {}).get("short") or {}
        table.add_row(
            _name(lane.get("name", "")),
            _count(lane, "queued"),
            _seconds(lane, "oldest_queued_s"),
            _seconds(lane, "expected_wait_s"),
            _count(lane, "running"),
            *(_rate(lane, was, what, passed_s) for what in ("arrived", "outcomes.good", "outcomes.yielded")),
            _good(lane),
            _decimal(short, "burn"),
        )
    return table


def _lane_times(state: State) -> Table:
    """Return what answers take: each time at the promised quantile and at p99, and how long a batch window held them."""
    table = _table("lane", "ttft promised", "p99", "tpot promised", "p99", "window")
    for lane in _rows(state, "lanes"):
        slo = lane.get("slo") or {}
        table.add_row(
            _name(lane.get("name", "")),
            *(
                cell
                for time in ("ttft", "tpot")
                for cell in (_kept(slo, time), _seconds(slo.get(time), "p99"))
            ),
            _seconds(lane.get("lately"), "window_s"),
        )
    return table


def _stays(state: State) -> Table:
    """Return Little's law of whole stays (inside, entered a second, stay), of the queue and of engines, and what is left over."""
    table = _table("lane", "L", "lambda", "W", "queue L", "W", "engine L", "W", "residual")
    lanes = [(str(lane.get("name", "")), lane.get("little")) for lane in _rows(state, "lanes")]
    if len(lanes) > 1:
        lanes.append(("all lanes", state.get("little")))
    for name, little in lanes:
        parts = little if isinstance(little, dict) else {}
        whole = parts.get("whole")
        table.add_row(
            _name(name),
            _decimal(whole, "mean_attempts"),
            _decimal(whole, "entered_per_s"),
            _stay(whole),
            *(
                cell
                for part in ("queue", "engine")
                for cell in (_decimal(parts.get(part), "mean_attempts"), _stay(parts.get(part)))
            ),
            _percent(whole, "residual"),
        )
    return table


def _stay(reading: State | None) -> str:
    """Return W, a dash where no stay is over."""
    return _seconds(reading, "mean_stay_s") if _known(reading, "completed") else _UNKNOWN


def _engines(state: State) -> Table:
    """Return permits and limits, and the engine's own gauges: running, waiting, KV in use."""
    table = _table("engine", "state", "run", "left", "KV", "prefill", "drain/s", "own gauges")
    for engine in _rows(state, "engines"):
        own = f"{_count(engine, 'seen_running')}+{_count(engine, 'seen_waiting')} {_percent(engine, 'seen_kv_share')}"
        table.add_row(
            _name(engine.get("name", "")),
            _stance(engine),
            _used(engine, "running", "limit"),
            _count(engine, "departing"),
            _share(engine, "kv_tokens", "kv_limit"),
            _share(engine, "prefill_tokens", "prefill_limit"),
            _decimal(engine, "drain_per_s"),
            own,
        )
    return table


def _stance(engine: State) -> Text:
    trouble = "breaker open" if (engine.get("account") or {}).get("breaker_open") else ""
    return Text(trouble or "up", "red" if trouble else "green") if engine.get("up") else Text("down", "red")


def _engine_times(state: State) -> Table:
    """Return what is expected of engines, what was measured in the last minute, and how much of prompts was cached.

    Each ± is one standard deviation: of streams from each other, and of the time between tokens.
    """
    table = _table("engine", "ttft", "tpot", "streams", "±", "tokens", "±", "cached")
    for engine in _rows(state, "engines"):
        lately = engine.get("lately")
        table.add_row(
            _name(engine.get("name", "")),
            _seconds(engine, "expected_ttft_s"),
            _seconds(engine, "expected_tpot_s"),
            _seconds(lately, "tpot_mean_s"),
            _deviation(lately, "tpot_variance"),
            _seconds(lately, "gap_mean_s"),
            _deviation(lately, "gap_variance"),
            _percent(lately, "prefix_hit_share"),
        )
    return table


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
    table = _table("pool", "load", "calm", "occupancy", "trend/s", "accel", "backlog", "full in")
    for pool in _rows(state, "pools"):
        signals = pool.get("warning") or {}
        table.add_row(
            _name(" ".join(str(name) for name in pool.get("engines", ()))),
            _percent(signals, "load"),
            _percent(signals, "calm_load"),
            _percent(signals, "occupancy"),
            _decimal(signals, "trend", 4),
            _decimal(signals, "acceleration", 4),
            _seconds(signals, "backlog_s"),
            _seconds(signals, "time_to_full_s"),
        )
    return table


def _retries(state: State) -> Text:
    retries = state.get("retries") or {}
    shown = (
        ("amplification 1 min", _decimal(retries, "amplification_1m", 2)),
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


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rows(state: State, name: str) -> Iterable[State]:
    return [row for row in state.get(name) or () if isinstance(row, dict)]


def _clean(text: object, longest: int = _LONGEST_NAME) -> str:
    """Return text that a terminal only shows."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:longest])


def _name(text: object) -> Text:
    """Return a name for a cell, where plain strings could hold markup."""
    return Text(_clean(text))


def _number(record: State | None, path: str) -> float:
    """Return what the dotted path leads to, 0 where it leads nowhere."""
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _known(record: State | None, name: str) -> float | None:
    value = record.get(name) if isinstance(record, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _count(record: State | None, name: str) -> str:
    value = _known(record, name)
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _decimal(record: State | None, name: str, digits: int = 1) -> str:
    value = _known(record, name)
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _percent(record: State | None, name: str) -> str:
    value = _known(record, name)
    return _UNKNOWN if value is None else f"{100.0 * value:.0f} %"


def _deviation(record: State | None, name: str) -> str:
    """Return the square root of a variance, as a time."""
    value = _known(record, name)
    return _UNKNOWN if value is None else _time(sqrt(max(0.0, value)))


def _good(lane: State) -> str:
    """Return the share that was good, and the quantile that is to be."""
    slo = lane.get("slo") or {}
    good, target = _percent(slo.get("short"), "good_share"), _known(slo, "target_share")
    return good if target is None else f"{good} ({_quantile(target)})"


def _kept(slo: State, time: str) -> str:
    """Return a time at the promised quantile, beside the promise: p95 1.2 s of 2.0 s."""
    promise = slo.get(f"{time}_promise")
    measured, share = _seconds(slo.get(time), "promised"), _known(promise, "share")
    if share is None:
        return measured
    return f"{_quantile(share)} {measured} of {_seconds(promise, 'time_s')}"


def _quantile(share: float) -> str:
    return f"p{100.0 * share:g}"


def _seconds(record: State | None, name: str) -> str:
    value = _known(record, name)
    return _UNKNOWN if value is None else _time(value)


def _time(value: float) -> str:
    return f"{1000.0 * value:.0f} ms" if 0.0 < value < 1.0 else f"{value:.1f} s"


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
