"""Whoever has not shown the token: one reply without numbers, little memory, few guesses."""

import asyncio
import time
from itertools import repeat

import pytest

from gateway.harness import answer_whole, run, until
from millgate.dialects.line import LineReply, Status, read_request
from millgate.http1.server import ByteBudget
from millgate.runtime.guesses import MOST_FAILURES, WINDOW_S
from millgate.servers.line import LineLimits
from millgate.servers.line.contract import Readings
from millgate.servers.line.session import Session
from servers.line.stand import Stand, brief, manifest, ping
from servers.line.talk import LineStand, Peer, line_standing

PAYLOAD = b"0123456789"
BAD_LINES = {
    b"x\n": "not_json",
    b"\n": "not_json",
    b"\r\n": "not_json",
    b"GET / HTTP/1.1\r\n": "http_request",
    b'{"v":0,"verb":"ping","job":"J","seq":0,"token":"secret"}\n': "envelope_invalid",
    b'{"v":0,"verb":"ping","job":"J","seq":1,"token":7}\n': "json_malformed",
}
NUMBERS = {"server.health", "backend.inflight", "backend.cap", "server.executed_total", "cdr.bytes_in"}


def shows_numbers(reply: LineReply) -> bool:
    return not NUMBERS.isdisjoint(each.kind for each in reply.receipts)


@pytest.mark.parametrize("line", BAD_LINES)
def test_before_the_token_the_first_bad_line_is_the_last(line: bytes) -> None:
    stand = Stand(token="secret")
    (reply,) = stand.send(line * 1000 + ping(token="secret"))
    assert (reply.verb, reply.status, reply.need) == ("confirm", "abort", BAD_LINES[line])
    assert stand.closed
    assert not shows_numbers(reply)
    assert reply.receipt("conn.outcome") == 2


def test_before_the_token_a_line_is_short() -> None:
    limits = LineLimits()
    names = "\U0001f600" * 1024
    known = Stand(token="secret")
    first = manifest(PAYLOAD, names, payload_id="p", content_type="text/plain").rstrip(b"}\n")
    assert len(first) > limits.first_line_bytes / 2
    assert [reply.status for reply in known.send(first + b'}, "token": "secret"}\n')] == ["ok"]
    (pong,) = known.send(ping("P", pad="x" * 100_000))
    assert pong.status == "ok", "afterwards a line may be as long as the daemon's"
    stranger = Stand(token="secret")
    (reply,) = stranger.send(b"x" * (limits.first_line_bytes + 1))
    assert (reply.status, reply.need, stranger.closed) == ("abort", "line_too_large", True)
    assert not shows_numbers(reply)


def test_before_the_token_nothing_that_is_said_shows_numbers() -> None:
    for line in (ping(), ping(token="wrong"), manifest(PAYLOAD)):
        stranger = Stand(token="secret")
        (reply,) = stranger.send(line)
        assert (reply.need, stranger.closed) == ("unauthorized", True)
        assert not shows_numbers(reply)
    silent = Stand(token="secret")
    (reply,) = silent.tick(60.0)
    assert (reply.need, silent.closed) == ("idle_timeout", True)
    assert not shows_numbers(reply)


def test_a_flood_of_bad_lines_before_the_token_is_answered_once() -> None:
    """It was answered 388 bytes for 2, in one turn of the loop that took a second."""

    async def body() -> None:
        async with line_standing(answer_whole, token="secret") as stand:
            strangers = [await stand.peer() for _ in range(20)]
            for stranger in strangers:
                stranger.send(b"x\n" * 60_000)
            for stranger in strangers:
                assert await last_words(stranger) in {b"", b"not_json"}
            await until(lambda: stand.door.connections == 0)
            await stand.settle()

    run(body())


async def last_words(peer: Peer) -> bytes:
    """Return what the one reply needs; nothing when the surplus bytes have reset the connection."""
    data = bytearray()
    try:
        while piece := await asyncio.wait_for(peer.reader.read(65536), 10):
            data += piece
    except ConnectionResetError:
        pass
    assert data.count(b"\n") <= 1, "one line, whatever was sent"
    return b"not_json" if b'"need_code":"not_json"' in data else bytes(data)


def test_the_connections_too_many_show_no_numbers_where_a_token_is_asked_for() -> None:
    async def body() -> None:
        async with line_standing(token="secret", limits=LineLimits(connections=1)) as stand:
            await stand.peer()
            (reply,) = await (await stand.peer()).until_closed()
            assert (reply.status, reply.need) == (Status.YIELD, "server_busy")
            assert not shows_numbers(reply)

    run(body())


async def guess(stand: LineStand, token: str) -> LineReply:
    peer = await stand.peer()
    peer.send(ping(token=token))
    return await peer.reply()


