"""`millgate run`: the gateway and an embedded engine behind it, for a first look; what `make run` does."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millgate.cli.exits import CommandError, ExitCode, usage_error
from millgate.cli.flags import read_flags, settings_of, taking
from millgate.cli.serve import ADMIN_PORT, PORT, WORKERS, JsonOption, on_uvloop, serve_loaded
from millgate.cli.settings import Given, SetOption, flag, load_or_fail

if TYPE_CHECKING:
    from millgate.demos.processes import Child

ENGINE_NAME = "embedded"
_CHILD_LOOK_S = 0.5


_FLAGS = read_flags(f"{PORT}\n{ADMIN_PORT}\n{WORKERS}")


@taking(_FLAGS)
def run_all(
    profile: Annotated[
        str | None, typer.Option(help="The embedded engine's speed profile.", show_default="demo")
    ] = None,
    assignments: SetOption = None,
    *,
    as_json: JsonOption = False,
    **given: Any,
) -> int:
    """Start an embedded engine, which needs no GPU, and the gateway in front of it; Ctrl-C ends both."""
    from millgate.demos.processes import ChildError, Children
    from millgate.engine.profile import DEFAULT_PROFILE, find_profile

    try:
        profile = find_profile(profile or DEFAULT_PROFILE).name
    except ValueError as error:
        raise usage_error(error) from None
    engine = {"url": "http://127.0.0.1:1", "name": ENGINE_NAME, "profile": profile}
    instead = flag("millgate run", "engines", [engine])
    flags = settings_of(_FLAGS, given)
    load_or_fail(None, assignments, flags, instead)  # a wrong flag is told before anything is started
    try:
        with Children() as children:
            child = children.start(["engine", "--port", "0", "--profile", profile])
            import_module("millgate.cli.compose")  # half of the start, taken while the engine starts
            engine_port = child.await_ready({"port": r'"port": (\d+)'})["port"]
            flags += flag("millgate run", "engines.0.url", f"http://127.0.0.1:{engine_port}")
            note = f" (profile {profile}, process {child.process_id})"
            told = Given.of(None, assignments, flags, instead)._replace(engine_note=note)
            return on_uvloop(_serve_beside(child, told, as_json=as_json))
    except ChildError as error:
        raise CommandError(str(error), ExitCode.ENGINE_LOST) from None


async def _serve_beside(child: "Child", given: Given, *, as_json: bool) -> int:
    """Serve until a signal, or until the child dies (ChildError)."""
    serving = asyncio.ensure_future(serve_loaded(given.load(), given, as_json=as_json))
    watching = asyncio.ensure_future(_watch(child))
    await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, watching):
        task.cancel()
    await asyncio.wait((serving, watching))
    if serving.cancelled():
        watching.result()
    return serving.result()


async def _watch(child: "Child") -> None:
    """Raise ChildError soon after the child has died."""
    while True:
        child.check()
        await asyncio.sleep(_CHILD_LOOK_S)
