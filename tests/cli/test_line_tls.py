"""What `millgate send --ca` trusts does not hang on the version of Python."""

import socket
import ssl
from pathlib import Path
from threading import Thread

import pytest

from millgate.cli.line import _context
from own_authority import make_default_contexts_strict, plain_authority


def test_an_authority_without_a_key_usage_is_trusted_by_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `openssl req -x509` makes it. The gate's doors take it, and `send` did not from Python 3.13 on."""
    ca, cert, key = plain_authority(tmp_path, "127.0.0.1")
    make_default_contexts_strict(monkeypatch)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(cert, key)
    here = _context(Path(ca), tls=True)
    assert here is not None

    ours, theirs = socket.socketpair()
    with ours, theirs:
        door = Thread(target=lambda: there.wrap_socket(theirs, server_side=True).close())
        door.start()
        with here.wrap_socket(ours, server_hostname="127.0.0.1") as line:
            assert line.getpeercert()
        door.join()
