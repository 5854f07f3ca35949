"""A client that is a raw socket: it can send anything, leave in any way, and reads answers byte by byte."""

import contextlib
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
READ_WITHIN_S = 30.0


@dataclass
class Answer:
    """One answer as it came; `whole` is False when the connection ended within it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = True
    lines: list[str] = field(default_factory=list)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error object of an OpenAI error body."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error

    @property
    def last_event(self) -> dict[str, Any]:
        """Return the last event of a stream, decoded."""
        event: dict[str, Any] = json.loads(self.body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: "))
        return event


class Talk:
    """One connection to the gateway."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(READ_WITHIN_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self._got = b""

    # ---- speaking

    def send(self, data: bytes) -> None:
        """Send everything."""
        self.socket.sendall(data)

    def try_send(self, data: bytes) -> None:
        """Send; a server that has closed by then is no fault."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def drip(self, data: bytes, gap_s: float) -> None:
        """Send byte by byte until everything is sent or the server has said something or closed."""
        for byte in data:
            try:
                self.socket.sendall(bytes((byte,)))
            except ConnectionError:
                return
            if self.heard(gap_s):
                return

    def ask(
        self, body: bytes, *lines: str, path: str = CHAT, method: str = "POST", kind: str = "application/json"
    ) -> None:
        """Send one request."""
        self.send(request(body, *lines, path=path, method=method, kind=kind))

    # ---- leaving

    def half_close(self) -> None:
        """Send FIN and go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Leave."""
        self.socket.close()

    # ---- listening

    def heard(self, within_s: float) -> bool:
        """Return whether bytes or the end come within so long."""
        if self._got:
            return True
        self.socket.settimeout(max(within_s, 1e-6))
        try:
            self._got = self.socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(READ_WITHIN_S)
        return True

    def rest(self, within_s: float = READ_WITHIN_S) -> bytes:
        """Read to the end of the connection; a reset counts as the end, an open connection is an error."""
        got, self._got = self._got, b""
        by = time.monotonic() + within_s
        while True:
            self.socket.settimeout(max(by - time.monotonic(), 1e-3))
            try:
                piece = self.socket.recv(65536)
            except ConnectionError:
                return got
            except TimeoutError:
                raise AssertionError(f"still open, after {got[:300]!r}") from None
            if not piece:
                return got
            got += piece

    def line(self) -> bytes:
        """Read one line, without its CRLF."""
        while b"\r\n" not in self._got:
            self._more()
        line, _, self._got = self._got.partition(b"\r\n")
        return line

    def exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        while len(self._got) < size:
            self._more()
        data, self._got = self._got[:size], self._got[size:]
        return data

    def head(self) -> Answer:
        """Read the head of an answer."""
        opening = self.line()
        assert opening.startswith(b"HTTP/1.1 "), opening
        lines: list[str] = []
        while line := self.line():
            lines.append(line.decode("latin-1"))
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(opening[9:12]), headers, lines=lines)

    def chunk(self) -> bytes:
        """Read one chunk, empty at the end of the body."""
        size = int(self.line(), 16)
        return self.exactly(size + 2)[:-2]

    def answer(self) -> Answer:
        """Read a whole answer, or what there is of it."""
        answer = self.head()
        try:
            if "content-length" in answer.headers:
                answer.body = self.exactly(int(answer.headers["content-length"]))
            elif answer.headers.get("transfer-encoding") == "chunked":
                while data := self.chunk():
                    answer.body += data
            else:
                answer.body = self.rest()
        except (ConnectionError, EOFError):
            answer.body += self._got
            answer.whole = False
        return answer

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        if not piece:
            raise EOFError(f"closed after {self._got[:300]!r}")
        self._got += piece


def chat(content: str = "hi", **fields: Any) -> bytes:
    """Return the body of a chat completion request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **fields}).encode()


def request(
    body: bytes, *lines: str, path: str = CHAT, method: str = "POST", kind: str = "application/json"
) -> bytes:
    """Return a whole sized request; a line that names content-type replaces ours."""
    fields = ["Host: gate", f"Content-Length: {len(body)}", *lines]
    if kind:
        fields.append(f"Content-Type: {kind}")
    return "\r\n".join((f"{method} {path} HTTP/1.1", *fields, "", "")).encode("latin-1") + body


def chunked(*pieces: bytes, lines: tuple[str, ...] = (), end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a whole request in chunks."""
    fields = ["Host: gate", "Transfer-Encoding: chunked", "Content-Type: application/json", *lines]
    head = "\r\n".join((f"POST {CHAT} HTTP/1.1", *fields, "", "")).encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end
