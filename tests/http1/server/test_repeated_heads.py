"""A head that repeats on its connection is read the short way, and nobody can tell."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from http1.server.wire import Recorder
from millgate.http1.server import ByteBudget, RefusedRequest, RequestHead, ServerLimits
from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.intake import EarlyRefusalError, Intake

LIMITS = ServerLimits(body_bytes=1000, fields=12)
HEAD = (
    b"POST /v1/x?a=b HTTP/1.1\r\nHost: test\r\nContent-Length: %b\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer one\r\nX-Twice: a\r\nX-Twice: b\r\n\r\n"
)
BODY = b'{"model":"m"}'
FIRST = HEAD % b"%d" % len(BODY) + BODY


class Client:
    """One connection's intake; `forgetful` reads every head the long way."""

    def __init__(self, *, forgetful: bool) -> None:
        self.application = Recorder()
        self.budget = ByteBudget()
        self.intake = Intake(self.application, LIMITS, lambda head: self.budget.share("", head.peer))
        self.forgetful = forgetful
        self.repeats = 0
        self.refused = False

    def send(self, data: bytes) -> list[Any]:
        """Feed a read as a connection does; return all that can be seen of it."""
        seen: list[Any] = []
        begin = 0
        try:
            while begin < len(data):
                if self.forgetful:
                    self.intake._last.forget()
                begin = self.intake.feed(data, begin)
                seen += self.look(begin)
        except UnacceptableError as error:
            self.refused = True
            seen.append((error.status, error.code, error.message))
        except EarlyRefusalError as error:
            self.refused = True
            seen.append(error.refusal)
        return [*seen, list(self.application.heads)]

    def look(self, begin: int) -> list[Any]:
        """Take what has been read, and go on to the next request if this one is whole."""
        intake = self.intake
        self.repeats += intake._repeated
        seen: list[Any] = [
            begin,
            intake.whole,
            intake.phase,
            intake.wire_bytes,
            intake.expects,
            intake.may_chunk,
        ]
        if intake.whole:
            seen += [intake.head, intake.body, intake.keep_alive, intake.refusal, intake.reserved_bytes]
            intake.share.release(intake.reserved_bytes)
            intake.next()
        return seen


def assert_nobody_can_tell(*reads: bytes) -> int:
    """Compare a connection that remembers with one that does not; return how many steps were short."""
    remembering, forgetful = Client(forgetful=False), Client(forgetful=True)
    for data in reads:
        assert remembering.send(data) == forgetful.send(data)
        if remembering.refused:  # after a refusal nothing more may be fed
            break
    assert forgetful.repeats == 0
    return remembering.repeats


def request(digits: bytes, body: bytes) -> bytes:
    return HEAD % digits + body


def test_another_length_is_read_the_short_way() -> None:
    assert assert_nobody_can_tell(FIRST, FIRST) == 1
    assert assert_nobody_can_tell(FIRST, request(b"3", b"abc"), request(b"300", b"x" * 300)) == 2
    assert assert_nobody_can_tell(FIRST + FIRST + request(b"007", b"abcdefg")) == 2


def test_a_body_in_pieces_may_follow_a_repeated_head() -> None:
    whole = request(b"26", BODY * 2)
    cut = len(whole) - 10
    assert assert_nobody_can_tell(FIRST, whole[:cut], whole[cut:], FIRST) == 3


@pytest.mark.parametrize(
    "digits",
    [
        b"+5",
        b" 5",
        b"5 ",
        b"0x5",
        b"1_0",
        b"5,5",
        b"5, 5",
        b"",
        b"-5",
        b"5.0",
        b"\xb2",
        b"0",
        b"00",
        b"99999999999",
        b"5\r\nContent-Length: 5",
        b"5\r\nContent-Length: 6",
        b"5\r\nTransfer-Encoding: chunked",
        b"5\n",
        b"5\r",
        b"5\0",
        b"1001",
        b"9999999999",
        b"18446744073709551621",
        b"5\r\nExpect: 100-continue",
        b"5\r\nConnection: close",
    ],
)
def test_no_other_spelling_of_a_length_gets_by(digits: bytes) -> None:
    assert_nobody_can_tell(FIRST, request(digits, b"abcde"))


@given(position=st.integers(0, len(FIRST) - 1), byte=st.integers(0, 255))
@example(position=FIRST.index(b"Host"), byte=ord("h"))
@example(position=FIRST.index(b"13"), byte=ord("+"))
def test_one_byte_of_difference_anywhere_is_seen(position: int, byte: int) -> None:
    changed = FIRST[:position] + bytes([byte]) + FIRST[position + 1 :]
    assert_nobody_can_tell(FIRST, changed)


@given(
    position=st.integers(0, len(FIRST)),
    inserted=st.sampled_from([b"", b"\r\n", b"\n", b" ", b"0", b"x", b":"]),
)
def test_bytes_more_or_less_anywhere_are_seen(position: int, inserted: bytes) -> None:
    assert_nobody_can_tell(FIRST, FIRST[:position] + inserted + FIRST[position + (not inserted) :])


@given(st.lists(st.integers(1, len(FIRST) * 3 - 1), max_size=4, unique=True).map(sorted))
def test_reads_may_be_cut_anywhere(cuts: list[int]) -> None:
    data = FIRST * 3
    edges = [0, *cuts, len(data)]
    assert_nobody_can_tell(*(data[start:stop] for start, stop in pairwise(edges)))


def test_what_may_not_be_repeated_is_not_remembered() -> None:
    for first in (
        b"POST / HTTP/1.0\r\nHost: t\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nConnection: close\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\n\r\n",
    ):
        client = Client(forgetful=False)
        client.send(first)
        assert not client.intake._last


def test_the_application_is_asked_about_every_head_and_finds_its_notes() -> None:
    client = Client(forgetful=False)
    client.send(FIRST)
    client.application.heads[0].notes.kept = "concluded"  # type: ignore[union-attr]
    client.send(request(b"2", b"{}"))
    first, second = client.application.heads
    assert (second.content_length, second.header(b"content-length")) == (2, b"2")
    assert second.notes is first.notes
    assert (first.content_length, first.header(b"content-length")) == (13, b"13")
    refusal = RefusedRequest(503, [], b"no")

    def refuse(_head: RequestHead) -> RefusedRequest:
        return refusal

    client.application.judging = refuse
    assert client.send(FIRST)[0] is refusal


def test_a_closed_connection_remembers_nothing() -> None:
    client = Client(forgetful=False)
    client.send(FIRST)
    client.intake.release()
    assert not client.intake._last
