"""Requests whose framing can be read in two ways, and what they are made of."""

from faults.talk import CHAT, chat
from http1.server import malformed
from http1.server.malformed import Case

PATH = CHAT.encode()
BODY = chat("good")
GOOD = b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n\r\n"
SMUGGLED = (
    b"POST %b HTTP/1.1\r\nHost: gate\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (PATH, len(chat("smuggled")), chat("smuggled"))
)


def post(*lines: bytes, body: bytes = b"", opening: bytes = b"POST %b HTTP/1.1" % PATH) -> bytes:
    """Return a chat request with these lines of framing."""
    return b"\r\n".join((opening, b"Host: gate", b"Content-Type: application/json", *lines, b"", body))


def get(*lines: bytes, opening: bytes = b"GET /v1/models HTTP/1.1") -> bytes:
    """Return a request for the list of models with these lines."""
    return b"\r\n".join((opening, *lines, b"", b""))


def real(case: Case) -> Case:
    """Aim a payload of the server's tests at paths that the gateway serves."""
    payload = case.payload.replace(malformed.SMUGGLED, SMUGGLED)
    payload = payload.replace(b"GET /good ", b"GET /v1/models ")
    payload = payload.replace(b"POST / HTTP/1", b"POST %b HTTP/1" % PATH).replace(
        b"GET / ", b"GET /v1/models "
    )
    if payload.startswith(b"POST /v1"):
        payload = payload.replace(
            b"\r\nHost: test\r\n", b"\r\nHost: test\r\nContent-Type: application/json\r\n", 1
        )
    return case._replace(payload=payload)


# ---- framing: two readings of one body


def _length(text: bytes) -> Case:
    return Case(f"content-length {text!r}", post(b"Content-Length: " + text, body=BODY), (400, 413))


def _coding(line: bytes, statuses: tuple[int, ...] = (400, 501)) -> Case:
    return Case(f"coding {line!r}", post(line, body=b"0\r\n\r\n" + SMUGGLED), statuses)


