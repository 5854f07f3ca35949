"""`millgate send` and `millgate ping`: a client of the line door, with the published client's exit codes."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millgate.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    import ssl

    from millgate.client.line import Told

AddressOption = Annotated[str, typer.Option("--addr", metavar="HOST:PORT", help="The line door's address.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Longest silence, in seconds.")]
TokenOption = Annotated[
    str,
    typer.Option("--token-env", metavar="NAME", help="Environment variable that holds the token, if any."),
]
TlsOption = Annotated[bool, typer.Option("--tls", help="Speak TLS.")]
CaOption = Annotated[
    Path | None, typer.Option("--ca", help="Trust this certificate authority (PEM); implies --tls.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print every frame as a line of CSV.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]

_BAR_BYTES = 1_000_000  # below it an upload is over before a bar is seen
_BAR_CELLS = 30
_CSV_HEADER = "ts_unix_ms,verb,job,seq,status,need_code,retry_hint_ms,error"
_DEFAULT_ADDRESS = "127.0.0.1:7777"
_TOKEN_ENV = "MILLGATE_LINE_TOKEN"  # noqa: S105 - the name of a variable


def send(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to send: a JSON request body.")],
    addr: AddressOption = _DEFAULT_ADDRESS,
    retries: Annotated[int, typer.Option(min=0, help="How often to come back after a yield.")] = 50,
    result: Annotated[
        Path | None, typer.Option("--result", metavar="FILE", help="Ask for the answer and write it here.")
    ] = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="The session that it is a turn of.")] = "",
    timeout: TimeoutOption = 20.0,
    token_env: TokenOption = _TOKEN_ENV,
    tls: TlsOption = False,
    ca: CaOption = None,
    csv: CsvOption = False,
    csv_header: Annotated[bool, typer.Option("--csv-header", help="Begin the CSV with its header.")] = False,
    quiet: QuietOption = False,
) -> int:
    """Have one payload executed through a line door. Exits 0 done, 2 aborted by the server, 1 anything else."""
    from millgate.client.line import AbortedError, LineClient, LineError

    payload = _read(file)
    watcher = _Watcher(len(payload), csv=csv, quiet=quiet)
    if csv and csv_header:
        watcher.say(_CSV_HEADER)
    try:
        with LineClient(
            addr,
            token=os.environ.get(token_env, ""),
            timeout_s=timeout,
            retries=retries,
            ssl=_context(ca, tls=tls),
            watch=watcher.see,
        ) as client:
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


def ping(
    addr: AddressOption = _DEFAULT_ADDRESS,
    timeout: TimeoutOption = 20.0,
    token_env: TokenOption = _TOKEN_ENV,
    tls: TlsOption = False,
    ca: CaOption = None,
    csv: CsvOption = False,
    quiet: QuietOption = False,
) -> int:
    """Ask a line door how it stands. Exits 0 ready, 2 saturated, 1 anything else."""
    from millgate.client.line import LineClient, LineError

    watcher = _Watcher(0, csv=csv, quiet=quiet)
    try:
        with LineClient(
            addr,
            token=os.environ.get(token_env, ""),
            timeout_s=timeout,
            ssl=_context(ca, tls=tls),
            watch=watcher.see,
        ) as client:
            pinged = client.ping()
    except LineError as error:
        raise CommandError(str(error)) from None
    return ExitCode.OK if pinged.ready else ExitCode.USAGE


class _Watcher:
    """Shows every frame on stdout, and a bar on stderr while something large goes out to a terminal."""

    def __init__(self, size: int, *, csv: bool, quiet: bool) -> None:
        self._size = size
        self._csv = csv
        self._quiet = quiet
        self._bar = size >= _BAR_BYTES and not quiet and sys.stderr.isatty()

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


def _context(ca: Path | None, *, tls: bool) -> "ssl.SSLContext | None":
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
