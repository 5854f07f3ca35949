"""`millgate serve`: the gateway in front of engines that run already."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millgate.cli.settings import FileOption, Given, SetOption, flag

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.config.overrides import Override
    from millgate.gateway import Gateway
    from millgate.wiring.settings import Built

PortOption = Annotated[int | None, typer.Option(help="TCP port; 0 takes any free one.", show_default="8080")]
AdminPortOption = Annotated[
    int | None, typer.Option(help="TCP port of the admin door; 0 takes any free one.", show_default="8081")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="When ready, print addresses and limits as one line of JSON on stdout.")
]

LinePortOption = Annotated[
    int | None,
    typer.Option(help="TCP port of the line door (newline-delimited JSON); 0 takes any.", show_default="off"),
]
LinePathOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Path of the engines that its payloads are posted to.",
        show_default="/v1/chat/completions",
    ),
]

LogOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="File for one line of JSON per attempt; - is stdout. SIGHUP opens it anew.",
        show_default="none",
    ),
]

TtftOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time to the first token that is good, and the deadline, of the first lane; `p99:2s` promises it to 99 % of requests.",
        show_default="10s",
    ),
]
TpotOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time per output token that is good, of the first lane; other lanes' prompts are paced so that it is kept.",
        show_default="not judged",
    ),
]


UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="An engine's base address; dns://host:port is an engine at each address of the host. May be repeated.",
        show_default=False,
    ),
]

HostOption = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]

MaxInflightOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Most answers that each engine generates at once.",
        show_default="by the engine's KV cache; 256 if it does not tell",
    ),
]

MaxQueueOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Most requests that wait in each lane; 0 queues none.",
        show_default="what can be served in time",
    ),
]

WorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes that serve, one for each core that is to be used; they share every limit.",
        show_default="1",
    ),
]


def serve(
    config: FileOption = None,
    upstream: UpstreamOption = None,
    host: HostOption = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
    max_inflight: MaxInflightOption = None,
    max_queue: MaxQueueOption = None,
    ttft_slo: TtftOption = None,
    tpot_slo: TpotOption = None,
    assignments: SetOption = None,
    line_port: LinePortOption = None,
    line_path: LinePathOption = None,
    log_attempts: LogOption = None,
    workers: WorkersOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that can be reached from outside.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Stand in front of engines and let in what they can finish in time. A flag wins over MILLGATE_ variables, they over the file."""
    flags = [
        *flags_of_engines(upstream),
        *flag("--host", "listen.host", host),
        *flag("--port", "listen.port", port),
        *flag("--admin-port", "admin.port", admin_port),
        *flags_of_limits(max_inflight, max_queue, ttft_slo, tpot_slo),
        *flag("--insecure", "listen.insecure", insecure or None),
        *flag("--line-port", "line.port", line_port),
        *flag("--line-path", "line.path", line_path),
        *flag("--log-attempts", "records.log_attempts", log_attempts),
        *flag("--workers", "workers", workers),
    ]
    given = Given.of(config, assignments, flags, other_engines(upstream))
    return on_uvloop(serve_loaded(given.load(), given, as_json=as_json))


def flags_of_engines(upstream: list[str] | None) -> list["Override"]:
    """Return what `--upstream` sets, so that a complaint about an address names the flag."""
    return [flag("--upstream", f"engines.{index}.url", url)[0] for index, url in enumerate(upstream or ())]


def other_engines(upstream: list[str] | None) -> list["Override"]:
    """Return what takes the place of the file's engines and of its file of engines; nothing without `--upstream`.

    What the file says of its own engines says nothing of these.
    """
    from millgate.config.overrides import override

    if not upstream:
        return []
    engines = [{"url": url} for url in upstream]
    return [override("engines", engines, "--upstream"), override("discovery.file", None, "--upstream")]


def flags_of_limits(
    max_inflight: str | None, max_queue: str | None, ttft_slo: str | None, tpot_slo: str | None
) -> list["Override"]:
    """Return what these flags set, for every command that serves."""
    return [
        *flag("--max-inflight", "engines.*.max_inflight", max_inflight),
        *flag("--max-queue", "lanes.*.max_queue", max_queue),
        *flag("--ttft-slo", "lanes.0.ttft_slo", ttft_slo),
        *_deadline_of_slo(ttft_slo),
        *flag("--tpot-slo", "lanes.0.tpot_slo", tpot_slo),
    ]


def _deadline_of_slo(ttft_slo: str | None) -> list["Override"]:
    """Take back a deadline that a file gives: without one it is the time of the flag."""
    from millgate.config.overrides import override

    return [] if ttft_slo is None else [override("lanes.0.deadline", None, "--ttft-slo")]


def on_uvloop(work: Coroutine[Any, Any, int]) -> int:
    """Do this work on a loop of its own, with room for many open files, and return its exit code."""
    import asyncio

    from millgate.sockets.descriptors import raise_soft_limit
    from millgate.sockets.loop import GateLoop

    raise_soft_limit()
    with asyncio.Runner(loop_factory=GateLoop) as runner:
        return runner.run(work)


async def serve_loaded(loaded: "Loaded", given: Given, *, as_json: bool) -> int:
    """Serve in this process, or with workers, until a signal ends it; at SIGHUP the configuration is read anew."""
    if loaded.config.workers > 1:
        from millgate.cli.workers import supervise

        return await supervise(loaded, given, as_json=as_json)
    from millgate.cli.banner import Running, show_running
    from millgate.cli.compose import serve_configuration

    def announce(gateway: "Gateway", built: "Built") -> None:
        show_running(Running.of(gateway, built, loaded, given.engine_note), as_json=as_json)

    return await serve_configuration(loaded, announce, given.load)
