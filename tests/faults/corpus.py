"""Requests for the whole gateway that must be refused, or that look odd and must be served exactly once.

The payloads of `http1.server.malformed` are replayed with real paths: where the server's own tests see that no
request reaches an application, here an engine sees that nothing is dispatched. What is added here are more members
of the same families.
"""

from typing import NamedTuple

from faults.corpus_bodies import BODY, CHUNKS, FRAMING, GOOD, HEX, PATH, SIZE, SMUGGLED, get, post, real
from http1.server import malformed
from http1.server.malformed import Case

__all__ = ["BODY", "CHUNKS", "FRAMING", "GOOD", "PATH", "SIZE", "SMUGGLED", "get", "post", "real"]

# ---- heads

LINES = [
    Case("LF after a good line", b"GET /v1/models HTTP/1.1\r\nHost: gate\r\nA: b\n\r\n"),
    Case("LF CR at the end", b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n\n\r", (400, 408)),
    Case("a lone CR at the end", b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n\r", (400, 408)),
    Case("a bare LF before the request", b"\n" + GOOD),
    Case("a bare CR before the request", b"\r" + GOOD),
    Case("CR LF LF before the request", b"\r\n\n" + GOOD),
    Case("a space and CR LF before the request", b" \r\n" + GOOD),
    Case("CR CR LF", b"GET /v1/models HTTP/1.1\r\r\nHost: gate\r\n\r\n"),
    Case("CR within a name", get(b"Host: gate", b"A\rB: c")),
    Case("CR LF within a value, then a length", post(b"A: b\r\n Content-Length: 5", body=b"hello")),
    Case("a folded host", get(b"Host:\r\n gate")),
    Case("whitespace after the request line", b"GET /v1/models HTTP/1.1\r\n Host: gate\r\n\r\n"),
    Case("a line of spaces", b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n  \r\n\r\n"),
    Case("a line of a tab", b"GET /v1/models HTTP/1.1\r\nHost: gate\r\n\t\r\n\r\n"),
    *(
        Case(f"a name with {byte!r}", get(b"Host: gate", b"A" + byte + b"B: c"))
        for byte in (
            b"\x01",
            b"\x08",
            b"\t",
            b"\x0b",
            b"\x0c",
            b"\x1f",
            b" ",
            b'"',
            b"(",
            b")",
            b",",
            b"/",
            b";",
            b"<",
            b"=",
            b">",
            b"?",
            b"@",
            b"[",
            b"\\",
            b"]",
            b"{",
            b"}",
            b"\x7f",
            b"\x80",
            b"\xa0",
            b"\xff",
        )
    ),
    *(
        Case(f"a value with {byte!r}", get(b"Host: gate", b"A: b" + byte + b"c"))
        for byte in (b"\x00", b"\x02", b"\x08", b"\x0b", b"\x0c", b"\x0e", b"\x1b", b"\x1f", b"\x7f")
    ),
    Case("a name of nothing but a space", get(b"Host: gate", b" : b")),
    Case("a second request line", get(b"Host: gate", b"GET /v1/models HTTP/1.1")),
    Case("a quoted name", get(b"Host: gate", b'"A": b')),
    Case("NUL in the host", get(b"Host: ga\x00te")),
    Case("a host behind a NUL", get(b"\x00Host: gate")),
    Case("a colon first", get(b"Host: gate", b":path: /v1/models")),
]

HOSTS = [
    *(
        Case(f"host {text!r}", get(b"Host: " + text))
        for text in (
            b":",
            b":80",
            b"gate:",
            b"gate:+80",
            b"gate:-1",
            b"gate:8 0",
            b"gate:0x50",
            b"gate:80a",
            b"gate:80,other",
            b"gate:80 other",
            b"gate, gate",
            b"gate;a",
            b"gate/",
            b"gate/v1",
            b"/gate",
            b"//gate",
            b"@gate",
            b"a@gate:80",
            b"a:b@gate",
            b"http://gate",
            b"https://gate/",
            b"gate#",
            b"gate?",
            b"[",
            b"]",
            b"[]",
            b"[::1]x",
            b"[::1",
            b"::1]",
            b"[::1]:",
            b"[::1]:x",
            b"[fe80::1%25eth0]",
            b"[v1.a]",
            b"gate\\other",
            b"gate\tother",
            b"g%61te",
            b"%00",
            b"gate%0d%0a",
            b"\xff",
            b"ga\xc3\xb6te",
            b"gate\x0b",
            b"{gate}",
            b"$(gate)",
            b"`gate`",
            b"gate|x",
            b"gate^",
            b"gate=1",
            b"'gate'",
            b"gate:65536",
            b"gate:99999",
            b"gate:00080000",
            b"a" * 5000,
        )
    ),
    Case("two hosts in two spellings", get(b"Host: gate", b"hOsT: gate")),
    Case("two hosts, one of them empty", get(b"Host: gate", b"Host:")),
    Case("two hosts with others between", get(b"Host: gate", b"A: b", b"HOST: other")),
    Case("three hosts", get(b"Host: a", b"Host: b", b"Host: c")),
    Case("a host with a space before the colon", get(b"Host : gate")),
    Case("a host with a tab before the colon", get(b"Host\t: gate")),
    Case("a forwarded host alone", get(b"X-Forwarded-Host: gate")),
    Case(
        "no host on a POST",
        b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %b\r\n\r\n%b"
        % (PATH, SIZE, BODY),
    ),
]

OPENINGS = [
    Case(f"opening {text[:60]!r}", get(b"Host: gate", opening=text), (400, 405, 501, 505))
    for text in (
        b"GET /v1/models HTTP/1.10",
        b"GET /v1/models HTTP/01.1",
        b"GET /v1/models HTTP/1.01",
        b"GET /v1/models HTTP/11",
        b"GET /v1/models HTTP/1,1",
        b"GET /v1/models HTTP/1.1.1",
        b"GET /v1/models HTTP/-1.1",
        b"GET /v1/models HTTP/1.1\t",
        b"GET /v1/models HTTP/1.1 ",
        b"GET /v1/models  HTTP/1.1",
        b"GET\t/v1/models HTTP/1.1",
        b"GET /v1/models\tHTTP/1.1",
        b"\tGET /v1/models HTTP/1.1",
        b"GET /v1/models hTTP/1.1",
        b"GET /v1/models HTTP/3",
        b"GET /v1/models HTTP/3.0",
        b"GET /v1/models HTTP/0.9",
        b"GET /v1/models HTTP/1.3",
        b"GET /v1/models HTTP/2",
        b"GET /v1/models HTTP /1.1",
        b"GET /v1/models HTTPS/1.1",
        b"GET /v1/models SIP/2.0",
        b"GET /v1/models ICE/1.0",
        b"GET /v1/models \xef\xbb\xbfHTTP/1.1",
        b"\xef\xbb\xbfGET /v1/models HTTP/1.1",
        b"GET /v1/models",
        b"GET",
        b"",
        b" ",
        b"GET ",
        b"GET  HTTP/1.1",
        b"/v1/models HTTP/1.1",
        b"GE T /v1/models HTTP/1.1",
        b"G\x00ET /v1/models HTTP/1.1",
        b"G\xc3\x8aT /v1/models HTTP/1.1",
        b"Get /v1/models HTTP/1.1",
        b"GET: /v1/models HTTP/1.1",
        b"GET/v1/models HTTP/1.1",
        b'"GET" /v1/models HTTP/1.1',
        b"GETT /v1/models HTTP/1.1",
        b"X" * 300 + b" /v1/models HTTP/1.1",
        b"TRACK /v1/models HTTP/1.1",
        b"PRI /v1/models HTTP/1.1",
        b"GET /v1/models\x00 HTTP/1.1",
        b"GET /v1/\x01models HTTP/1.1",
        b"GET /v1/mod\xc3\xa9ls HTTP/1.1",
        b"GET /v1/models\xff HTTP/1.1",
        b"GET /v1/models#a HTTP/1.1",
        b"GET /v1/models?a=\x7f HTTP/1.1",
        b"GET /v1/models?a b HTTP/1.1",
        b"GET v1/models HTTP/1.1",
        b"GET http://gate/v1/models HTTP/1.1",
        b"GET http://other/v1/models HTTP/1.1",
        b"GET HTTP://gate/v1/models HTTP/1.1",
        b"GET https://gate/v1/models HTTP/1.1",
        b"GET http://a@gate/v1/models HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1",
        b"GET gate:80 HTTP/1.1",
        b"GET gate HTTP/1.1",
        b"CONNECT gate:443 HTTP/1.1",
        b"CONNECT /v1/models HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET ** HTTP/1.1",
        b"GET \\v1\\models HTTP/1.1",
        b"GET ?/v1/models HTTP/1.1",
        b"GET ./v1/models HTTP/1.1",
        b"GET //gate/v1/models\\ HTTP/1.1 x",
    )
]

PATHS = [
    Case(f"path {text!r}", get(b"Host: gate", opening=b"GET " + text + b" HTTP/1.1"), (400, 404, 405))
    for text in (
        b"/v1//models",
        b"//v1/models",
        b"/v1/models/",
        b"/v1/./models",
        b"/v1/../v1/models",
        b"/v1/models/..",
        b"/v1/models/../chat",
        b"/v1/%6dodels",
        b"/v1%2fmodels",
        b"/v1/models%00",
        b"/v1/models%0d%0aX:%20y",
        b"/%2e%2e/v1/models",
        b"/v1/models;a=b",
        b"/V1/models",
        b"/v1/models\\",
        b"/v1/models/%2e%2e/%2e%2e/metrics",
        b"/v1/models/..%2f..%2fmetrics",
        b"/v1/models/a//b",
        b"/metrics",
        b"/invocations",
        b"/api/state",
        b"/v1/load_lora_adapter",
        b"/",
        b"/v1",
        b"/v1/models%23",
        b"/v1/models/.",
        b"/v1/models/a/../b",
        b"/v1/models/%2e",
        b"/v1/models/%2E%2E",
        b"/v1/models/%252e%252e",
        b"/v1/models%3f",
        b"/v1/models/a%2f..%2fb",
        b"/v1/models/a%5c..%5cb",
        b"/v1/chat/completions/../../../metrics",
        b"/tokenize",
        b"/pause",
        b"/reset_prefix_cache",
        b"/sleep",
        b"/collective_rpc",
        b"/server_info",
        b"/openapi.json",
        b"/docs",
    )
]

PROTOCOLS = [
    Case("the h2 preface alone", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
    Case(
        "an h2 preface behind an upgrade",
        get(b"Host: gate", b"Upgrade: h2c", b"Connection: Upgrade") + b"PRI * HTTP/2.0\r\n\r\n",
        (400, 505),
        served=1,
    ),
    Case("an upgrade to TLS", get(b"Host: gate", b"Upgrade: TLS/1.0", b"Connection: Upgrade"), (426,)),
    Case(
        "an upgrade of a POST",
        post(b"Upgrade: websocket", b"Connection: Upgrade", b"Content-Length: " + SIZE, body=BODY),
        (426,),
    ),
    Case("HTTP/0.9", b"GET /v1/models\r\n", (400, 408)),
    Case("HTTP/0.9 with LF", b"GET /v1/models\n", (400, 408)),
    Case("a TLS 1.3 hello", bytes.fromhex("1603010200010001fc0303") + bytes(range(200)), (400, 408)),
    Case("a TLS alert", bytes.fromhex("15030100020228"), (400, 408)),
    Case(
        "SSLv2", bytes.fromhex("802e0100020015000000100100800700c00300800600400200800400800000"), (400, 408)
    ),
    Case("an SSH banner", b"SSH-2.0-OpenSSH_9.9\r\n\r\n"),
    Case("SMTP", b"EHLO gate\r\n\r\n"),
    Case("a Redis command", b"*1\r\n$4\r\nPING\r\n\r\n"),
    Case("a PROXY line", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + GOOD),
    Case("a PROXY v2 header", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + GOOD, (400, 408)),
    Case("a line of JSON", b'{"method":"chat"}\n', (400, 408)),
    Case("zeros", bytes(1000), (400, 408)),
    Case("ones", b"\xff" * 1000, (400, 408)),
    Case("empty lines without end", b"\r\n" * 50_000, (400, 408, 431)),
    Case("spaces without end", b" " * 100_000, (400, 408, 431)),
    Case("an unfinished method", b"GE", (400, 408)),
    Case("an answer", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Case(
        "an unknown expectation",
        post(b"Expect: 100-continue, x", b"Content-Length: " + SIZE, body=BODY),
        (417, 400),
    ),
    Case("an expectation of nothing", post(b"Expect:", b"Content-Length: " + SIZE, body=BODY), (417, 400)),
    Case(
        "two expectations",
        post(b"Expect: 100-continue", b"expect: 100-continue", b"Content-Length: " + SIZE, body=BODY),
        (417, 400),
    ),
]

SIZES = [
    Case("a name of 17 KB", get(b"Host: gate", b"A" * 17_000 + b": b"), (431,)),
    Case("a name without an end", b"GET /v1/models HTTP/1.1\r\n" + b"A" * 80_000, (431,)),
    Case("a method without an end", b"A" * 80_000, (400, 414, 431)),
    Case("a method of 10 KB", b"A" * 10_000 + b" / HTTP/1.1\r\nHost: gate\r\n\r\n", (400, 414, 431, 501)),
    Case(
        "a query of 9 KB",
        get(b"Host: gate", opening=b"GET /v1/models?" + b"a" * 9_000 + b" HTTP/1.1"),
        (414,),
    ),
    Case(
        "a version of 10 KB",
        get(b"Host: gate", opening=b"GET / HTTP/1." + b"1" * 10_000),
        (400, 414, 431, 505),
    ),
    Case("a target without an end", b"GET /" + b"a" * 80_000, (414, 431)),
    Case("2000 empty fields", get(b"Host: gate", *[b"A:"] * 2000), (431,)),
    Case("70 KB of short fields", get(b"Host: gate", *[b"A: " + b"b" * 697] * 99), (431,)),
    Case("a body just over the limit", post(b"Content-Length: 33554433"), (413,)),
]

BEHIND = [
    Case(f"behind a good request: {case.name}", GOOD + case.payload, case.statuses, 1)
    for case in (
        FRAMING[0],
        FRAMING[30],
        CHUNKS[0],
        CHUNKS[27],
        LINES[0],
        HOSTS[4],
        OPENINGS[0],
        OPENINGS[20],
        PROTOCOLS[0],
        SIZES[0],
    )
]

REFUSED = [
    *map(real, malformed.CASES),
    *FRAMING,
    *CHUNKS,
    *LINES,
    *HOSTS,
    *OPENINGS,
    *PROTOCOLS,
    *SIZES,
    *BEHIND,
]
"""All of these are answered 4xx or 5xx and closed; nothing of them beyond `served` good requests is dispatched."""


class Odd(NamedTuple):
    """An unusual request that is good: served exactly `times`, then another request on the same connection."""

    name: str
    payload: bytes
    times: int = 1


ODD = [
    Odd("length with leading zeros", post(b"Content-Length: 000" + SIZE, body=BODY)),
    Odd("length with spaces around", post(b"Content-Length:   %b  " % SIZE, body=BODY)),
    Odd("length with tabs around", post(b"Content-Length:\t%b\t" % SIZE, body=BODY)),
    Odd("length without a space", post(b"Content-Length:" + SIZE, body=BODY)),
    Odd(
        "coding in capitals with tabs",
        post(b"TRANSFER-ENCODING:\t CHUNKED ", body=HEX + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ),
    Odd(
        "chunk size in capitals with zeros",
        post(b"Transfer-Encoding: chunked", body=b"000" + HEX.upper() + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ),
    Odd(
        "chunk extension",
        post(b"Transfer-Encoding: chunked", body=HEX + b';a=b;c="d"\r\n' + BODY + b"\r\n0;e\r\n\r\n"),
    ),
    Odd(
        "last chunk of many zeros",
        post(b"Transfer-Encoding: chunked", body=HEX + b"\r\n" + BODY + b"\r\n0000\r\n\r\n"),
    ),
    Odd(
        "trailers that would steer",
        post(
            b"Transfer-Encoding: chunked",
            body=HEX + b"\r\n" + BODY + b"\r\n0\r\nHost: other\r\nAuthorization: Bearer x\r\n\r\n",
        ),
    ),
    Odd("empty lines before it", b"\r\n\r\n" + GOOD),
    Odd("field names in every case", get(b"hOST: gate", b"x-A_b.c~!#$%&'*+-^`|: d")),
    Odd("a value beyond ASCII", get(b"Host: gate", b"X-Name: \xc3\xa9\xff")),
    Odd("an empty value", get(b"Host: gate", b"X-Name:")),
    Odd("a host with a port", get(b"Host: gate:8080")),
    Odd("an IPv6 host", get(b"Host: [::1]:8080")),
    Odd("a host in capitals", get(b"Host: GATE.example")),
    Odd("two requests in one segment", GOOD + GOOD, 2),
    Odd("a length behind another request", GOOD + post(b"Content-Length: " + SIZE, body=BODY), 2),
]
"""Served, each exactly so often; `chunked` bodies may end their connection (what follows in the same read is lost)."""
