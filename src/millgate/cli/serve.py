"""`millgate serve`: the gateway in front of engines that run already."""

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millgate.cli.flags import Flag, read_flags, settings_of, taking
from millgate.cli.settings import FileOption, Given, SetOption

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.config.overrides import Override
    from millgate.gateway import Gateway
    from millgate.wiring.settings import Built

JsonOption = Annotated[
    bool, typer.Option("--json", help="When ready, print addresses and limits as one line of JSON on stdout.")
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="An engine's base address; dns://host:port is an engine at each address of the host. May be repeated.",
        show_default=False,
    ),
]

PORT = "--port | listen.port | integer | 8080 | TCP port; 0 takes any free one."
ADMIN_PORT = "--admin-port | admin.port | integer | 8081 | TCP port of the admin door; 0 takes any free one."
WORKERS = """
--workers | workers | integer N | 1 | Processes that serve, one for each core that is to be used; they share every limit.
"""
LIMITS = """
--max-inflight | engines.*.max_inflight | text N | by the engine's KV cache; 256 if it does not tell | Most answers that each engine generates at once.
--max-queue | lanes.*.max_queue | text N | what can be served in time | Most requests that wait in each lane; 0 queues none.
--ttft-slo | lanes.0.ttft_slo | text TIME | 10s | Time to the first token that is good, and the deadline, of the first lane; `p99:2s` promises it to 99 % of requests.
--tpot-slo | lanes.0.tpot_slo | text TIME | not judged | Time per output token that is good, of the first lane; other lanes' prompts are paced so that it is kept.
--log-attempts | records.log_attempts | text PATH | none | File for one line of JSON per attempt; - is stdout. SIGHUP opens it anew.
"""
_FLAGS = read_flags(
    f"""
--host | listen.host | text | 127.0.0.1 | Address to listen on.
{PORT}
{ADMIN_PORT}
{LIMITS}
--line-port | line.port | integer | off | TCP port of the line door (newline-delimited JSON); 0 takes any.
--line-path | line.path | text PATH | /v1/chat/completions | Path of the engines that its payloads are posted to.
{WORKERS}
--insecure | listen.insecure | switch | | Allow an address that can be reached from outside.
"""
)


@taking(_FLAGS)
def serve(
    config: FileOption = None,
    upstream: UpstreamOption = None,
    assignments: SetOption = None,
    *,
    as_json: JsonOption = False,
    **given: Any,
) -> int:
    """Stand in front of engines and let in what they can finish in time. A flag wins over MILLGATE_ variables, they over the file."""
    told = Given.of(config, assignments, flags_of(upstream, _FLAGS, given), other_engines(upstream))
    return on_uvloop(serve_loaded(told.load(), told, as_json=as_json))


def flags_of(
    upstream: list[str] | None, flags: tuple[Flag, ...], given: Mapping[str, Any]
) -> list["Override"]:
    """Return what the flags of a command that serves set; a complaint about an engine's address names `--upstream`.

    A deadline that a file gives is taken back by `--ttft-slo`: without one it is the time of the flag.
    """
    from millgate.config.overrides import override

    engines = [
        override(f"engines.{index}.url", url, "--upstream") for index, url in enumerate(upstream or ())
    ]
    deadline = [override("lanes.0.deadline", None, "--ttft-slo")] if "lanes.0.ttft_slo" in given else []
    return [*engines, *settings_of(flags, given), *deadline]


def other_engines(upstream: list[str] | None) -> list["Override"]:
    """Return what takes the place of the file's engines and of its file of engines; nothing without `--upstream`.

    What the file says of its own engines says nothing of these.
    """
    from millgate.config.overrides import override

    if not upstream:
        return []
    engines = [{"url": url} for url in upstream]
    return [override("engines", engines, "--upstream"), override("discovery.file", None, "--upstream")]


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
