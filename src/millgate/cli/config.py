"""`millgate config`: check a file, show what is in force, print the reference and the JSON Schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millgate.cli.output import print_error, print_json, print_line
from millgate.cli.settings import FileOption, SetOption, load_or_fail

if TYPE_CHECKING:
    from millgate.config.load import Loaded
    from millgate.config.problems import Problem

config_app = typer.Typer(help="Check and describe configurations.", no_args_is_help=True)


@config_app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file to check.", show_default=False)],
    assignments: SetOption = None,
) -> None:
    """Say whether a file, with the environment laid over it, can be served here: settings, secrets, files, addresses."""
    from millgate.cli.certificates import ageing
    from millgate.cli.compose import extproc_settings, gateway_settings
    from millgate.cli.opening import open_all
    from millgate.wiring.settings import build_settings

    loaded = load_or_fail(file, assignments)
    config = loaded.config
    gateway = (gateway_settings if config.extproc is None else extproc_settings)(loaded)
    build_settings(config, None, loaded.places)
    open_all(config)
    for problem in (*ageing(loaded), *_keyless(loaded)):
        print_error(str(problem))
    if (cluster := gateway.cluster) is not None:
        from millgate.cli.opening import ask_store

        print_line(ask_store(cluster))
    parts = [f"{len(config.engines)} engine(s)", f"{len(config.lanes)} lane(s)"]
    if config.tenants:
        parts.append(f"{len(config.tenants)} tenant(s)")
    print_line(f"{file}: valid, {', '.join(parts)}")


def _keyless(loaded: "Loaded") -> Iterator["Problem"]:
    """Yield each provider's account that is asked without a key: those of `tenants` stop at the gate."""
    from millgate.config.problems import Problem

    for index, engine in enumerate(loaded.config.engines if loaded.config.tenants else ()):
        if engine.account is not None and engine.api_key_env is None:
            path = ("engines", index, "account")
            said = "is asked without a key: the keys of `tenants` stop at the gate, and there is no `api_key_env`"
            yield Problem(loaded.places.get(path), path, said)


@config_app.command()
def show(file: FileOption = None, assignments: SetOption = None) -> None:
    """Print every setting in force as one line of JSON: seconds, bytes, counts. It holds no secrets."""
    print_json(load_or_fail(file, assignments).config.model_dump(mode="json"))


@config_app.command()
def reference() -> None:
    """Print the page that explains every setting, in Markdown."""
    from millgate.config.reference import render_page

    print_line(render_page().rstrip("\n"))


@config_app.command()
def schema() -> None:
    """Print the JSON Schema, for editors that complete and check while one types."""
    from millgate.config.schema import Config

    print_json(Config.model_json_schema())


@config_app.command()
def metrics() -> None:
    """Print the page that explains every metric, in Markdown."""
    from millgate.observe.meters import render_page

    print_line(render_page().rstrip("\n"))
