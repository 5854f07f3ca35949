"""From an engine's bytes to its answer: llhttp checks every byte, and no callback of ours runs while it does.

Its callbacks are methods of lists: `on_body` appends a piece, the end of a message appends an empty one, the end of a
head empties a list of one token. So a piece of a stream costs no Python call in the parser. Heads are cut out at CRLF
CRLF and fed alone. Llhttp must find the head's end at the same place, and no line may end otherwise than in CRLF, hence
the split into lines reads what llhttp has read.

A head that repeats the connection's last one (see `repeats`) is not parsed again, and neither is its body, whose
length says where it ends. Llhttp then sees that answer not at all. Nor does it see a read that is exactly one chunk.
"""

from functools import partial
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from millgate.http1.client.answer import ProtocolViolationError, UnfinishedHead, read_answer
from millgate.http1.client.contract import AnswerHead
from millgate.http1.client.repeats import Cut, Notes, cut_at_length
from millgate.http1.wire.chunk_lines import of_chunk
from millgate.http1.wire.fields import HEAD_END, HeaderReader, Pair

_BARREN_BYTES: Final = 64 * 1024
"""How many bytes of a started answer may carry no body (trailers, chunk extensions) before it is refused."""
_TORN_ENDS: Final = (b"\n", b"\r\n")
"""What a read may hold of the end of a chunked body, and nothing else: the rest came with the read before."""
_END: Final = b""
"""Stands in `parts` for the end of a message: llhttp hands over no empty piece."""

_READER: Final = HeaderReader()


