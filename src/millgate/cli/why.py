"""`millgate why`: what a running gate decided about one request, and the numbers behind each decision."""

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from millgate.cli.asking import AdminDoor, AdminOption, complaint
from millgate.cli.exits import CommandError
from millgate.cli.output import print_json, print_line
from millgate.cli.settings import FileOption, SetOption

_FOUND, _UNKNOWN = 200, 404


def why(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Request id, as in the answer's x-request-id, a trace's id, or an attempt's number.",
            show_default=False,
        ),
    ],
    admin: AdminOption = None,
    config: FileOption = None,
    assignments: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")] = False,
) -> None:
    """Say what was decided about a request and why, newest attempt first. Exit code 1 when nothing is kept of it."""
    door = AdminDoor(admin, config, assignments)
    status, answer = door.get(f"/api/why?id={quote(wanted, safe='')}")
    if status == _UNKNOWN and isinstance(answer, dict):
        raise CommandError(f"{wanted}: {answer.get('error', {}).get('message', 'unknown')}")
    if status != _FOUND:
        raise complaint(door.url, status, answer)
    if as_json:
        print_json(answer)
        return
    for attempt in answer["attempts"]:
        _show(attempt)


def _show(attempt: dict[str, Any]) -> None:
    at = datetime.fromtimestamp(attempt["at"], UTC).isoformat(sep=" ", timespec="milliseconds")
    cut = "" if attempt["whole"] else ", its beginning is no longer kept"
    theirs = "".join(f", {name} at its engine" for name in attempt["upstream_ids"])
    trace = f", trace {attempt['trace']}" if attempt["trace"] else ""
    print_line(f"attempt {attempt['attempt']}, {at}{theirs}{trace}{cut}")
    for step in attempt["steps"]:
        print_line(f"  {step['after_s']:+9.3f} s  {step['words']}")
