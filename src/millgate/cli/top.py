"""`millgate top`: a gate's lanes, engines and warnings in a terminal, drawn anew every second until `q`."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millgate.cli.asking import AdminDoor, AdminOption
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import PLAIN_WIDTH, print_line
from millgate.cli.settings import FileOption, SetOption

if TYPE_CHECKING:
    from rich.console import Console

_EVERY_S: Final = 1.0
_FIRST_S: Final = 0.5
"""Between the two readings of a lone frame: rates are differences."""
_OK: Final = 200
_MOST_KEYS: Final = 64

Wait = Callable[[float], bool]
"""Waits for so many seconds, or until the user wants to leave, and says whether that is so."""


def top(
    admin: AdminOption = None,
    config: FileOption = None,
    assignments: SetOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; needs no terminal.")] = False,
) -> None:
    """Watch a gate: what waits, what runs, what is refused and why. Keys: q ends."""
    from rich.console import Console

    from millgate.cli.frame import frame

    door = AdminDoor(admin, config, assignments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    before = _state(door)
    if once:
        time.sleep(_FIRST_S)
        with console.capture() as drawn:
            console.print(frame(door.url, _state(door), before))
        print_line(drawn.get().rstrip("\n"))
        return
    if not console.is_terminal:
        raise CommandError("top draws on a terminal; print one frame with --once", ExitCode.USAGE)
    _watch(door, console, before)


def _state(door: AdminDoor) -> dict[str, Any]:
    status, answer = door.ask("/api/state")
    if status != _OK or not isinstance(answer, dict) or "lanes" not in answer:
        raise door.complaint(status, answer)
    return answer


def _watch(door: AdminDoor, console: "Console", before: dict[str, Any]) -> None:
    """Draw until the user presses q; a gate that has gone is waited for, its last numbers on the screen."""
    from rich.live import Live

    from millgate.cli.frame import frame

    last = before
    with _keys() as wants_to_leave, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(frame(door.url, last, None), refresh=True)
        while not wants_to_leave(_EVERY_S):
            silence = ""
            try:
                last, before = _state(door), last
            except CommandError as error:
                silence = str(error)
            live.update(frame(door.url, last, before, silence), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Wait]:
    """Read keys one by one while the block runs."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _wait_for_q
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _sleep(for_s: float) -> bool:
    time.sleep(for_s)
    return False


def _wait_for_q(for_s: float) -> bool:
    by = time.monotonic() + for_s
    while (left_s := by - time.monotonic()) > 0.0:
        if select.select([sys.stdin], (), (), left_s)[0]:
            keys = os.read(sys.stdin.fileno(), _MOST_KEYS)
            if not keys or b"q" in keys.lower():
                return True
    return False
