"""An authority as `openssl req -x509` makes it, and TLS contexts as Python 3.13 makes them, which refuse it by default."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("our own"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def plain_authority(folder: Path, address: str) -> tuple[str, str, str]:
    """Return the paths of an authority without a key usage, of a certificate for this address, and of its key."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _certificate("our own", authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    leaf = _certificate(address, own).add_extension(names, critical=False)
    pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    written = {
        "ca.pem": ca.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM),
        "cert.pem": leaf.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM),
        "key.pem": pem,
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    ca_file, cert, key = (str(folder / name) for name in written)
    return ca_file, cert, key


def make_default_contexts_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this Python make its default contexts as 3.13 and later ones do."""
    make = ssl.create_default_context

    def strict(*arguments: Any, **named: Any) -> ssl.SSLContext:
        context = make(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
