"""`millgate extproc`: the gate behind Envoy, and the Envoy configuration that fits it."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millgate.cli import serve
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.flags import read_flags, taking
from millgate.cli.settings import FileOption, SetOption, load_or_fail

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.gateway import Gateway
    from millgate.wiring.settings import Built

_WHOLE_ANSWER_S = 900.0
"""How long an answer that is not streamed may take: Envoy sees nothing of one until it is whole. SDKs wait for ten minutes."""

extproc_app = typer.Typer(
    help="Decide for Envoy, over gRPC: which requests run now, where, and which come back later.",
    invoke_without_command=True,
)


_FLAGS = read_flags(
    f"""
--host | extproc.host | text | 127.0.0.1 | Address to listen on.
--port | extproc.port | integer | 9002 | TCP port for Envoys; 0 takes any free one.
--health-port | extproc.health_port | integer | none | TCP port for gRPC's health service alone.
{serve.ADMIN_PORT}
{serve.LIMITS}
"""
)


@extproc_app.callback()
@taking(_FLAGS)
def extproc(
    context: typer.Context,
    config: FileOption = None,
    upstream: serve.UpstreamOption = None,
    assignments: SetOption = None,
    *,
    as_json: serve.JsonOption = False,
    **given: Any,
) -> int:
    """Decide for Envoy. A flag wins over MILLGATE_ variables, they over the file."""
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    flags = serve.flags_of(upstream, _FLAGS, given)
    load = partial(load_or_fail, config, assignments, flags, serve.other_engines(upstream))
    loaded = load()
    if loaded.config.workers > 1:
        raise CommandError("workers: the external processor is one process: leave it out", ExitCode.USAGE)
    from millgate.cli.compose import serve_configuration

    return serve.on_uvloop(
        serve_configuration(loaded, _announcer(loaded, as_json=as_json), load, behind_envoy=True)
    )


@extproc_app.command("envoy-config")
def envoy_config(
    config: FileOption = None,
    upstream: serve.UpstreamOption = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="TCP port on which Envoy takes requests.")
    ] = 8080,
    host: Annotated[str, typer.Option(help="Address on which Envoy takes requests.")] = "127.0.0.1",
    envoy_admin_port: Annotated[
        int, typer.Option(min=1, max=65535, help="TCP port of Envoy's own admin page, on 127.0.0.1.")
    ] = 9901,
    extproc_at: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the external processor is.", show_default="127.0.0.1:9002"
        ),
    ] = None,
    assignments: SetOption = None,
) -> None:
    """Print a complete Envoy configuration (YAML) for the external processor: `envoy -c FILE` runs it."""
    import yaml

    from millgate.cli.output import print_line
    from millgate.config.doors import ExtprocConfig
    from millgate.servers.extproc.envoy_config import EnvoyAddresses, bootstrap
    from millgate.wiring.settings import build_settings

    usual = ["http://127.0.0.1:8000"] if config is None else None
    loaded = load_or_fail(config, assignments, (), serve.other_engines(upstream or usual))
    settings = loaded.config.extproc or ExtprocConfig()
    processor = _split(extproc_at or f"{settings.host}:{settings.port}")
    addresses = EnvoyAddresses((host, port), ("127.0.0.1", envoy_admin_port), processor)
    lanes = build_settings(loaded.config, None, loaded.places).settings.lanes
    longest_s = max(lane.deadline_s for lane in lanes) + max(
        _WHOLE_ANSWER_S, loaded.config.limits.upstream_idle
    )
    tree = bootstrap(
        addresses,
        streams=settings.streams,
        longest_silence_s=longest_s,
        connect_s=loaded.config.limits.upstream_connect,
        processor_tls=settings.tls is not None,
    )
    print_line(yaml.safe_dump(tree, sort_keys=False, width=120).rstrip("\n"))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise CommandError(
            f"--extproc-at: {address} is not HOST:PORT with a port from 1 to 65535", ExitCode.USAGE
        )
    return host.strip("[]"), int(port)


def _announcer(loaded: "Loaded", *, as_json: bool) -> Callable[["Gateway", "Built"], None]:
    from millgate.cli.banner import Running, record, what_runs
    from millgate.cli.json_stderr import write_json
    from millgate.cli.output import print_json

    def announce(gateway: "Gateway", built: "Built") -> None:
        running = record(Running.of(gateway, built, loaded))
        del running["url"]
        if gateway.extproc is not None and gateway.settings.extproc is not None:
            address = f"{gateway.settings.extproc.host}:{gateway.extproc.port}"
            running = {"extproc": address, "health_port": gateway.extproc.health_port, **running}
        write_json("info", "serving", **what_runs(), **running)
        if as_json:
            print_json(running)

    return announce
