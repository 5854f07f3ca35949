"""Requests that must be refused: what is sent, and which statuses may answer it.

Every case is one that some server on the market accepts, mends, or answers with its own failure; what may come of
it is a second request that nobody authorised, a wrong host, or memory without a bound.
"""

from typing import NamedTuple


class Case(NamedTuple):
    """One malformed request; `served` is how many requests before it are good and may reach the application."""

    name: str
    payload: bytes
    statuses: tuple[int, ...] = (400,)
    served: int = 0


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n"


def _post(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"POST / HTTP/1.1", b"Host: test", *lines, b"", body))


def _chunks(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked", body=body)


def _get(*lines: bytes, opening: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join((opening, *lines, b"", b""))


LENGTHS = [
    Case(f"content-length {text!r}", _post(b"Content-Length: " + text, body=b"x" * 5), (400, 413))
    for text in (
        b"+5",
        b"-1",
        b"0x5",
        b"1_0",
        b"",
        b" ",
        b"1" + b"0" * 26,
        b"5, 5",
        b"5 5",
        b"5;",
        b"\xb2",
        b"5\x0b",
    )
]

FRAMING = [
    Case(
        "length, then chunked",
        _post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    ),
    Case(
        "chunked, then length",
        _post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + SMUGGLED),
    ),
    Case("a length of 5,000 digits", _post(b"Content-Length: " + b"5".zfill(5_000), body=b"x" * 5)),
    Case("two lengths that differ", _post(b"Content-Length: 5", b"Content-Length: 6", body=b"x" * 6)),
    Case("two lengths that agree", _post(b"Content-Length: 5", b"Content-Length: 5", body=b"x" * 5)),
    Case("coding xchunked", _post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), (400, 501)),
    Case("coding identity", _post(b"Transfer-Encoding: identity", body=b""), (400, 501)),
    Case("coding gzip, chunked", _post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), (400, 501)),
    Case("coding chunked, chunked", _post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n")),
    Case("coding chunked, identity", _post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n")),
    Case("two chunked codings", _post(*[b"Transfer-Encoding: chunked"] * 2, body=b"0\r\n\r\n")),
    Case("coding with a parameter", _post(b"Transfer-Encoding: chunked;q=1", body=b"0\r\n\r\n"), (400, 501)),
    Case(
        "coding with a vertical tab", _post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), (400, 501)
    ),
    Case("coding with a space before the colon", _post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n")),
    Case("empty coding", _post(b"Transfer-Encoding:", body=b"0\r\n\r\n"), (400, 501)),
    Case(
        "chunked on HTTP/1.0",
        b"POST / HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    Case(
        "chunked and length on HTTP/1.0",
        b"POST / HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
]

CHUNKS = [
    Case(f"chunk {name}", _chunks(body))
    for name, body in (
        ("size 0x5", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("size -5", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("size +5", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("size with a space before", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("size with a space behind", b"5 \r\nhello\r\n0\r\n\r\n"),
        ("size with an underscore", b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"),
        ("size that overflows", b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n"),
        ("size missing", b"\r\nhello\r\n0\r\n\r\n"),
        ("size no number", b"zz\r\nhello\r\n0\r\n\r\n"),
        ("size ended by LF", b"5\nhello\r\n0\r\n\r\n"),
        ("size ended by CR", b"5\rhello\r\n0\r\n\r\n"),
        ("extension with LF", b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
        ("extension with CR", b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("data too long", b"5\r\nhelloo\r\n0\r\n\r\n"),
        ("data ended by LF", b"5\r\nhello\n0\r\n\r\n"),
        ("data ended by nothing", b"5\r\nhello0\r\n\r\n"),
        ("end by LF", b"5\r\nhello\r\n0\n\n"),
        ("trailer with no colon", b"0\r\nnonsense\r\n\r\n"),
        ("trailer with NUL", b"0\r\nA: \x00\r\n\r\n"),
    )
]

WAITED_FOR = [
    Case("a chunk of 2^64 bytes", _chunks(b"f" * 16 + b"\r\nhello"), (400,)),
    Case("a body that does not come", _post(b"Content-Length: 5"), (408,)),
]

LINES = [
    Case("lines ended by LF", b"GET / HTTP/1.1\nHost: test\n\n"),
    Case("opening ended by LF", b"GET / HTTP/1.1\nHost: test\r\n\r\n"),
    Case("field ended by LF", b"GET / HTTP/1.1\r\nHost: test\nA: b\r\n\r\n"),
    Case("head ended by LF LF", b"GET / HTTP/1.1\r\nHost: test\n\n"),
    Case("head ended by CR LF LF", b"GET / HTTP/1.1\r\nHost: test\r\n\n"),
    Case("lines ended by CR", b"GET / HTTP/1.1\rHost: test\r\r"),
    Case("CR within a value", _get(b"Host: test", b"A: b\rc")),
    Case("a folded field", _get(b"Host: test", b"A: b", b" c")),
    Case("a field folded by a tab", _get(b"Host: test", b"A: b", b"\tc")),
    Case("a first field that is folded", _get(b" Host: test", b"A: b")),
    Case("NUL in a value", _get(b"Host: test", b"A: b\x00c")),
    Case("NUL in a name", _get(b"Host: test", b"A\x00: b")),
    Case("a control character in a value", _get(b"Host: test", b"A: b\x01c")),
    Case("DEL in a value", _get(b"Host: test", b"A: b\x7fc")),
    Case("a field without a colon", _get(b"Host: test", b"nonsense")),
    Case("a field without a name", _get(b"Host: test", b": b")),
    Case("a name with a space", _get(b"Host: test", b"A b: c")),
    Case("a name with a space behind", _get(b"Host: test", b"A : c")),
    Case("a name with a bracket", _get(b"Host: test", b"A(b): c")),
    Case("a name beyond ASCII", _get(b"Host: test", b"\xc3\xa4: c")),
]

HOSTS = [
    Case("no host", _get(b"A: b")),
    Case("an empty host on HTTP/1.0", _get(b"Host:", opening=b"GET / HTTP/1.0")),
    Case("two hosts", _get(b"Host: test", b"Host: other")),
    Case("two equal hosts", _get(b"Host: test", b"Host: test")),
    *(
        Case(f"host {text!r}", _get(b"Host: " + text))
        for text in (
            b"",
            b"a b",
            b"a/b",
            b"user@host",
            b"*.a",
            b"a,b",
            b"a\\b",
            b"a?b",
            b"a#b",
            b"http://a",
            b"a:b",
            b"a:80:80",
            b"[::1",
            b"::1",
            b"[g::1]",
            b"a:999999",
            b"a%zz",
            b"\xc3\xa4",
            b"a" * 256,
            b"<a>",
            b'"a"',
        )
    ),
]

OPENINGS = [
    Case(f"opening {text!r}", _get(b"Host: test", opening=text), (400, 501, 505))
    for text in (
        b"GET /",
        b"GET",
        b"GET / HTTP/9.9",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.2",
        b"GET / HTTP/0.9",
        b"GET / http/1.1",
        b"GET / HTTP/1",
        b"GET / HTTP/1.1 x",
        b"GET / HTTP/ 1.1",
        b"GET  / HTTP/1.1",
        b"GET / XTTP/1.1",
        b"get / HTTP/1.1",
        b"BREW / HTTP/1.1",
        b"GET HTTP/1.1",
        b" GET / HTTP/1.1",
        b"GET\t/\tHTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"GET /\x00 HTTP/1.1",
        b"GET /\x7f HTTP/1.1",
        b"GET /\xc3\xa4 HTTP/1.1",
        b"GET /a#b HTTP/1.1",
        b"GET http://test/ HTTP/1.1",
        b"GET http://other/ HTTP/1.1",
        b"GET test HTTP/1.1",
        b"GET ?a HTTP/1.1",
        b"CONNECT test:443 HTTP/1.1",
        b"CONNECT / HTTP/1.1",
        b"RTSP / RTSP/1.0",
    )
]

UPGRADES = [
    Case(
        "h2 with prior knowledge",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        (400, 505),
    ),
    Case(
        "upgrade to a web socket",
        _get(b"Host: test", b"Connection: upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
        (426,),
    ),
    Case("upgrade without connection", _get(b"Host: test", b"Upgrade: websocket"), (426,)),
    Case(
        "two upgrades",
        _get(b"Host: test", b"Connection: upgrade", b"Upgrade: h2c", b"Upgrade: websocket"),
    ),
    Case(
        "a choice of upgrades",
        _get(b"Host: test", b"Connection: upgrade", b"Upgrade: h2c, websocket"),
        (426,),
    ),
    Case("a TLS hello", bytes.fromhex("16030100c8010000c403037f5b")),
    Case("an SSH banner", b"SSH-2.0-OpenSSH_9.2\r\n"),
    Case("noise", bytes(range(128, 256))),
]

EXPECTATIONS = [
    Case("an unknown expectation", _post(b"Expect: 200-ok", b"Content-Length: 5", body=b"hello"), (417,)),
    Case(
        "two expectations",
        _post(b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: 5"),
        (400, 417),
    ),
]

SIZES = [
    Case("70 KB of header", _get(b"Host: test", *[b"A%d: " % n + b"b" * 1000 for n in range(70)]), (431,)),
    Case("a field of 17 KB", _get(b"Host: test", b"A: " + b"b" * 17 * 1024), (431,)),
    Case("a field of 70 KB", _get(b"Host: test", b"A: " + b"b" * 70 * 1024), (431,)),
    Case("a field without an end", b"GET / HTTP/1.1\r\nA: " + b"b" * 70 * 1024, (431,)),
    Case("101 fields", _get(b"Host: test", *[b"A%d: b" % n for n in range(100)]), (431,)),
    Case("1000 fields", _get(b"Host: test", *[b"A%d: b" % n for n in range(1000)]), (431,)),
    Case("a target of 9 KB", _get(b"Host: test", opening=b"GET /" + b"a" * 9 * 1024 + b" HTTP/1.1"), (414,)),
    Case(
        "a target of 70 KB",
        _get(b"Host: test", opening=b"GET /" + b"a" * 70 * 1024 + b" HTTP/1.1"),
        (414, 431),
    ),
    Case("a body of 1 TB", _post(b"Content-Length: 1099511627776", body=b"x"), (413,)),
]

BEHIND = [
    Case(
        f"behind a good request: {case.name}",
        SMUGGLED.replace(b"smuggled", b"good") + case.payload,
        case.statuses,
        1,
    )
    for case in (*FRAMING[:3], *LINES[:3], *HOSTS[:3], *SIZES[1:2], *CHUNKS[:2])
]

CASES = [
    *LENGTHS,
    *FRAMING,
    *CHUNKS,
    *WAITED_FOR,
    *LINES,
    *HOSTS,
    *OPENINGS,
    *UPGRADES,
    *EXPECTATIONS,
    *SIZES,
    *BEHIND,
]
