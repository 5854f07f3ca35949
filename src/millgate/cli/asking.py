"""Asking a running gate's admin door: its address, its token, and one JSON answer at a time."""

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.settings import flag, load_or_fail
from millgate.config.values import check_url

AdminOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Admin door of the gate to ask.", show_default="that of the configuration"
    ),
]
_WITHIN_S: Final = 5.0
_MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024


class SilentError(CommandError):
    """No gate answers there at all."""


class AdminDoor:
    """One gate's admin door; `url` http or https, the token from the environment variable that the configuration names.

    `loaded` is that configuration.
    """

    def __init__(self, url: str | None, config: Path | None, assignments: list[str] | None) -> None:
        instead = flag("millgate", "engines", None if config else [{"url": "http://127.0.0.1:8000"}])
        self.loaded = loaded = load_or_fail(config, assignments, (), instead)
        admin, token = loaded.config.admin, loaded.admin_token
        self.url = (url or _listening(admin.host, admin.port)).rstrip("/")
        try:
            check_url(self.url)
        except ValueError as error:
            raise CommandError(f"--admin: {error}", ExitCode.USAGE) from None
        self._headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}

    def complaint(self, status: int, answer: Any) -> CommandError:
        """Return the error for an answer that is none: what the gate said, where a token goes, and which door this may be."""
        said = answer.get("error", {}).get("message", "") if isinstance(answer, dict) else ""
        variable = self.loaded.config.admin.token_env
        advice = {401: f"; put the token of its admin door into {variable}", 404: "; is this its admin door?"}
        return CommandError(f"{self.url} answered {status}: {said}{advice.get(status, '')}")

    def ask(self, path: str, content: Any = None) -> tuple[int, Any]:
        """Return the status and the decoded JSON of this path, asked by POST with this content if there is any.

        Raises SilentError when there is no answer, CommandError when it is none of a gate.
        """
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        import msgspec

        parts = urlsplit(self.url)
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=_WITHIN_S)
        method, body = ("GET", None) if content is None else ("POST", msgspec.json.encode(content))
        try:
            connection.request(method, parts.path + path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read(_MOST_ANSWER_BYTES))
        except ConnectionRefusedError:
            raise SilentError(
                f"nothing listens at {self.url}: is the gate running, and is this its admin door?"
            ) from None
        except OSError as error:
            raise SilentError(f"no gate answers at {self.url}: {type(error).__name__}") from None
        except (HTTPException, msgspec.DecodeError) as error:
            raise CommandError(f"{self.url} does not answer as a gate: {type(error).__name__}") from None
        finally:
            connection.close()


def _listening(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - listening there, asking here
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
