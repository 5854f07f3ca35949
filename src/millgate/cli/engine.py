"""`millgate engine`: the embedded engine as a process of its own."""

from typing import Annotated

import typer

from millgate.cli.exits import address_error, usage_error

# Options that are not called as their settings are.
_SETTINGS = {
    "stall": "stall_rate",
    "stall_seconds": "stall_s",
    "error_in_stream": "error_rate",
    "kv_lease": "kv_lease_s",
    "lora_module": "lora_modules",
    "lora_load": "lora_load_s",
}

ProfileOption = Annotated[
    str | None, typer.Option(help="Speed profile; a wrong name lists them.", show_default="demo")
]
ModelNameOption = Annotated[str, typer.Option(help="The model that it lists; any name is answered.")]
TimeScaleOption = Annotated[float, typer.Option(help="How much faster than the profile, at most 10.")]
SequencesOption = Annotated[
    int | None, typer.Option(help="Most sequences in a batch.", show_default="the profile's")
]
QueuedOption = Annotated[
    int | None, typer.Option(help="Refuse with 503 beyond so many waiting.", show_default="any number waits")
]
ModelLengthOption = Annotated[
    int | None, typer.Option(help="Longest prompt and answer, tokens.", show_default="the KV cache")
]
BlocksOption = Annotated[
    int | None, typer.Option(help="Blocks of 16 tokens of KV memory.", show_default="the profile's")
]
CachingOption = Annotated[
    bool, typer.Option("--enable-prefix-caching", help="Keep what prompts have in common, by full blocks.")
]
TransferOption = Annotated[
    str,
    typer.Option(
        metavar="PROTOCOL",
        help="Hand prompts to other engines or take them: nixl, sglang-prefill, sglang-decode.",
        show_default="no",
    ),
]
LeaseOption = Annotated[float, typer.Option(help="Seconds that a prompt is kept for another engine.")]
LoadFailureOption = Annotated[
    str, typer.Option(help="When a prompt cannot be had from its engine: fail, or recompute.")
]
AdaptersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lora-module", metavar="NAME", help="An adapter; may be given again.", show_default="none"
    ),
]
MaxLorasOption = Annotated[int, typer.Option(help="Adapters that are loaded at once.")]
LoraLoadOption = Annotated[float, typer.Option(help="Seconds that loading an adapter takes.")]
EventTokensOption = Annotated[int, typer.Option(help="Tokens that one event of a stream carries.")]
HangupsOption = Annotated[bool, typer.Option("--ignore-hangups", help="Generate on for clients that left.")]
FailRateOption = Annotated[
    float, typer.Option(metavar="P", help="Share of requests that get a 500.", show_default="none")
]
StallOption = Annotated[
    float, typer.Option(metavar="P", help="Share of streams that stand still half-way.", show_default="none")
]
ErrorOption = Annotated[
    float,
    typer.Option(
        metavar="P", help="Share of streams that end half-way with an error event.", show_default="none"
    ),
]


def engine(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 takes any free one.")] = 8000,
    profile: ProfileOption = None,
    model_name: ModelNameOption = "millgate-engine",
    time_scale: TimeScaleOption = 1.0,
    max_num_seqs: SequencesOption = None,
    max_num_queued_reqs: QueuedOption = None,
    max_model_len: ModelLengthOption = None,
    num_gpu_blocks_override: BlocksOption = None,
    enable_prefix_caching: CachingOption = False,
    kv_transfer: TransferOption = "",
    kv_lease: LeaseOption = 30.0,
    kv_load_failure_policy: LoadFailureOption = "fail",
    lora_module: AdaptersOption = None,
    max_loras: MaxLorasOption = 1,
    lora_load: LoraLoadOption = 0.5,
    tokens_per_event: EventTokensOption = 1,
    ignore_hangups: HangupsOption = False,
    fail_rate: FailRateOption = 0.0,
    stall: StallOption = 0.0,
    stall_seconds: Annotated[float, typer.Option(help="How long such a stream stands still.")] = 30.0,
    error_in_stream: ErrorOption = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the lengths of answers and of the troubles.")] = 1,
) -> None:
    """Run an engine that answers like vLLM, at the speed of a profile, without a GPU."""
    options = {_SETTINGS.get(name, name): value for name, value in locals().items()}
    from millgate.engine.profile import DEFAULT_PROFILE
    from millgate.servers.emulator.run import run
    from millgate.servers.emulator.settings import EmulatorSettings

    options |= {"profile": profile or DEFAULT_PROFILE, "lora_modules": tuple(lora_module or ())}
    try:
        settings = EmulatorSettings(**options)
    except ValueError as error:
        flags = {field: "--" + option.replace("_", "-") for option, field in _SETTINGS.items()}
        raise usage_error(error, flags) from None
    try:
        run(settings)
    except OSError as error:
        raise address_error(error, host, port, "--port") from None