class AnswerReader:
    """Reads the answers of one connection, one after the other; `clear` goes on to the next.

    `parts` are the body's pieces since the last look; `head` the final head once it is there; `whole` says that the body
    is over, `surplus` that something came after it, `keep_alive` that the connection may be used again.
    """

    def __init__(self, head_limit_bytes: int, informational_limit: int) -> None:
        self._head_limit_bytes = head_limit_bytes
        self._informational_limit = informational_limit
        self.parts: list[bytes] = []
        self._headless: list[None] = [None]
        self.on_body = self.parts.append
        self.on_headers_complete = self._headless.clear
        self.on_message_complete = partial(self.parts.append, _END)
        self._parser = HttpResponseParser(self)
        self._cut: Cut | None = None
        self._known: AnswerHead | None = None
        self._digits = b""
        self._pieces = UnfinishedHead()
        self.clear()

    def clear(self) -> None:
        """Expect a new answer."""
        self._pieces.clear()
        self._informational = 0
        self._barren_bytes = 0
        self._size_left = 0
        self._chunked = False
        self._at_chunk = False
        self._repeated = False
        self.head: AnswerHead | None = None
        self.touched = False
        self.whole = False
        self.surplus = False
        self.keep_alive = False
        self._expect_head()

    def _expect_head(self) -> None:
        self._headless[:] = (None,)
        self.parts.clear()

    def feed(self, data: bytes, *, head_only: bool) -> None:
        """Read on; raise ProtocolViolationError."""
        try:
            if self.head is None:
                if head_only or self.touched or not self._feed_repeated(data):
                    self._feed_head(data, head_only=head_only)
            elif self._repeated:
                self._take_sized(data)
            else:
                self._feed_body(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self.head is None or not self._ends():
                raise ProtocolViolationError(
                    f"malformed answer: {str(error) or type(error).__name__}"
                ) from None
            self.surplus = True

    @property
    def until_close(self) -> bool:
        """Whether only the close of the connection ends the body."""
        return self.head is not None and self.head.length is None and not self._chunked

    def repeated(self, data: bytes) -> tuple[AnswerHead, bytes] | None:
        """Return head and body of an answer that is whole in these bytes and has the last one's head but for its length.

        The reader stays as it is, and None means that the bytes are still to be fed.
        """
        if self.touched or self._cut is None:
            return None
        head, stop = self._match(self._cut, data)
        if head is None or head.length != len(data) - stop:
            return None
        return head, data[stop:]

    def _match(self, cut: Cut, data: bytes) -> tuple[AnswerHead | None, int]:
        """Find the last head in these bytes, with a length of its own, and where it ends."""
        found = cut.match(data, 0)
        known = self._known
        if found is None or known is None:
            return None, 0
        digits, stop = found
        if digits == self._digits:
            return known, stop
        length = int(digits)
        if not length:
            return None, 0
        self._digits = digits
        self._known = known = AnswerHead(known.status, known.headers, length, known.notes)
        return known, stop

    def _feed_repeated(self, data: bytes) -> bool:
        """Take the last head again if these bytes are it with another length; return whether they are."""
        head, stop = self._match(self._cut, data) if self._cut is not None else (None, 0)
        if head is None:
            return False
        self.touched = self._repeated = self.keep_alive = True
        self.head = head
        self._size_left = head.length or 0
        self._take_sized(data[stop:])
        return True

    def _take_sized(self, data: bytes) -> None:
        """Take body bytes by their number."""
        if len(data) > self._size_left:
            self.surplus = True
            data = data[: self._size_left]
        if data:
            self.parts.append(data)
            self._size_left -= len(data)
        self.whole = not self._size_left

    def _feed_body(self, data: bytes) -> None:
        """Take what has come of the body; one event of a stream goes the short way."""
        if self._at_chunk and self._take_chunk(data):
            return
        self._at_chunk = False
        self._parser.feed_data(data)
        if self.parts and self._chunked and _END not in self.parts:
            self._barren_bytes = 0
        else:
            self._look(data)

    def _take_chunk(self, data: bytes) -> bool:
        """Take bytes that are one whole chunk, its length written the usual way; return whether they are.

        llhttp does not see them and goes on expecting a chunk: after the first bytes that it does see, it is unknown
        here whether it stands between two chunks.
        """
        part = of_chunk(data)
        if part is None:
            return False
        self.parts.append(part)
        self._barren_bytes = 0
        return True

    def _remember(self, block: bytes, opening_bytes: int, lines: list[bytes], fields: list[Pair]) -> None:
        """Keep the head of a whole answer of known length that leaves its connection open."""
        head, self._cut = self.head, None
        if head is not None and head.status == 200 and head.length and self.keep_alive:
            self._cut = cut = cut_at_length(block, opening_bytes, lines, fields)
            self._known = head._replace(notes=Notes())
            self._digits = fields[cut.position][1] if cut is not None else b""

    def _feed_head(self, data: bytes, *, head_only: bool) -> None:
        self.touched = True
        raw = self._pieces.joined(data, self._head_limit_bytes) if self._pieces else data
        if not raw:
            return
        while self.head is None:
            end = raw.find(HEAD_END)
            if end > self._head_limit_bytes or (end < 0 and len(raw) > self._head_limit_bytes):
                raise ProtocolViolationError(f"answer head longer than {self._head_limit_bytes} bytes")
            if end < 0:
                self._pieces.keep(raw)
                return
            self._parser.feed_data(raw[: end + 4])
            self._read_head(raw[: end + 4], head_only=head_only)
            raw = raw[end + 4 :]
        self._at_chunk = self._chunked
        if head_only:
            self.parts.clear()
            self.whole = self.surplus = True  # llhttp waits for a body: never use the connection again
        elif raw:
            self._feed_body(raw)
        elif self.parts:
            self._look(raw)

    def _read_head(self, block: bytes, *, head_only: bool) -> None:
        lines = block[:-4].split(b"\r\n")
        if self._headless:
            raise ProtocolViolationError("answer head with stray line ends")
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_informational(status)
            return
        opening_bytes, version = len(lines[0]), lines[0][:8]
        if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
            raise ProtocolViolationError("answer in another version of HTTP")
        del lines[0]
        fields = _READER.read(lines)
        self.head, self._chunked, self.keep_alive = read_answer(status, version, fields)
        self._size_left = self.head.length or 0
        self._headless.append(None)
        if not head_only:
            self._remember(block, opening_bytes, lines, fields)

    def _skip_informational(self, status: int) -> None:
        self._informational += 1
        if status < 100:
            raise ProtocolViolationError("answer with a status below 100")
        if status == 101 or self._informational > self._informational_limit:
            raise ProtocolViolationError("a protocol switch, or too many informational answers")
        self._expect_head()

    def _ends(self) -> bool:
        """Cut the pieces at the answer's end if that has come: what llhttp read behind it is another message's."""
        parts = self.parts
        self.whole = _END in parts
        if self.whole:
            end = parts.index(_END)
            self.surplus = end + 1 < len(parts)
            del parts[end:]
        return self.whole

    def _look(self, data: bytes) -> None:
        """See what a read has brought: the end, something beyond it, or nothing but framing."""
        self._size_left -= len(data)
        if self._ends():
            ended = data.endswith(HEAD_END) or data in _TORN_ENDS if self._chunked else self._size_left == 0
            self.surplus = self.surplus or not ended or not self._headless
        elif self.parts:
            self._barren_bytes = 0
        else:
            self._barren_bytes += len(data)
            if self._barren_bytes > _BARREN_BYTES:
                raise ProtocolViolationError("answer goes on without a body byte")
