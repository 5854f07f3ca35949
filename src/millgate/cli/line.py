"""`millgate send` and `millgate ping`: a client of the line door, with the published client's exit codes."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.flags import read_flags, taking

if TYPE_CHECKING:
    import ssl

    from millgate.client.line import LineClient, Told

TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Longest silence, in seconds.")]
_FLAGS = read_flags("""
--addr | address | text HOST:PORT | 127.0.0.1:7777 | The line door's address.
--token-env | token_env | text NAME | MILLGATE_LINE_TOKEN | Environment variable that holds the token, if any.
--tls | tls | switch | | Speak TLS.
--ca | ca | text FILE | | Trust this certificate authority (PEM); implies --tls.
--csv | csv | switch | | Print every frame as a line of CSV.
--quiet | quiet | switch | | Print nothing but errors.
""")

_BAR_BYTES = 1_000_000  # below it an upload is over before a bar is seen
_BAR_CELLS = 30
_CSV_HEADER = "ts_unix_ms,verb,job,seq,status,need_code,retry_hint_ms,error"
_TOKEN_ENV = "MILLGATE_LINE_TOKEN"  # noqa: S105 - the name of a variable


@taking(_FLAGS)
def send(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to send: a JSON request body.")],
    retries: Annotated[int, typer.Option(min=0, help="How often to come back after a yield.")] = 50,
    result: Annotated[
        Path | None, typer.Option("--result", metavar="FILE", help="Ask for the answer and write it here.")
    ] = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="The session that it is a turn of.")] = "",
    timeout: TimeoutOption = 20.0,
    csv_header: Annotated[bool, typer.Option("--csv-header", help="Begin the CSV with its header.")] = False,
    **how: Any,
) -> int:
    """Have one payload executed through a line door. Exits 0 done, 2 aborted by the server, 1 anything else."""
    from millgate.client.line import AbortedError, LineError

    payload = _read(file)
    watcher = _Watcher(len(payload), how)
    if csv_header and how.get("csv"):
        watcher.say(_CSV_HEADER)
    try:
        with _client(how, watcher, timeout_s=timeout, retries=retries) as client:
            sent = client.send(payload, job=f"J_{file.name}", want_result=result is not None, session=session)
    except AbortedError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    except LineError as error:
        raise CommandError(str(error)) from None
    finally:
        watcher.end()
    if result is not None and sent.result is not None:
        _write(result, sent.result)
    return ExitCode.OK


@taking(_FLAGS)
def ping(timeout: TimeoutOption = 20.0, **how: Any) -> int:
    """Ask a line door how it stands. Exits 0 ready, 2 saturated, 1 anything else."""
    from millgate.client.line import LineError

    try:
        with _client(how, _Watcher(0, how), timeout_s=timeout) as client:
            pinged = client.ping()
    except LineError as error:
        raise CommandError(str(error)) from None
    return ExitCode.OK if pinged.ready else ExitCode.USAGE


class _Watcher:
    """Shows every frame on stdout, and a bar on stderr while something large goes out to a terminal."""

    def __init__(self, size: int, how: Mapping[str, Any]) -> None:
        self._size = size
        self._csv, self._quiet = how.get("csv", False), how.get("quiet", False)
        self._bar = size >= _BAR_BYTES and not self._quiet and sys.stderr.isatty()

    def see(self, told: "Told") -> None:
        if self._bar:
            self._draw(told.taken_bytes)
        reply = told.reply
        if self._csv:
            row = reply.verb, reply.job, reply.seq, reply.status, reply.need, reply.retry_hint_ms, reply.error
            self.say(",".join(map(str, (round(time.time() * 1000), *row))))
        elif not self._bar:
            self.say(
                f"recv v=0 verb={reply.verb} job={reply.job} seq={reply.seq} status={reply.status} "
                f"need={reply.need} err={reply.error}"
            )

    def say(self, line: str) -> None:
        """Print one line, unless nothing is to be said."""
        from millgate.cli.output import print_line

        if not self._quiet:
            print_line(line)

    def end(self) -> None:
        """Leave the line of the bar."""
        if self._bar:
            sys.stderr.write("\n")

    def _draw(self, taken: int) -> None:
        cells = _BAR_CELLS * min(taken, self._size) // self._size
        bar = "#" * cells + "." * (_BAR_CELLS - cells)
        sys.stderr.write(f"\r[{bar}] {taken / 1e6:.1f} of {self._size / 1e6:.1f} MB")
        sys.stderr.flush()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _client(how: Mapping[str, Any], watcher: _Watcher, **more: Any) -> "LineClient":
    from millgate.client.line import LineClient

    token = os.environ.get(how.get("token_env", _TOKEN_ENV), "")
    address = {"address": how["address"]} if "address" in how else {}
    context = _context(how.get("ca"), tls="tls" in how)
    return LineClient(**address, token=token, ssl=context, watch=watcher.see, **more)


def _context(ca: str | Path | None, *, tls: bool) -> "ssl.SSLContext | None":
    import ssl

    if not tls and ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise CommandError(f"--ca: {ca}: {error.strerror or error}", ExitCode.USAGE) from None
    # From Python 3.13 on this would refuse authorities made by `openssl req -x509`, which the gate's own contexts take.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
