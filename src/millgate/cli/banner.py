"""What a started gateway says: what runs, which limits were chosen and why, what to try, where the metrics are."""

import contextlib
import os
import platform
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TextIO

from millgate import __version__
from millgate.cli.memory import connections_choice, memory_choice
from millgate.cli.output import PLAIN_WIDTH, print_json
from millgate.observe.build import build_kind
from millgate.observe.logs import json_line

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.gateway import Gateway
    from millgate.wiring.chosen import ChosenNumber
    from millgate.wiring.settings import Built

# Select Graphic Rendition (ECMA-48, 8.3.117), as every terminal knows it.
_BOLD: Final = "\x1b[1m"
_DIM: Final = "\x1b[2m"
_NORMAL: Final = "\x1b[0m"
_GAP: Final = "  "
# Reasons stay readable beside long names: a narrower terminal breaks the lines itself.
_LEAST_WHY: Final = 20


class Running(NamedTuple):
    """A gateway that serves: its addresses (no slash at the end), its engines by name, its choices, its processes."""

    url: str
    admin_url: str
    engines: Sequence[tuple[str, str]]
    choices: Sequence["ChosenNumber"]
    model: str
    engine_note: str = ""
    token_env: str | None = None
    line_address: str = ""
    workers: int = 1

    @classmethod
    def of(
        cls, gateway: "Gateway", built: "Built", loaded: "Loaded | None" = None, engine_note: str = ""
    ) -> Self:
        """Read a started gateway with this configuration; `engine_note` says more of its engine."""
        settings = gateway.settings
        admin = settings.admin
        return cls(
            url=door_url(settings.host, gateway.port, secure=settings.ssl is not None),
            admin_url=door_url(admin.host, gateway.admin.port) if admin and gateway.admin else "",
            line_address=f"{settings.line.host}:{gateway.line_port}" if settings.line else "",
            engines=[
                (
                    engine.name,
                    door_url(engine.host, engine.port, secure=engine.ssl is not None) + engine.base_path
                    if engine.host
                    else "",
                )
                for engine in settings.engines
            ],
            choices=(
                *built.choices,
                *memory_choice(settings.byte_budget, settings.server.body_bytes, settings.workers),
                *connections_choice(gateway.descriptors.most_clients),
            ),
            model=built.example_model,
            engine_note=engine_note,
            token_env=loaded.config.admin.token_env if loaded and loaded.admin_token else None,
        )


def what_runs() -> dict[str, str]:
    """Return the version of Millgate, whether it is compiled, and the version of Python."""
    return {"version": __version__, "build": build_kind(), "python": platform.python_version()}


def version_line() -> str:
    """Return `millgate VERSION (compiled, Python VERSION)`, or `interpreted` where no compiler was at work."""
    version, build, python = what_runs().values()
    return f"millgate {version} ({build}, Python {python})"


def show_banner(running: Running, stream: TextIO) -> None:
    """Write the banner: words on a terminal, one line of JSON (`record`, with what runs) anywhere else.

    It comes without the library that draws the tables of other commands: a gateway would keep that for as long as
    it serves, more than 1 MB of it. Raises OSError when the stream takes nothing.
    """
    if stream.isatty():
        _show_words(running, stream)
    else:
        stream.write(json_line("info", "serving", {**what_runs(), **record(running)}) + "\n")
    stream.flush()


def show_running(running: Running, *, as_json: bool) -> None:
    """Tell people, and with `as_json` programs, what serves."""
    with contextlib.suppress(OSError):  # a full disk behind stderr costs the banner, not the gateway
        show_banner(running, sys.stderr)
    if as_json:
        print_json(record(running))


def _show_words(running: Running, stream: TextIO) -> None:
    shows_styles = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def styled(style: str, text: str) -> str:
        return f"{style}{text}{_NORMAL}" if shows_styles else text

    columns = os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH  # some terminals say 0
    header, *rows = _table(running.choices, columns)
    lines = [
        f"{styled(_BOLD, version_line())} lets in what the engine can finish in time",
        *_addresses(running),
        "",
        styled(_DIM, header),
        *rows,
        "",
        styled(_DIM, "try"),
        *(f"  {line}" for line in _hints(running)),
    ]
    stream.write("\n".join(lines) + "\n")


def _addresses(running: Running) -> Iterator[str]:
    yield f"  listening  {running.url}"
    yield f"  admin      {running.admin_url}"
    if running.line_address:
        yield f"  line       {running.line_address}"
    if running.workers > 1:
        yield f"  workers    {running.workers}"
    for name, url in running.engines:
        yield f"  engine     {name} at {url or 'no address yet'}{running.engine_note}"


def _table(choices: Sequence["ChosenNumber"], columns: int) -> Iterator[str]:
    """Yield the header and the lines of the limits; a long reason goes on below itself."""
    rows = [("limit", "value", "why"), *choices]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    why_at = names + values + 2 * len(_GAP)
    for name, value, why in rows:
        start = f"{name:<{names}}{_GAP}{value:<{values}}{_GAP}"
        first, *more = textwrap.wrap(why, max(_LEAST_WHY, columns - why_at)) or [""]
        yield start + first
        yield from (" " * why_at + part for part in more)


def record(running: Running) -> dict[str, object]:
    """Return what the banner says as plain data, for `--json`."""
    return {
        "url": running.url,
        "admin_url": running.admin_url,
        **({"line_address": running.line_address} if running.line_address else {}),
        **({"workers": running.workers} if running.workers > 1 else {}),
        "model": running.model,
        "engines": [{"name": name, "url": url} for name, url in running.engines],
        "limits": [{"name": name, "value": value, "why": why} for name, value, why in running.choices],
    }


def _hints(running: Running) -> list[str]:
    body = f'{{"model":"{running.model}","stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}'
    admin = f'curl -H "authorization: Bearer ${running.token_env}"' if running.token_env else "curl"
    return [
        f"curl -N {running.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        f"{admin} {running.admin_url}/metrics        # counts and gauges for Prometheus",
        f"{admin} {running.admin_url}/api/state      # everything the gate knows now",
        f"{admin} '{running.admin_url}/api/explain?prompt_bytes=4000'  # what a request would be told now",
    ]


def door_url(host: str, port: int, *, secure: bool = False) -> str:
    """Return the address of a door, without a slash at the end."""
    return f"http{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}"
