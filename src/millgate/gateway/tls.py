"""TLS contexts from files: for clients of the HTTP door, and towards engines, whose certificates are always verified."""

import re
import ssl as tls
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VALIDITY: Final = re.compile(rb"\x30[\x1e\x20\x22]" + 2 * rb"(?:\x17\x0d|\x18\x0f)(\d{12,14})Z")
"""RFC 5280, 4.1.2.5: two times, each as a UTCTime (until 2049) or a GeneralizedTime."""


SOON: Final = timedelta(days=30)
"""Certificates of 90 days are renewed this long before their end; of one that lives shorter the last third is soon."""


class TlsError(ValueError):
    """A file that cannot be used; `field` is the setting that names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: a certificate with its key, and the authorities that the other side must come from."""

    cert: str | None = None
    key: str | None = None
    authorities: str | None = None


class Certificate(NamedTuple):
    """A setting, the file that it names, and from when until when what is in that is valid."""

    setting: str
    file: str
    begins: datetime
    ends: datetime

    def trouble(self, now: datetime) -> str:
        """Return what is wrong with it now, in words; nothing while it has time."""
        if now < self.ends - min(SOON, (self.ends - self.begins) / 3):
            return ""
        return "has expired" if now >= self.ends else "expires soon"


def listener_context(files: TlsFiles, protocol: str = "http/1.1") -> tls.SSLContext:
    """Return the context for clients that speak this protocol: TLS 1.2 at least, their certificates asked for where authorities are given."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    _load_pair(context, files)
    if files.authorities is not None:
        _load_authorities(context, files.authorities, "client_ca")
        context.verify_mode = tls.CERT_REQUIRED
    return context


def engine_context(files: TlsFiles) -> tls.SSLContext:
    """Return the context towards an engine: its name and certificate are verified, by the system's authorities or ours."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.minimum_version = tls.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if files.authorities is None:
        context.load_default_certs()
    else:
        _load_authorities(context, files.authorities, "ca")
    if files.cert is not None:
        _load_pair(context, files)
    return context


def lifetimes(path: str) -> list[tuple[datetime, datetime]]:
    """Return from when until when each certificate of a PEM file is valid."""
    blocks = _PEM.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
    found = [_VALIDITY.search(tls.PEM_cert_to_DER_cert(block)) for block in blocks]
    return [(_moment(each[1]), _moment(each[2])) for each in found if each is not None]


def _moment(digits: bytes) -> datetime:
    form = "%y%m%d%H%M%S" if len(digits) == len("YYMMDDhhmmss") else "%Y%m%d%H%M%S"
    return datetime.strptime(digits.decode(), form).replace(tzinfo=UTC)


def _load_pair(context: tls.SSLContext, files: TlsFiles) -> None:
    assert files.cert is not None
    for field, path in (("cert", files.cert), ("key", files.key)):
        _check_readable(field, path)
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_passphrase)
    except (tls.SSLError, ValueError) as error:
        reason = (
            error.reason or "one of them is not PEM, or not whole"
            if isinstance(error, tls.SSLError)
            else error
        )
        raise TlsError(
            "cert", f"{files.cert} and {files.key} are no certificate and its key: {reason}"
        ) from None


def _load_authorities(context: tls.SSLContext, path: str, field: str) -> None:
    _check_readable(field, path)
    try:
        context.load_verify_locations(cafile=path)
    except tls.SSLError as error:
        raise TlsError(field, f"{path} holds no certificates: {error.reason or 'not PEM'}") from None


def _check_readable(field: str, path: str | None) -> None:
    """The library's own errors do not say which file."""
    assert path is not None
    try:
        with open(path, "rb"):  # noqa: PTH123 - nothing but whether it opens
            pass
    except OSError as error:
        raise TlsError(field, f"{path} cannot be read: {error.strerror}") from None


def _refuse_passphrase() -> NoReturn:
    """Called for an encrypted key; without it the library would ask the terminal."""
    raise ValueError("the key has a passphrase")
