"""`millgate size`: what to set for a load that is known, by two rules side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import people, print_json
from millgate.cli.sim import JsonOption, engine_profile, seconds, write_file

if TYPE_CHECKING:
    from millgate.sim.calculator import Latency, Row

_UNKNOWN = "none"
_MOST_STREAMS = 1_000_000


def size(
    rate: Annotated[float, typer.Option(min=0.0001, max=1e6, help="Requests per second.")],
    latency: Annotated[
        str | None, typer.Option(help="Mean time of a request on its engine, e.g. 4s.", show_default=_UNKNOWN)
    ] = None,
    cv: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Its standard deviation over its mean.")
    ] = 1.0,
    latency_p50: Annotated[
        str | None, typer.Option(help="In place of --latency: its median.", show_default=_UNKNOWN)
    ] = None,
    latency_p95: Annotated[
        str | None, typer.Option(help="With --latency-p50: its 95 % quantile.", show_default=_UNKNOWN)
    ] = None,
    latency_factor: Annotated[
        float, typer.Option(min=1.0, max=100.0, help="Also show what happens if latency grew so many times.")
    ] = 2.0,
    max_wait: Annotated[str, typer.Option(help="Longest time that a user would wait in the queue.")] = "10s",
    prompt_tokens: Annotated[float, typer.Option(min=1, help="Mean prompt.")] = 1000.0,
    output_tokens: Annotated[float, typer.Option(min=1, help="Mean answer.")] = 250.0,
    profile: Annotated[
        str | None, typer.Option(help="Engine profile, to count engines.", show_default=_UNKNOWN)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how many wait when latency moves.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what to set for max_inflight and queue by two rules, why, and what each bears."""
    from millgate.sim.calculator import Load, advise, picture

    law = _law(latency, cv, latency_p50, latency_p95)
    load = Load(rate, law, latency_factor, prompt_tokens, output_tokens)
    if load.streams > _MOST_STREAMS:
        raise CommandError(f"size: {load.streams:,.0f} streams: at most {_MOST_STREAMS:,}", ExitCode.USAGE)
    chosen = None if profile is None else engine_profile(profile)
    if chosen is not None and prompt_tokens + output_tokens > chosen.kv_tokens:
        holds = f"{prompt_tokens + output_tokens:,.0f} tokens do not fit into the {chosen.kv_tokens:,} of {profile}"
        raise CommandError(f"--prompt-tokens: {holds}", ExitCode.USAGE)
    rows = advise(load, seconds("--max-wait", max_wait), chosen)
    if svg is not None:
        from millgate.sim.report.drawing import drawing

        write_file("--svg", svg, drawing(picture(load)))
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        _show(rows)


def _law(mean: str | None, cv: float, p50: str | None, p95: str | None) -> "Latency":
    """Return the law of latencies that the options name, in one way or the other."""
    from millgate.sim.calculator import Latency

    if mean is not None and p50 is None and p95 is None:
        return Latency(seconds("--latency", mean), cv)
    if mean is not None or p50 is None or p95 is None:
        raise CommandError("size: give --latency, or both --latency-p50 and --latency-p95", ExitCode.USAGE)
    try:
        return Latency.of_quantiles(seconds("--latency-p50", p50), seconds("--latency-p95", p95))
    except ValueError as error:
        raise CommandError(f"--latency-p95: {error}", ExitCode.USAGE) from None


def _show(rows: "list[Row]") -> None:
    from rich.table import Table

    from millgate.sim.calculator import SQUARE_ROOT, TWICE

    table = Table("what", SQUARE_ROOT, TWICE, "why")
    for row in rows:
        table.add_row(row.name, _written(row.square_root, row.form), _written(row.twice, row.form), row.why)
    people().print(table)


def _written(value: float, form: str) -> str:
    if form == "share":
        return f"{value:.1%}" if value >= 0.001 or not value else "< 0.1%"
    if form == "seconds":
        return f"{value:.3g} s" if value >= 0.001 else "< 1 ms"
    return f"x {value:.2f}" if form == "times" else f"{value:,.1f}".removesuffix(".0")
