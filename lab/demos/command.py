"""`python -m lab demo NAME`: demonstrations on real processes. The options are explained by their own records."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from millgate.cli.exits import CommandError, ExitCode, usage_error
from millgate.config.units import parse_count, parse_duration

demo_app = typer.Typer(
    help="Demonstrations: users, gate and engine in separate processes.", no_args_is_help=True
)

Options = TypeVar("Options")
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON on stdout.")]
TimeScaleOption = Annotated[float, typer.Option(help="How many times as fast as real time, at most 10.")]
ProfileOption = Annotated[str, typer.Option(help="The engine's speed profile.")]
CapOption = Annotated[int, typer.Option(help="The engine's batch and the gate's limit.")]

DEFAULT_LIMITS = ("rpm=600",)
DEFAULT_LOADS = (0.8, 1.25, 2.0)
_FLAGS = {
    "loads": "--load",
    "start_s": "--from",
    "duration_s": "--for",
    "run_s": "--for",
    "chat_users": "--chat-users",
    "long_users": "--long-users",
    "long_tokens": "--long-tokens",
    "warmup_s": "--warmup",
    "limits": "--limit",
    "used_share": "--used",
}


@demo_app.command()
def burst(
    users: Annotated[int, typer.Option(help="How many ask the same thing at once.")] = 20,
    service: Annotated[str, typer.Option(help="How long one answer takes the engine.")] = "10s",
    retries: Annotated[bool, typer.Option("--retries", help="Refused users come back when told to.")] = False,
    time_scale: TimeScaleOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Meet a cap of one that holds nothing with twenty equal requests: one runs, nineteen are told when to return."""
    from lab.demos.burst import BurstOptions, run

    return run(
        _checked(
            lambda: BurstOptions(
                users=users,
                service_s=_seconds("--service", service),
                retries=retries,
                time_scale=time_scale,
                json=as_json,
            )
        )
    )


@demo_app.command()
def poison(
    load: Annotated[
        list[float] | None,
        typer.Option(help="Offered load over capacity; may be repeated.", show_default="0.8, 1.25, 2"),
    ] = None,
    patience: Annotated[str, typer.Option(help="How long a user waits for a first token.")] = "15s",
    refreshes: Annotated[int, typer.Option(help="How often a user tries again.")] = 3,
    run_patiences: Annotated[
        float, typer.Option(help="For how many patience times users keep arriving.")
    ] = 20.0,
    cap: CapOption = 16,
    profile: ProfileOption = "llama3-70b_h100_tp4",
    time_scale: TimeScaleOption = 5.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and sizes.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Overload an engine with impatient users that refresh, with and without the gate."""
    from lab.demos.poison import PoisonOptions, run

    return run(
        _checked(
            lambda: PoisonOptions(
                loads=tuple(load or DEFAULT_LOADS),
                patience_s=_seconds("--patience", patience),
                refreshes=refreshes,
                run_patiences=run_patiences,
                cap=cap,
                profile=profile,
                time_scale=time_scale,
                seed=seed,
                json=as_json,
            )
        )
    )


@demo_app.command()
def isolation(
    chat_users: Annotated[int, typer.Option(help="Users who chat: 300 prompt and 100 output tokens.")] = 6,
    long_users: Annotated[int, typer.Option(help="Users with long prompts.")] = 4,
    long_tokens: Annotated[int, typer.Option(help="Mean tokens of a long prompt.")] = 4_000,
    duration: Annotated[str, typer.Option("--for", help="How long is counted.")] = "60s",
    profile: ProfileOption = "llama3-70b_a100_tp4",
    time_scale: TimeScaleOption = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sizes and pauses.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Let people chat beside users with long prompts: alone, without the gate, and behind it."""
    from lab.demos.isolation import IsolationOptions, run

    return run(
        _checked(
            lambda: IsolationOptions(
                chat_users=chat_users,
                long_users=long_users,
                long_tokens=long_tokens,
                run_s=_seconds("--for", duration),
                profile=profile,
                time_scale=time_scale,
                seed=seed,
                json=as_json,
            )
        )
    )


@demo_app.command()
def provider(
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=N",
            help="What the account grants: rpm, rpd, tpm, itpm or otpm. May be repeated; the first is offered `--offered` times.",
            show_default="rpm=600",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option(help="How the provider charges output: expected, max_tokens, produced or larger.")
    ] = "max_tokens",
    offered: Annotated[float, typer.Option(help="Offered load over the limit.")] = 10.0,
    duration: Annotated[str, typer.Option("--for", help="How long is measured.")] = "60s",
    warmup: Annotated[str, typer.Option(help="How long users ask before that.")] = "60s",
    used: Annotated[float, typer.Option(help="Share of every limit that is used at the start.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and sizes.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Offer a provider's account ten times what it grants: hardly a 429, and hardly any quota left over."""
    from lab.demos.provider import ProviderOptions, run

    return run(
        _checked(
            lambda: ProviderOptions(
                limits=tuple(_limit(each) for each in limit or DEFAULT_LIMITS),
                output=output,
                offered=offered,
                duration_s=_seconds("--for", duration),
                warmup_s=_seconds("--warmup", warmup),
                used_share=used,
                seed=seed,
                json=as_json,
            )
        )
    )


@demo_app.command()
def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE.csv",
            help="An Azure LLM inference trace: TIMESTAMP, ContextTokens, GeneratedTokens.",
        ),
    ],
    rate_scale: Annotated[float, typer.Option(help="How many times the trace's own rate.")] = 1.0,
    start: Annotated[str, typer.Option("--from", help="Where the slice begins in the trace.")] = "0s",
    duration: Annotated[
        str, typer.Option("--for", help="How long the slice is; `all` is to the end.")
    ] = "5m",
    ttft_slo: Annotated[
        str, typer.Option(help="Time to the first token that is good; users leave after it.")
    ] = "10s",
    cap: CapOption = 64,
    profile: ProfileOption = "llama3-70b_h100_tp4",
    ignore_hangups: Annotated[
        bool, typer.Option("--ignore-hangups", help="The engine generates on for clients that left.")
    ] = False,
    gate_only: Annotated[
        bool, typer.Option("--gate-only", help="Leave out the run without the gate.")
    ] = False,
    time_scale: TimeScaleOption = 5.0,
    as_json: JsonOption = False,
) -> int:
    """Replay recorded traffic through the gate, and without it."""
    from lab.demos.replay import ReplayOptions, run

    return run(
        _checked(
            lambda: ReplayOptions(
                trace=trace,
                rate_scale=rate_scale,
                start_s=_seconds("--from", start),
                duration_s=None if duration == "all" else _seconds("--for", duration),
                ttft_slo_s=_seconds("--ttft-slo", ttft_slo),
                cap=cap,
                profile=profile,
                ignore_hangups=ignore_hangups,
                without_gate=not gate_only,
                time_scale=time_scale,
                json=as_json,
            )
        )
    )


def _checked(build: Callable[[], Options]) -> Options:
    """Return the options, or say which of them is wrong."""
    try:
        return build()
    except ValueError as error:
        raise usage_error(error, _FLAGS) from None


def _seconds(flag: str, text: str) -> float:
    """Return a duration in seconds, or say which flag is wrong."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{flag}: {error}", ExitCode.USAGE) from None


def _limit(text: str) -> tuple[str, int]:
    """Return kind and amount of `rpm=600` or `otpm=80k`, or say what is wrong."""
    kind, _, amount = text.partition("=")
    try:
        return kind.lower(), parse_count(amount)
    except ValueError as error:
        raise CommandError(f"--limit {text}: {error}", ExitCode.USAGE) from None