SIZE = b"%d" % len(BODY)
FRAMING = [
    *map(
        _length,
        (
            b"%b,%b" % (SIZE, SIZE),
            b"%b, " % SIZE,
            b", %b" % SIZE,
            b"%b %b" % (SIZE, SIZE),
            b"%b.0" % SIZE,
            b"1e2",
            b"0b11",
            b"0o17",
            b"'%b'" % SIZE,
            b'"%b"' % SIZE,
            b"%b\t1" % SIZE,
            b"\x00%b" % SIZE,
            b"%b\x00" % SIZE,
            b"%bL" % SIZE,
            b"0x",
            b"--5",
            b"+0",
            b"-0",
            b"5\xa0",
            b"\xd9\xa5",
            b"\xef\xbc\x95",
            b"18446744073709551615",
            b"18446744073709551616",
            b"9223372036854775808",
            b"4294967297",
            b"9" * 400,
            b"NaN",
            b"inf",
            b"null",
            b"5;q=1",
            b"=5",
            b"5,",
            b"five",
        ),
    ),
    _coding(b"Transfer-Encoding: chunked, identity"),
    _coding(b"Transfer-Encoding: identity, chunked"),
    _coding(b"Transfer-Encoding: chunked,"),
    _coding(b"Transfer-Encoding: ,chunked"),
    _coding(b"Transfer-Encoding: chunked chunked"),
    _coding(b"Transfer-Encoding: chunked\tchunked"),
    _coding(b"Transfer-Encoding: \x0cchunked"),
    _coding(b"Transfer-Encoding: chunked\x0b"),
    _coding(b"Transfer-Encoding: chunked\x00"),
    _coding(b'Transfer-Encoding: "chunked"'),
    _coding(b"Transfer-Encoding: 'chunked'"),
    _coding(b"Transfer-Encoding: chunked; a=b"),
    _coding(b"Transfer-Encoding: chunke\xc4\x8f"),
    _coding(b"Transfer-Encoding: \xefchunked"),
    _coding(b"Transfer-Encoding: cow"),
    _coding(b"Transfer-Encoding: deflate"),
    _coding(b"Transfer-Encoding: x"),
    _coding(b"Transfer-Encoding: chunk"),
    _coding(b"Transfer-Encoding: chunkedd"),
    _coding(b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"),
    _coding(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
    _coding(b"Transfer-Encoding:\r\n chunked", (400,)),
    _coding(b"Transfer-Encoding\t: chunked", (400,)),
    _coding(b"Transfer-Encoding\x00: chunked", (400,)),
    _coding(b" Transfer-Encoding: chunked", (400,)),
    _coding(b"X: y\nTransfer-Encoding: chunked", (400,)),
    _coding(b"X: y\rTransfer-Encoding: chunked", (400,)),
    _coding(b"Transfer-Encoding: chunked\r\nContent-Length: 0", (400,)),
    _coding(b"Content-Length: 0\r\nTransfer-Encoding: chunked", (400,)),
    _coding(b"Content-Length: 6\r\ntransfer-encoding: CHUNKED", (400,)),
    _coding(b"Content-Length: 6\r\nTransfer-Encoding: identity"),
    _coding(b"Content-Length: 6\r\nTransfer-Encoding:"),
    _coding(b"Content-Length: 0\r\nContent-Length: %d" % len(SMUGGLED), (400,)),
    _coding(b"content-length: 0\r\nCONTENT-LENGTH: 0", (400,)),
    Case(
        "length on HTTP/1.0 with a coding",
        post(
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            body=b"0\r\n\r\n",
            opening=b"POST %b HTTP/1.0" % PATH,
        ),
    ),
    Case(
        "chunked GET on HTTP/1.0",
        get(b"Host: gate", b"Transfer-Encoding: chunked", opening=b"GET /v1/models HTTP/1.0"),
    ),
]


def _chunks(name: str, body: bytes, statuses: tuple[int, ...] = (400,)) -> Case:
    return Case(f"chunk {name}", post(b"Transfer-Encoding: chunked", body=body), statuses)


HEX = b"%x" % len(BODY)
CHUNKS = [
    _chunks("size in full width", b"\xef\xbc\x95\r\nhello\r\n0\r\n\r\n"),
    _chunks("size with a tab", b"5\t\r\nhello\r\n0\r\n\r\n"),
    _chunks("size with a tab before", b"\t5\r\nhello\r\n0\r\n\r\n"),
    _chunks("size with an h", b"5h\r\nhello\r\n0\r\n\r\n"),
    _chunks("size with NUL", b"5\x00\r\nhello\r\n0\r\n\r\n"),
    _chunks("size with a comma", b"5,5\r\nhello\r\n0\r\n\r\n"),
    _chunks("size 2^64 + 5", b"10000000000000005\r\nhello\r\n0\r\n\r\n", (400, 413)),
    _chunks("size of 2^63", b"8000000000000000\r\nhello\r\n0\r\n\r\n"),
    _chunks("size of 5 GB", b"140000000\r\nhello", (413,)),
    _chunks("size endless", b"0" * 70_000, (400, 413, 431)),
    _chunks("size after an empty line", b"\r\n5\r\nhello\r\n0\r\n\r\n"),
    _chunks("size ended by LF CR", b"5\n\rhello\r\n0\r\n\r\n"),
    _chunks("size ended by CR CR LF", b"5\r\r\nhello\r\n0\r\n\r\n"),
    _chunks("last without its size", HEX + b"\r\n" + BODY + b"\r\n\r\n"),
    _chunks("last ended by LF", HEX + b"\r\n" + BODY + b"\r\n0\n\r\n"),
    _chunks("last ended by CR alone", HEX + b"\r\n" + BODY + b"\r\n0\r\r\n\r\n"),
    _chunks("last of -0", HEX + b"\r\n" + BODY + b"\r\n-0\r\n\r\n"),
    _chunks("last of 0x0", HEX + b"\r\n" + BODY + b"\r\n0x0\r\n\r\n"),
    _chunks("end by LF", HEX + b"\r\n" + BODY + b"\r\n0\r\n\n"),
    _chunks("end by CR X", HEX + b"\r\n" + BODY + b"\r\n0\r\n\rX"),
    _chunks("data short", b"6\r\nhello\r\n0\r\n\r\n"),
    _chunks("data ended by LF LF", b"5\r\nhello\n\n0\r\n\r\n"),
    _chunks("data ended by CR", b"5\r\nhello\r0\r\n\r\n"),
    _chunks("data ended by CR CR LF", b"5\r\nhello\r\r\n0\r\n\r\n"),
    _chunks("data ended by spaces", b"5\r\nhello  \r\n0\r\n\r\n"),
    _chunks("extension with NUL", b"5;a=\x00\r\nhello\r\n0\r\n\r\n"),
    _chunks("extension with CR LF inside quotes", b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n'),
    _chunks("extension with LF that hides a chunk", b"5;\n0\r\n\r\n" + SMUGGLED),
    _chunks("extensions of 100 KB", b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n", (400, 413, 431)),
    _chunks("trailer folded", HEX + b"\r\n" + BODY + b"\r\n0\r\nA: b\r\n c\r\n\r\n"),
    _chunks("trailer with LF", HEX + b"\r\n" + BODY + b"\r\n0\r\nA: b\nC: d\r\n\r\n"),
    _chunks("trailer with CR", HEX + b"\r\n" + BODY + b"\r\n0\r\nA: b\rC\r\n\r\n"),
    _chunks("trailer without a name", HEX + b"\r\n" + BODY + b"\r\n0\r\n: b\r\n\r\n"),
    _chunks("trailer with a space before the colon", HEX + b"\r\n" + BODY + b"\r\n0\r\nA : b\r\n\r\n"),
    _chunks(
        "trailers of 100 KB",
        HEX + b"\r\n" + BODY + b"\r\n0\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
        (400, 413, 431),
    ),
    _chunks(
        "trailers, 20000 of them",
        HEX + b"\r\n" + BODY + b"\r\n0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        (400, 413, 431),
    ),
    _chunks("trailer with a length", HEX + b"\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"),
    _chunks(
        "trailer with a coding",
        HEX + b"\r\n" + BODY + b"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        (400, 501),
    ),
    _chunks("unfinished", b"5\r\nhel", (400, 408)),
    _chunks("size unfinished", b"5", (400, 408)),
    _chunks("trailer unfinished", HEX + b"\r\n" + BODY + b"\r\n0\r\nA: b", (400, 408)),
]
