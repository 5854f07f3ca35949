"""What a soak may be about: how many engines and users, what else the engines do wrong, and whether they die together.

A scene adds to what every soak has (`soak/engines`, `soak/users`), and all of them have the same accounts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lab.upstream import Script, ScriptedConnection, answers

_STREAM_HEAD = answers.head(200, answers.EVENT_STREAM)
_COMPLETION = answers.completion("hello")
_DEEP = 3_000
"""Lists in lists: beyond what a reader that calls itself may reach."""


class Outage(NamedTuple):
    """All engines live and are dead in turn, for so many seconds each."""

    alive_s: float
    dead_s: float


class Scene(NamedTuple):
    """One soak: its engines and users, the files that the gate may open, and what comes on top.

    `faults` are done by the engines to one request in a hundred each, `pages` are what they give in place of their
    gauges, `idle_clients` connect and say nothing, `strangers` are clients of the line door without its token, and
    `admin_strangers` of the admin door.
    """

    name: str
    engines: int = 3
    users: int = 70
    open_files: int | None = None
    idle_clients: int = 0
    strangers: int = 0
    admin_strangers: int = 0
    outage: Outage | None = None
    faults: Mapping[str, Script] = {}
    pages: Sequence[bytes] = ()


def _says(*pieces: bytes, hang_up: bool = False) -> Script:
    async def script(line: ScriptedConnection) -> None:
        for piece in pieces:
            await line.send(piece)
        if hang_up:
            line.close()

    return script


def _either(whole: bytes, *events: bytes) -> Script:
    """Return a script that gives this body, or these events where a stream was asked for."""

    async def script(line: ScriptedConnection) -> None:
        if b'"stream": true' in line.request.body:
            await line.send(_STREAM_HEAD + answers.chunks(*events, answers.DONE) + answers.LAST_CHUNK)
        else:
            await line.send(answers.whole(whole))

    return script


def _odd_usage(usage: bytes) -> Script:
    """Return a script whose usage is these bytes, JSON or not."""
    whole = _COMPLETION.replace(b'"usage": {', b'"usage": %b, "was": {' % usage, 1)
    event = b'data: {"id":"c","choices":[],"usage":%b}\n\n' % usage
    return _either(whole, answers.event("a"), answers.event(finish="stop"), event)


def _status_line(line: bytes) -> Script:
    body = answers.error(500)
    return _says(
        b"%b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (line, len(body), body)
    )


HOSTILE: Mapping[str, Script] = {
    **{f"status {status}": _status_line(b"HTTP/1.1 %d Odd" % status) for status in (101, 199, 304, 418, 599)},
    "status 000": _status_line(b"HTTP/1.1 000 Odd"),
    "status 600": _status_line(b"HTTP/1.1 600 Odd"),
    "status 999": _status_line(b"HTTP/1.1 999 Odd"),
    "status of four digits": _status_line(b"HTTP/1.1 2000 OK"),
    "another version": _status_line(b"HTTP/2.0 200 OK"),
    "no reason": _status_line(b"HTTP/1.1 500"),
    "head without end, in lines": _says(b"HTTP/1.1 200 OK\r\n", *[b"x-filler: aaaaaaaa\r\n" * 100] * 60),
    "cut within the status": _says(b"HTTP/1.1 2", hang_up=True),
    "cut within the head": _says(b"HTTP/1.1 200 OK\r\ncontent-le", hang_up=True),
    "cut within the body": _says(answers.whole(_COMPLETION)[:-30], hang_up=True),
    "cut within a chunk's length": _says(_STREAM_HEAD + b"1", hang_up=True),
    "nested usage": _odd_usage(b'{"x":' + b"[" * _DEEP + b"]" * _DEEP + b"}"),
    "nested details": _odd_usage(b'{"prompt_tokens_details":' + b"[" * _DEEP + b"]" * _DEEP + b"}"),
    "usage is a list": _odd_usage(b"[1,2,3]"),
    "usage without end": _odd_usage(b'{"prompt_tokens":'),
    "usage again and again": _odd_usage(b'1,"usage":' * 5_000 + b"1"),
    "usage beyond all numbers": _odd_usage(b'{"prompt_tokens":1e999,"completion_tokens":%b}' % (b"9" * 400)),
    "no UTF-8": _either(
        _COMPLETION.replace(b"hello", b"\xff\xfe"), b'data: {"id":"\xff"}\n\n', answers.event("a")
    ),
    "a zero byte": _either(
        _COMPLETION.replace(b"hello", b"\0"), b"data: \0\n\n", answers.event(finish="stop")
    ),
}
"""What an engine that is broken on purpose says; each is sent to one request in a hundred."""

_RUNNING = b"vllm:num_requests_running"
_REST = b"\nvllm:num_requests_waiting 0\n"
HOSTILE_PAGES: Sequence[bytes] = (
    _RUNNING + b"{" + b"a" * 20_000 + b"} 1" + _REST,
    _RUNNING + b"{" + b'a="' * 20_000 + b"} 1" + _REST,
    (_RUNNING + b"{" + b'a="",' * 1_500 + b"} 1\n") * 100,
    (_RUNNING + b'{engine="1"} 1\n') * 20_000,
    (_RUNNING + b"_by_reason 1\n") * 20_000,
    _RUNNING + b" -1" + _REST,
    _RUNNING + b" 1e300" + _REST,
    _RUNNING + b" " + b"9" * 100_000 + _REST,
    _RUNNING + b" NaN\nvllm:kv_cache_usage_perc -7\n",
    b"\xff" * 300_000,
    b"\n" * 300_000,
    b"x" * 5_000_000,
)
"""Pages that take long to read, or would say something absurd."""

SCENES: Mapping[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene("everything"),
        Scene("one engine", engines=1, users=25, outage=Outage(4.0, 2.5)),
        Scene("all engines dead", outage=Outage(5.0, 3.0)),
        Scene("hostile engines", faults=HOSTILE),
        Scene("hostile pages", pages=HOSTILE_PAGES),
        Scene("300 descriptors", open_files=300, idle_clients=300),
        Scene("strangers at the line door", users=25, strangers=40),
        Scene("strangers at the admin door", users=25, admin_strangers=200),
    )
}
