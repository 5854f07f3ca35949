"""`headgate explain`: what a gate would do with a request now, asked of a running one or of an empty one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.exits import CommandError, ExitCode
from headgate.cli.output import people, print_json, print_line
from headgate.cli.settings import FileOption, SetOption, flag, load_or_fail

if TYPE_CHECKING:
    from headgate.config.load import Loaded

MOST_REQUEST_BYTES: Final = 32 * 1024 * 1024
_WITHIN_S: Final = 5.0
# The body says which endpoint it is for, as far as it differs.
_PATHS: Final = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}

Answer = dict[str, Any]


def explain(
    request: Annotated[Path, typer.Argument(help="The body of a request, JSON.", show_default=False)],
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Admin door of the gate to ask.", show_default="that of the configuration"
        ),
    ] = None,
    config: FileOption = None,
    assignments: SetOption = None,
    path: Annotated[
        str | None, typer.Option(help="Endpoint of the request.", show_default="by what the body holds")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant that asks.", show_default=False)] = "",
    lane: Annotated[str | None, typer.Option(help="Lane of the request.", show_default="the first")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")] = False,
) -> None:
    """Say what would be decided about a request now, and the numbers behind it. Nothing is sent to an engine."""
    description = {**describe(request, path), "tenant": tenant, "lane": lane}
    instead = flag("headgate explain", "engines", None if config else [{"url": "http://127.0.0.1:8000"}])
    loaded = load_or_fail(config, assignments, (), instead)
    url = (admin or _admin_url(loaded)).rstrip("/")
    answer = ask(url, loaded, description, must_answer=admin is not None)
    if answer is None:
        people().print(f"nobody answers at {url}: this is what an empty gate would decide", markup=False)
        answer = decide_on_empty(loaded, description)
    if as_json:
        print_json(answer)
        return
    for name, value in _flat(answer):
        print_line(f"{name:<24} {value}")


def describe(file: Path, path: str | None) -> dict[str, Any]:
    """Return the facts of a request body that a decision needs; its content stays here."""
    import msgspec

    from headgate.dialects import DIALECTS
    from headgate.dialects.contract import BadInputError

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
    readers = [found for dialect in DIALECTS.values() if (found := dialect.readers.get(path.encode()))]
    if not readers:
        raise CommandError(f"--path: {path or 'give one'}: no endpoint that takes a permit", ExitCode.USAGE)
    try:
        facts = readers[0](body)
    except BadInputError as error:
        raise CommandError(f"{file}: {error.message}", ExitCode.USAGE) from None
    return {
        "prompt_bytes": len(body),
        "max_tokens": facts.max_tokens,
        "answers": facts.answers,
        "stream": facts.stream,
        "model": facts.model,
    }


def ask(url: str, loaded: "Loaded", description: Mapping[str, Any], *, must_answer: bool) -> Answer | None:
    """Ask a running gate; None when nobody listens there, unless somebody must."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    import msgspec

    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise CommandError(f"--admin: {url!r} is not an address: write http://host:port", ExitCode.USAGE)
    headers = {"content-type": "application/json"}
    if loaded.admin_token is not None:
        headers["authorization"] = f"Bearer {loaded.admin_token.get_secret_value()}"
    connection = HTTPConnection(parts.hostname, parts.port or 80, timeout=_WITHIN_S)
    try:
        connection.request("POST", "/api/explain", msgspec.json.encode(description), headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
        found = msgspec.json.decode(body)
    except (OSError, HTTPException, msgspec.DecodeError) as error:
        if not must_answer and isinstance(error, OSError):
            return None
        raise CommandError(f"{url} does not answer as a gate: {type(error).__name__}") from None
    finally:
        connection.close()
    if status != 200:
        raise CommandError(f"{url} answered {status}: {found.get('error', {}).get('message', '')}")
    return dict(found)


def decide_on_empty(loaded: "Loaded", description: Mapping[str, Any]) -> Answer:
    """Return what a gate with this configuration, on which nothing runs or waits, would decide."""
    from headgate.config.problems import ConfigError
    from headgate.servers.admin.queries import ExplainQuery, plain_explanation
    from headgate.wiring.governor import build_governor
    from headgate.wiring.settings import build_settings

    try:
        built = build_settings(loaded.config, None, loaded.places)
    except ConfigError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    governor = build_governor(built.settings, 0.0)
    return plain_explanation(governor.explain(ExplainQuery(**description).arrival(), 0.0))


def _admin_url(loaded: "Loaded") -> str:
    host, port = loaded.config.admin.host, loaded.config.admin.port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - listening there, asking here
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _flat(answer: Answer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in answer.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", round(value, 4) if isinstance(value, float) else value
