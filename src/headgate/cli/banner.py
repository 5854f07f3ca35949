"""What a started gateway says: what runs, which limits were chosen and why, what to try, where the metrics are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from rich.console import Console

    from headgate.gateway import Gateway
    from headgate.wiring.chosen import Choice
    from headgate.wiring.settings import Built


class Running(NamedTuple):
    """A gateway that serves: its addresses (no slash at the end), its engines by name, its choices."""

    url: str
    admin_url: str
    engines: Sequence[tuple[str, str]]
    choices: Sequence["Choice"]
    model: str
    engine_note: str = ""
    token_env: str | None = None
    line_address: str = ""

    @classmethod
    def of(
        cls, gateway: "Gateway", built: "Built", engine_note: str = "", token_env: str | None = None
    ) -> Self:
        """Read a started gateway; `engine_note` says more of its engine, `token_env` where the admin token is."""
        settings = gateway.settings
        admin = settings.admin
        models = built.settings.engines[0].models
        return cls(
            url=_url(settings.host, gateway.port),
            admin_url=_url(admin.host, gateway.admin.port) if admin and gateway.admin else "",
            line_address=f"{settings.line.host}:{gateway.line_port}" if settings.line else "",
            engines=[
                (
                    engine.name,
                    _url(engine.host, engine.port, secure=engine.ssl is not None) + engine.base_path,
                )
                for engine in settings.engines
            ],
            choices=built.choices,
            model=models[0] if models else "any",
            engine_note=engine_note,
            token_env=token_env,
        )


def show_banner(running: Running, console: "Console") -> None:
    """Write the banner; the lines `listening` and `admin` have a form that other programs may read."""
    from rich.table import Table

    from headgate import __version__

    console.print(f"[bold]headgate {__version__}[/bold] lets in what the engine can finish in time")
    console.print(f"  listening  {running.url}")
    console.print(f"  admin      {running.admin_url}")
    if running.line_address:
        console.print(f"  line       {running.line_address}")
    for name, url in running.engines:
        console.print(f"  engine     {name} at {url}{running.engine_note}", markup=False)
    table = Table("limit", "value", "why", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for choice in running.choices:
        table.add_row(choice.name, choice.value, choice.why)
    console.print()
    console.print(table)
    console.print("\n[dim]try[/dim]")
    for line in _hints(running):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def record(running: Running) -> dict[str, object]:
    """Return what the banner says as plain data, for `--json`."""
    return {
        "url": running.url,
        "admin_url": running.admin_url,
        **({"line_address": running.line_address} if running.line_address else {}),
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


def _url(host: str, port: int, *, secure: bool = False) -> str:
    return f"http{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}"
