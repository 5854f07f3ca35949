"""However a stream is cut into reads, the same is passed on and the same is concluded: the short way hides nothing.

Errors are left out: whether one becomes a status depends on what was passed on before it came. So are empty pieces, which count
as tokens on the short way.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from gateway.harness import DONE, ROLE, event, usage_event
from millgate.core.words import FailureKind, Sent
from millgate.dialects import DIALECTS
from millgate.dialects.contract import Dialect, Usage
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import SAID_NOTHING, Said
from millgate.servers.http.contract import Telling
from millgate.servers.http.streams import StreamAnswer
from millgate.servers.requests.fields import Pairs

HEAD = AnswerHead(200, [(b"content-type", b"text/event-stream")], None)


def _two(finish: bytes) -> bytes:
    choice = b'{"index":%d,"delta":{"content":"a"},"finish_reason":%b}'
    return b'data: {"id":"c","choices":[' + choice % (0, b"null") + b"," + choice % (1, finish) + b"]}\n\n"


def _named(kind: bytes, more: bytes = b"") -> bytes:
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (kind, kind, more)


OPENAI = (
    event("a"),
    event("b"),
    event(finish="stop"),
    event(finish="abort"),
    usage_event(3, 2),
    DONE,
    b": a comment\n\n",
    event("c").replace(b"\n\n", b"\r\n\r\n"),
    event("d").replace(b"\n\n", b"\r\r"),
    event("e").replace(b"\n\n", b"\n\r\n"),
    event('"finish_reason":null'),
)
ANTHROPIC = (
    _named(b"message_start", b',"message":{"usage":{"input_tokens":3,"output_tokens":1}}'),
    _named(b"content_block_delta", b',"delta":{"text":"a"}'),
    _named(b"content_block_delta", b',"delta":{"partial_json":"event: content_block_delta"}'),
    _named(b"message_delta", b',"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}'),
    _named(b"message_stop"),
    _named(b"ping"),
)
RESPONSES = (
    _named(b"response.created", b',"response":{"id":"resp_1"}'),
    _named(b"response.output_text.delta", b',"delta":"a"'),
    _named(b"response.output_text.delta", b',"delta":".delta"'),
    _named(
        b"response.completed", b',"response":{"id":"resp_1","usage":{"input_tokens":3,"output_tokens":2}}'
    ),
    DONE,
)
SEVERAL = (
    *OPENAI,
    *map(_two, (b"null", b'"stop"', b'"abort"')),
    _two(b"null").replace(b"null", b'"stop"', 1),
)
POOLS = {
    "openai": (ROLE, OPENAI),
    "openai, several answers": (ROLE, SEVERAL),
    "anthropic": (ANTHROPIC[0], ANTHROPIC),
    "openai-responses": (RESPONSES[0], RESPONSES),
}


class Recorded:
    """The owner of an answer and its exchange in one: notes what is passed on and how it ended."""

    request_id = b"r"
    started = gone = own_key = False

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.exchange = self
        self.extra: Pairs = []
        self.passed_on = b""
        self.end: list[object] = []

    def respond(self, status: int, _headers: object, body: bytes, *, close: bool = False) -> None:
        self.end.append((status, body, close))

    def start(self, _status: int, _headers: object, *, length: int | None = None) -> None:
        assert length is None
        self.started = True

    def write(self, data: bytes) -> None:
        self.passed_on += data

    def finish(self) -> None:
        self.end.append("finished")

    def abort(self) -> None:
        self.end.append("cut")

    def finished(self, usage: Usage) -> None:
        if not any(isinstance(each, Usage) for each in self.end):  # the first counts
            self.end.append(usage)

    def failed(self, kind: FailureKind, sent: Sent, said: Said = SAID_NOTHING) -> None:
        self.end.append((kind, sent, said))

    def unsent(self, kind: FailureKind, said: Said = SAID_NOTHING, tell: Telling = None) -> None:
        assert tell is not None
        tell()
        self.failed(kind, Sent.NONE, said)

    def answered(self, head: AnswerHead) -> None: ...

    def begun(self) -> None: ...

    def first_token(self) -> None: ...

    def stored(self, answer_id: str) -> None: ...

    def break_off(self) -> None: ...

    def widen(self) -> None: ...


def told(name: str, reads: Sequence[bytes], *, strip_usage: bool) -> tuple[bytes, list[object]]:
    """Return what is passed on of an answer that comes in these reads, and how it ends."""
    dialect, _comma, several = name.partition(",")
    owner = Recorded(DIALECTS[dialect])
    stream = StreamAnswer(owner, strip_usage=strip_usage, alone=not several)  # type: ignore[arg-type]
    stream.on_head(HEAD)
    for read in reads:
        stream.on_data(read)
        if "finished" in owner.end or "cut" in owner.end:
            break
    else:
        stream.on_end(delimited=True)
    return owner.passed_on, sorted(owner.end, key=repr)


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=400)
@given(data=st.data(), strip_usage=st.booleans())
def test_a_stream_is_the_same_however_it_is_cut_into_reads(
    name: str, data: st.DataObject, *, strip_usage: bool
) -> None:
    """Two choices of one event say twice that they go on; counted together they hid the end that came behind them."""
    opening, pool = POOLS[name]
    events = [opening, *data.draw(st.lists(st.sampled_from(pool), max_size=12))]
    cuts = data.draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)))
    reads = [b""]
    for piece, cut in zip(events, cuts, strict=True):
        reads[-1] += piece
        if cut:
            reads.append(b"")
    expected = told(name, events, strip_usage=strip_usage)
    assert told(name, [read for read in reads if read], strip_usage=strip_usage) == expected
    if not strip_usage:  # of an event that is taken out a line end may have been taken for the one before it
        by_bytes = [bytes((byte,)) for byte in b"".join(events)]
        assert told(name, by_bytes, strip_usage=False) == expected
