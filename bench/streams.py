"""What a thousand and five thousand open streams cost: memory for each, and the delay that a proxy adds to an event."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.crowds import Crowd, Delays, quantile
from bench.processes import Process, Stage

COUNTS = (1_000, 5_000)
_EVENTS_PER_S = 10_000
"""Over all streams, whatever their number: what one core of each proxy carries without queueing."""

SHARES = (0.5, 0.99, 0.999)
_SETTLE_S = 2.0


class Row(NamedTuple):
    """One proxy under one number of streams; delays in ms at `SHARES`, `kb` is memory per stream in 10^3 bytes.

    The row named `direct` is the engine without a proxy: what the load, the engine and the loopback take.
    """

    name: str
    streams: int
    first_ms: tuple[float, ...]
    event_ms: tuple[float, ...]
    kb: float


async def measure(stage: Stage, counts: Sequence[int]) -> list[Row]:
    """Return a row for the bare engine and each proxy under each number of streams."""
    gc.disable()  # a collection over all readers would be taken for a delay of the proxy
    rows = []
    for count in counts:
        engine = stage.engine(1000 * count / _EVENTS_PER_S)
        gate = stage.millgate(engine, "millgate", "--max-inflight", str(count + 100))
        proxies = [gate, stage.haproxy(engine), stage.nginx(engine)]
        await asyncio.sleep(_SETTLE_S)
        for process in (engine._replace(name="direct"), *filter(None, proxies)):
            rows.append(await _row(process, count))
            await asyncio.sleep(_SETTLE_S)
        gc.collect()
    return rows


async def _row(process: Process, count: int) -> Row:
    async with Crowd(process.port, 20):
        pass  # the first streams fill caches and pools
    rss_mb = process.rss_mb()
    async with Crowd(process.port, count) as delays:
        kb = (process.rss_mb() - rss_mb) * 1000 / count
    return Row(process.name, count, *_quantiles_ms(delays), kb)


def _quantiles_ms(delays: Delays) -> tuple[tuple[float, ...], tuple[float, ...]]:
    first_s, event_s = delays
    return (
        tuple(quantile(first_s, share) * 1e3 for share in SHARES),
        tuple(quantile(event_s, share) * 1e3 for share in SHARES),
    )


def added(rows: Sequence[Row]) -> list[Row]:
    """Return the proxies' rows with the delays of the bare engine under the same number of streams taken off."""
    direct = {row.streams: row for row in rows if row.name == "direct"}
    return [
        row._replace(
            first_ms=_minus(row.first_ms, direct[row.streams].first_ms),
            event_ms=_minus(row.event_ms, direct[row.streams].event_ms),
        )
        for row in rows
        if row.name != "direct"
    ]


def _minus(values: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(value - other for value, other in zip(values, others, strict=True))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the run as one JSON object: every row as measured, and the added delays."""
    return {"rows": [row._asdict() for row in rows], "added": [row._asdict() for row in added(rows)]}


def print_table(rows: Sequence[Row]) -> None:
    """Print delays added to the bare engine's, memory per stream, and the bare engine's own delays."""
    shares = "".join(f"{'p' + format(share * 100, 'g'):>9}" for share in SHARES)
    print(f"{'delay, ms':<28}{'first event':>27}{'every event':>27}{'kB/stream':>11}")
    print(f"{'':<28}{shares}{shares}")
    for row in [*added(rows), *(row for row in rows if row.name == "direct")]:
        label = f"{row.streams}, " + (row.name if row.name == "direct" else f"added by {row.name}")
        delays = "".join(f"{value:>9.2f}" for value in row.first_ms + row.event_ms)
        memory = "" if row.name == "direct" else f"{row.kb:>11.1f}"
        print(f"{label:<28}{delays}{memory}")
