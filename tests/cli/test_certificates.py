"""`millgate check` says which certificates have expired or soon will, of doors and of those towards engines alike."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from millgate.cli.compose import gateway_settings
from millgate.cli.main import main
from millgate.cli.settings import load_or_fail

NOW = datetime.now(UTC)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issued(authority: trustme.CA, folder: Path, from_days: float, until_days: float) -> str:
    """Write a certificate with its chain and its key; return `cert: ..., key: ...`."""
    begins, ends = (NOW + timedelta(days=days) for days in (from_days, until_days))
    made = authority.issue_cert("gate", not_before=begins, not_after=ends)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.unlink(missing_ok=True)
    for blob in made.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    made.private_key_pem.write_to_path(key)
    return f"cert: {cert}, key: {key}"


def said(folder: Path, text: str, captured: Captured) -> list[str]:
    file = folder / "gate.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["check", str(file)]) == 0
    return captured.readouterr().err.splitlines()


ENGINES = "engines: [{url: 'http://a:1'}]\n"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        (ENGINES + "listen: {tls: {PAIR}}\n", "listen.tls.cert"),
        (ENGINES + "line: {token_env: TOKEN, tls: {PAIR}}\n", "line.tls.cert"),
        (ENGINES + "extproc: {tls: {PAIR}}\n", "extproc.tls.cert"),
        ("engines: [{url: 'https://a:1', tls: {PAIR}}]\n", "engines[0].tls.cert"),
    ],
)
@pytest.mark.parametrize(
    ("from_days", "until_days", "what"),
    [(-90, -1, "has expired"), (-80, 10, "expires soon"), (-5, 1, "expires soon")],
)
def test_check_names_the_certificate_that_has_expired_or_soon_will(
    authority: trustme.CA,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    setting: str,
    from_days: float,
    until_days: float,
    what: str,
) -> None:
    monkeypatch.setenv("TOKEN", "t" * 32)
    pair = issued(authority, tmp_path, from_days, until_days)

    (line,) = said(tmp_path, text.replace("PAIR", pair), capsys)
    assert line.startswith(f"millgate: {tmp_path}/gate.yaml:")
    assert f"{setting}: {tmp_path}/cert.pem {what}: {NOW + timedelta(days=until_days):%Y-%m-%d}" in line


@pytest.mark.parametrize(("from_days", "until_days"), [(-10, 80), (-1, 5), (-1, 20_000)])
def test_check_says_nothing_of_a_certificate_that_has_time(
    authority: trustme.CA, tmp_path: Path, capsys: Captured, from_days: float, until_days: float
) -> None:
    """One of six days is renewed in its last two; one that ends after 2049 is written in another form."""
    pair = issued(authority, tmp_path, from_days, until_days)

    assert said(tmp_path, ENGINES + f"listen: {{tls: {{{pair}}}}}\n", capsys) == []


def test_of_authorities_the_last_to_expire_counts(
    authority: trustme.CA, tmp_path: Path, capsys: Captured
) -> None:
    """A bundle keeps the old authority beside the new one while certificates are renewed."""
    issued(authority, tmp_path, -90, -1)
    bundle = tmp_path / "cert.pem"
    text = f"engines: [{{url: 'https://a:1', tls: {{ca: {bundle}}}}}]\n"
    (line,) = said(tmp_path, text, capsys)
    assert f"engines[0].tls.ca: {bundle} has expired" in line

    authority.cert_pem.write_to_path(str(bundle), append=True)
    assert said(tmp_path, text, capsys) == []


def test_a_gate_that_serves_and_one_that_reloads_know_until_when_their_certificates_are_valid(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """`check` said that a certificate had expired; a reload took it without a word, and all new clients left."""
    pair = issued(authority, tmp_path, -90, -1)
    file = tmp_path / "gate.yaml"
    file.write_text(ENGINES + f"listen: {{tls: {{{pair}}}}}\n", encoding="utf-8")

    (certificate,) = gateway_settings(load_or_fail(file)).certificates
    assert certificate[:2] == ("listen.tls.cert", str(tmp_path / "cert.pem"))
    assert certificate.trouble(NOW) == "has expired"