def test_a_peer_that_guesses_the_token_is_not_listened_to_for_a_minute() -> None:
    async def body() -> None:
        async with line_standing(token="secret") as stand:
            known, early = await stand.peer(), await stand.peer()
            known.send(ping(token="secret"))
            assert (await known.reply()).status is Status.OK
            for number in range(MOST_FAILURES):
                refusal = await guess(stand, f"guess {number}")
                assert (refusal.need, refusal.error) == ("unauthorized", "bad_envelope")
            peer = await stand.peer()
            (reply,) = await peer.until_closed()
            assert (reply.status, reply.need, reply.error) == (Status.ABORT, "unauthorized", "quota")
            assert not shows_numbers(reply)
            early.send(ping(token="secret"))
            assert (await early.reply()).need == "unauthorized", "connections kept for guessing help nothing"
            known.send(ping(seq=2))
            assert (await known.reply()).status is Status.OK, "who is in stays in"
            assert len(stand.door._guesses) == 1
            clock = stand.door.now
            stand.door.now = lambda: clock() + WINDOW_S
            assert (await guess(stand, "secret")).status is Status.OK

    run(body())


# ---- turns, and memory


def least_cpu_s(line: bytes) -> float:
    """Return the least time of three readings."""
    spent_s = []
    for _ in range(3):
        since = time.process_time()
        assert read_request(line)
        spent_s.append(time.process_time() - since)
    return min(spent_s)


def test_a_line_of_receipts_is_refused_as_quickly_as_any_other_list() -> None:
    """It queued the loop for 0.1 s, which is twice what any input may."""
    line = b'{"v":0,"verb":"ping","job":"J","seq":1,"%b":[' + b"{}," * 87_000 + b"{}]}"
    assert least_cpu_s(line.replace(b"%b", b"receipts")) < 3 * least_cpu_s(line.replace(b"%b", b"anything"))


def test_lines_are_taken_in_turns() -> None:
    limits = LineLimits()
    share = ByteBudget().share("", "")
    session = Session(limits, lambda: Readings(0, 4, 0, 0), share, share, lambda: 1, 0.0)
    first = list(session.receive(b"x\n" * 1000, 0.0))
    assert (len(first), session.pending) == (limits.turn_lines, True)
    rest = 0
    while session.pending:
        rest += len(list(session.receive(b"", 0.0)))
    assert len(first) + rest == 1000
    assert list(session.receive(b"\n" * 1000, 0.0)) == []
    assert session.pending, "lines without a word are lines"


def test_who_reads_nothing_is_written_to_little_and_gets_every_reply_later() -> None:
    async def body() -> None:
        async with line_standing() as stand:
            flood, other = await stand.peer(), await stand.peer()
            transport = flood.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            lines = 20_000
            flood.send(b"x\n" * lines)
            port = transport.get_extra_info("sockname")
            await until(lambda: stand.door.connections == 2)
            (connection,) = [
                each for each in stand.door._connections if each._stream.get_extra_info("peername") == port
            ]
            await until(lambda: connection._stalled_at is not None)
            for number in range(1, 50):
                other.send(ping(seq=number))
                assert (await other.reply()).seq == number + 1
            unsent = connection._stream.get_write_buffer_size()
            assert unsent <= stand.door.limits.unsent_bytes + 400 * stand.door.limits.turn_lines
            transport.resume_reading()  # type: ignore[attr-defined]
            for _ in repeat(None, lines):
                assert (await flood.reply()).need == "not_json"
            flood.send(ping())
            assert brief(await flood.reply()) == "confirm/ok P 2"

    run(body())


def test_unfinished_lines_are_booked_on_the_budget_of_all_doors() -> None:
    """200 connections kept 50 MB that no budget knew."""

    async def body() -> None:
        async with line_standing() as stand:
            kept = 200_000
            peers = [await stand.peer() for _ in range(20)]
            for peer in peers:
                peer.send(b"x" * kept)
            budget = stand.gateway.server.budget
            most_unbooked = 20 * stand.door.limits.unbooked_bytes
            await until(lambda: budget.held_bytes >= 20 * kept - most_unbooked)
            assert budget.peers == {"127.0.0.1": budget.held_bytes}
            for peer in peers:
                peer.leave()
            await until(lambda: stand.door.connections == 0)
            assert (budget.held_bytes, budget.peers, budget.tenants) == (0, {}, {})

    run(body())


def test_a_line_that_finds_no_room_ends_its_connection_and_gives_everything_back() -> None:
    limits = LineLimits()
    stand = Stand(limits, budget_bytes=10_000)
    assert stand.send(b"x" * (limits.unbooked_bytes + 10_000)) == []
    assert stand.budget.held_bytes == 10_000
    (reply,) = stand.send(b"x")
    assert (reply.status, reply.need, stand.closed) == ("yield", "server_busy", True)
    assert reply.retry_hint_ms > 0
    assert stand.budget.held_bytes == 0


def test_a_finished_line_is_given_back() -> None:
    stand = Stand()
    stand.send(b"x" * 20_000)
    assert stand.budget.held_bytes > 0
    assert [reply.need for reply in stand.send(b"\n")] == ["not_json"]
    assert stand.budget.held_bytes == 0


def test_what_a_manifest_may_keep_is_bounded() -> None:
    for line in (manifest(PAYLOAD, content_type="x" * 1025), manifest(PAYLOAD, sha256="0" * 1025)):
        (reply,) = Stand().send(line)
        assert reply.need == "manifest_invalid"
