"""`millgate demo`: what the gate is for, on real processes. The options are explained by their own record."""

from typing import Annotated, Final

import typer

from millgate.cli.exits import usage_error
from millgate.cli.sim import JsonOption, seconds

_FLAGS: Final = {"run_s": "--for", "ttft_slo_s": "--ttft-slo", "patience_s": "--patience"}


def demo(
    load: Annotated[float, typer.Option(help="Offered load over what the engine can do.")] = 2.7,
    at_once: Annotated[
        int, typer.Option(min=0, help="Instead of a steady load: so many requests at the same moment.")
    ] = 0,
    duration: Annotated[str, typer.Option("--for", help="How long requests arrive.")] = "60s",
    cap: Annotated[int, typer.Option(help="The engine's batch, and the limit of the gate.")] = 16,
    max_queue: Annotated[
        int | None, typer.Option(help="The gate's queue.", show_default="what can be served in time")
    ] = None,
    ttft_slo: Annotated[str, typer.Option(help="Time to the first token that is still good.")] = "5s",
    patience: Annotated[
        str, typer.Option(help="How long a user waits for the first token of one attempt.")
    ] = "10s",
    retries: Annotated[int, typer.Option(help="How often a user tries again.")] = 3,
    max_tokens: Annotated[
        str,
        typer.Option(help="What requests allow: `exact` is the true length, a number is the same for all."),
    ] = "exact",
    ignore_hangups: Annotated[
        bool, typer.Option("--ignore-hangups", help="The engine generates on for users who left.")
    ] = False,
    profile: Annotated[str, typer.Option(help="The engine's speed profile.")] = "llama3-70b_h100_tp4",
    time_scale: Annotated[float, typer.Option(help="How many times as fast as real time, at most 10.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, sizes and back-off.")] = 1,
    peer: Annotated[
        str, typer.Option(help="Run `haproxy` as well, where it is installed; `none` leaves it out.")
    ] = "haproxy",
    as_json: JsonOption = False,
) -> int:
    """Compare no gate, the gate and HAProxy under overload, with the best that could have been done."""
    from millgate.demos.overload import OverloadOptions, run

    slo_s, patience_s = seconds("--ttft-slo", ttft_slo), seconds("--patience", patience)
    run_s = seconds("--for", duration)
    try:
        options = OverloadOptions(
            max_tokens=max_tokens,
            load=load,
            at_once=at_once,
            cap=cap,
            max_queue=max_queue,
            ttft_slo_s=slo_s,
            patience_s=patience_s,
            retries=retries,
            run_s=run_s,
            ignore_hangups=ignore_hangups,
            profile=profile,
            time_scale=time_scale,
            seed=seed,
            peer=peer,
            json=as_json,
        )
    except ValueError as error:
        raise usage_error(error, _FLAGS) from None
    return run(options)
