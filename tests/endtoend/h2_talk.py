"""Just enough HTTP/2 (RFC 9113) to send a request with trailers, which no client library here does."""

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Self

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def _literal(name: str, value: str) -> bytes:
    """Return a field that is not indexed, its name new, without Huffman codes (RFC 7541 section 6.2.2)."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class H2Talk:
    """One connection, one request."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20.0)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(_SETTINGS, 0, 0, b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self, path: str, body: bytes, trailers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a JSON body and trailers behind it; return whether there was a 200 (else 0), and the body."""
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "envoy"}
        head["content-type"] = "application/json"
        self._send(_HEADERS, _END_HEADERS, 1, b"".join(_literal(*pair) for pair in head.items()))
        self._send(_DATA, 0, 1, body)
        tail = b"".join(_literal(*pair) for pair in trailers.items())
        self._send(_HEADERS, _END_HEADERS | _END_STREAM, 1, tail)
        return self._answer()

    def _answer(self) -> tuple[int, bytes]:
        status, body = 0, b""
        while True:
            kind, flags, payload = self._receive()
            if kind == _SETTINGS and not flags & _ACK:
                self._send(_SETTINGS, _ACK, 0, b"")
            elif kind == _HEADERS and payload[:1] == b"\x88":  # `:status 200` of the static table
                status = 200
            elif kind == _DATA:
                body += payload
            if kind in {_RST, _GOAWAY} or (kind in {_DATA, _HEADERS} and flags & _END_STREAM):
                return status, body

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._socket.sendall(
            struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
        )

    def _receive(self) -> tuple[int, int, bytes]:
        head = self._exactly(9)
        return head[3], head[4], self._exactly(int.from_bytes(head[:3]))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the connection ended"
            data += piece
        return data
