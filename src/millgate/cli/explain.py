"""`millgate explain` and `millgate why`: what a gate would do with a request now, and what it decided about one before."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from millgate.cli.asking import AdminDoor, AdminOption, SilentError
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import people, print_json, print_line
from millgate.cli.settings import FileOption, SetOption

if TYPE_CHECKING:
    from millgate.config.load import Loaded

MOST_REQUEST_BYTES: Final = 32 * 1024 * 1024
_ANSWERED: Final = 200
# The body says which endpoint it is for, as far as it differs.
_RESPONSES: Final = ("stream", "max_output_tokens", "instructions", "store", "previous_response_id", "tools")
_PATHS: Final = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    **dict.fromkeys(_RESPONSES, "/v1/responses"),
    "input": "/v1/embeddings",
}

Answer = dict[str, Any]


def explain(
    request: Annotated[Path, typer.Argument(help="The body of a request, JSON.", show_default=False)],
    admin: AdminOption = None,
    config: FileOption = None,
    assignments: SetOption = None,
    path: Annotated[
        str | None, typer.Option(help="Endpoint of the request.", show_default="by what the body holds")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant that asks.", show_default=False)] = "",
    lane: Annotated[str | None, typer.Option(help="Lane of the request.", show_default="by its size")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")] = False,
) -> None:
    """Say what would be decided about a request now, and the numbers behind it. Nothing is sent to an engine."""
    description = {**describe(request, path), "tenant": tenant, "lane": lane}
    door = AdminDoor(admin, config, assignments)
    try:
        status, answer = door.ask("/api/explain", description)
    except SilentError:
        if admin is not None:
            raise
        people().print(
            f"no gate answers at {door.url}: this is what an empty gate would decide", markup=False
        )
        status, answer = _ANSWERED, decide_on_empty(door.loaded, description)
    if status != _ANSWERED:
        raise door.complaint(status, answer)
    if as_json:
        print_json(answer)
        return
    for name, value in _flat(answer):
        print_line(f"{name:<24} {value}")


def describe(file: Path, path: str | None) -> dict[str, Any]:
    """Return the facts of a request body that a decision needs; its content stays here."""
    import msgspec

    from millgate.dialects import READERS
    from millgate.dialects.clip import may_clip
    from millgate.dialects.contract import BadInputError

    try:
        body = file.read_bytes()[: MOST_REQUEST_BYTES + 1]
    except OSError as error:
        raise CommandError(f"{file}: cannot be read: {error.strerror}", ExitCode.USAGE) from None
    if path is None:
        try:
            keys = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            raise CommandError(f"{file}: is not a JSON object", ExitCode.USAGE) from None
        path = next((known for key, known in _PATHS.items() if key in keys), "")
    read = READERS.get(path.encode())
    if read is None:
        raise CommandError(f"--path: {path or 'give one'}: no endpoint that takes a permit", ExitCode.USAGE)
    try:
        facts = read(body)
    except BadInputError as error:
        raise CommandError(f"{file}: {error.message}", ExitCode.USAGE) from None
    return {
        "prompt_bytes": len(body) if facts.text_bytes is None else facts.text_bytes,
        "body_bytes": len(body),
        "max_tokens": facts.max_tokens,
        "min_tokens": facts.min_tokens,
        "fixed_tokens": facts.fixed_tokens,
        "may_clip": may_clip(body),
        "answers": facts.answers,
        "stream": facts.stream,
        "model": facts.model,
    }


def decide_on_empty(loaded: "Loaded", description: Mapping[str, Any]) -> Answer:
    """Return what a gate with this configuration, on which nothing runs or waits, would decide."""
    from millgate.servers.admin.answers import ExplainQuery, plain_explanation
    from millgate.wiring.governor import build_governor
    from millgate.wiring.settings import build_settings

    built = build_settings(loaded.config, None, loaded.places)
    lanes = [lane.name for lane in built.settings.lanes]
    if description["lane"] and description["lane"] not in lanes:
        raise CommandError(f"--lane: names none (there are {', '.join(lanes)})", ExitCode.USAGE)
    governor = build_governor(built.settings, 0.0)
    return plain_explanation(governor.explain(ExplainQuery(**description).arrival(), 0.0))


def _flat(answer: Answer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in answer.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", round(value, 4) if isinstance(value, float) else value


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
    status, answer = door.ask(f"/api/why?id={quote(wanted, safe='', errors='surrogateescape')}")
    if isinstance(answer, dict) and answer.get("error", {}).get("code") == "not_found":
        raise CommandError(f"{wanted}: {answer['error']['message']}")
    if status != _ANSWERED:
        raise door.complaint(status, answer)
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
