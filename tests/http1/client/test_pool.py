"""Kept connections: used again, given up in time, replaced when dead; calls that are aborted or held back."""

import asyncio
import socket
from functools import partial

import pytest

from http1.client.engine import (
    LAST_CHUNK,
    STREAM,
    Asked,
    Receiver,
    Script,
    Stand,
    chunk,
    close,
    engine,
    reset,
    run,
    saying,
    sized,
    stay,
    until,
)
from millgate.core.words import FailureKind, Sent


@pytest.mark.parametrize("answer", [sized(), STREAM + chunk(b"x") + LAST_CHUNK, sized(b"", status=b"500 Oh")])
def test_a_connection_is_used_again_after_a_whole_answer(answer: bytes) -> None:
    async def body() -> None:
        async with engine(saying(answer)) as stand:
            for _again in range(3):
                await stand.ask()
            assert (len(stand.asked), stand.pool.kept, stand.pool.open) == (1, 1, 1)

    run(body())


@pytest.mark.parametrize("torn_at", [1, 3, 4])  # after 2 an empty line too many looks the same
def test_a_connection_is_used_again_though_the_end_of_its_answer_was_torn(torn_at: int) -> None:
    """A small segment, a write for each line: of an engine behind such a way no connection was used twice."""

    async def body() -> None:
        script = saying(STREAM + chunk(b"a") + LAST_CHUNK[:torn_at], LAST_CHUNK[torn_at:])
        async with engine(script) as stand:
            for _again in range(2):
                assert (await stand.ask()).ended == [True]
            assert len(stand.asked) == 1

    run(body())


NOT_KEPT = {
    "the engine closes": sized(b"x", b"Connection: close"),
    "an empty answer of an engine that closes": sized(b"", b"Connection: Close"),
    "the engine closes in the old way": sized(b"x", b"Proxy-Connection: close"),
    "HTTP/1.0": sized().replace(b"1.1", b"1.0"),
    "bytes behind a sized answer": sized() + b"x",
    "an answer behind a sized answer": sized() + sized(),
    "an answer behind chunks": STREAM + LAST_CHUNK + sized(),
    "half an answer behind chunks": STREAM + LAST_CHUNK + b"HTTP/1.1 200 OK\r\n",
    "a byte behind chunks": STREAM + LAST_CHUNK + b"H",
}


@pytest.mark.parametrize("answer", NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_a_connection_that_cannot_be_trusted_is_not_used_again(answer: bytes) -> None:
    async def body() -> None:
        async with engine(saying(answer)) as stand:
            for _again in range(2):
                got = await stand.ask()
                assert got.ended == [True]
                assert stand.pool.kept == 0
            assert len(stand.asked) == 2

    run(body())


STRAY = sized(b"stray")
BEHIND = {
    "a sized answer": (sized(b"mine") + STRAY, b"mine"),
    "an empty answer": (sized(b"") + STRAY, b""),
    "an answer without a body by its status": (b"HTTP/1.1 204 No Content\r\n\r\n" + STRAY, b""),
    "chunks": (STREAM + chunk(b"mi") + chunk(b"ne") + LAST_CHUNK + STRAY, b"mine"),
    "an end that came apart": (STREAM + chunk(b"mine") + b"0\r\nA: b\r\n\r\n" + STRAY + STRAY[:20], b"mine"),
    "an answer that is no HTTP any more": (sized(b"mine") + sized(b"x") + b"noise" * 9, b"mine"),
}


@pytest.mark.parametrize(("said", "mine"), BEHIND.values(), ids=BEHIND.keys())
@pytest.mark.parametrize("split_bytes", [0, 1])
def test_bytes_behind_an_answer_are_no_part_of_it_and_close_the_connection(
    said: bytes, mine: bytes, split_bytes: int
) -> None:
    async def body() -> None:
        pieces = [piece for piece in (said[:split_bytes], said[split_bytes:]) if piece]
        async with engine(saying(*pieces)) as stand:
            for _again in range(2):
                got = await stand.ask()
                assert (got.body, got.ended) == (mine, [True])
                assert stand.pool.kept == 0
            assert len(stand.asked) == 2

    run(body())


def test_bytes_that_nobody_asked_for_close_a_kept_connection() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            assert await asked.request()
            await asked.say(sized())
            await asyncio.sleep(0.02)
            await asked.say(sized(b"stale"))
            await asked.hung_up()

        async with engine(script) as stand:
            await stand.ask()
            assert stand.pool.kept == 1
            await until(lambda: stand.pool.open == 0)
            assert stand.pool.kept == 0

    run(body())


def test_the_connection_is_back_in_the_pool_before_the_receiver_hears_of_the_end() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand:
            second = Receiver()

            def ask_again(what: str) -> None:
                if what == "end":
                    assert stand.pool.kept == 1
                    stand.send(second)

            stand.send(Receiver(on_any=ask_again))
            await until(lambda: second.over)
            assert (second.body, len(stand.asked)) == (b"whole", 1)

    run(body())


def test_the_last_connection_put_back_is_the_first_taken() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand:
            await asyncio.gather(*(stand.ask() for _n in range(3)))
            assert stand.pool.kept == 3
            for _again in range(5):
                await stand.ask()
            assert len(stand.asked) == 3

    run(body())


def test_no_more_connections_are_kept_than_allowed() -> None:
    async def body() -> None:
        async with engine(saying(sized()), kept_connections=2) as stand:
            await asyncio.gather(*(stand.ask() for _n in range(5)))
            await until(lambda: stand.pool.open == 2)
            assert stand.pool.kept == 2

    run(body())


def test_a_kept_connection_is_given_up_after_a_while() -> None:
    async def body() -> None:
        async with engine(saying(sized()), kept_idle_s=0.1) as stand:
            await stand.ask()
            await until(lambda: stand.pool.open == 0)
            assert (await stand.ask()).body == b"whole"
            assert len(stand.asked) == 2

    run(body())


def test_a_kept_connection_that_the_engine_closes_leaves_the_pool() -> None:
    async def body() -> None:
        async with engine(saying(sized(), then=close)) as stand:
            await stand.ask()
            await until(lambda: stand.pool.open == 0)
            assert stand.pool.kept == 0

    run(body())


def dying(how: Script, answers: int = 1) -> Script:
    """Make an engine whose first connection dies at the request after its `answers`."""

    async def script(asked: Asked) -> None:
        served = 0
        while await asked.request():
            if asked.number == 1 and served == answers:
                await how(asked)
                return
            await asked.say(sized())
            served += 1

    return script


@pytest.mark.parametrize("how", [close, reset])
def test_a_dead_kept_connection_is_replaced_once_and_nobody_notices(how: Script) -> None:
    async def body() -> None:
        async with engine(dying(how)) as stand:
            await stand.ask()
            got = await stand.ask(b"again")
            assert (got.body, got.failed) == (b"whole", [])
            assert (len(stand.asked), stand.asked[1].body) == (2, b"again")

    run(body())


def test_a_call_that_may_not_be_repeated_is_not() -> None:
    async def body() -> None:
        async with engine(dying(reset)) as stand:
            await stand.ask()
            got = await stand.ask(may_retry=False)
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 1

    run(body())


def test_a_request_that_the_engine_has_worked_on_is_not_sent_again() -> None:
    """A balancer that cuts what is silent for a minute had each long answer computed twice."""

    async def body() -> None:
        async def cut_late(asked: Asked) -> None:
            await asyncio.sleep(0.5)
            asked.reset()

        async with engine(dying(cut_late), crossing_s=0.2) as stand:
            await stand.ask()
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 1

    run(body())


def test_a_fresh_connection_that_dies_is_not_replaced() -> None:
    async def body() -> None:
        async with engine(dying(reset, answers=0)) as stand:
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 1

    run(body())


def test_a_call_is_repeated_only_once() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            assert await asked.request()
            if asked.number == 1:
                await asked.say(sized())
                await asked.request()

        async with engine(script) as stand:
            await stand.ask()
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 2

    run(body())


def test_what_a_dead_connection_took_stays_sent_though_no_fresh_one_is_to_be_had() -> None:
    """The engine may have read it: another engine that got it too would compute it twice."""

    async def body() -> None:
        async def die_for_good(asked: Asked) -> None:
            stand.server.close()
            asked.reset()

        async with engine(dying(die_for_good)) as stand:
            await stand.ask()
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 1

    run(body())


def test_a_call_is_not_repeated_after_the_first_byte_of_an_answer() -> None:
    async def body() -> None:
        async def half(asked: Asked) -> None:
            await asked.say(b"H")
            asked.reset()

        async with engine(dying(half)) as stand:
            await stand.ask()
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert len(stand.asked) == 1

    run(body())


def test_the_deadline_goes_with_the_call_to_its_fresh_connection() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            assert await asked.request()
            if asked.number == 1:
                await asked.say(sized())
                await asked.request()
            else:
                await asked.hung_up()

        async with engine(script) as stand:
            await stand.ask()
            got = await stand.ask(expires_at=asyncio.get_running_loop().time() + 0.2)
            assert got.failure == (FailureKind.TIMEOUT, Sent.REQUEST)

    run(body())


@pytest.mark.parametrize("said", [(), (STREAM,), (STREAM, chunk(b"data: 1\n\n"))])
def test_an_aborted_call_closes_its_connection_and_says_nothing_more(said: tuple[bytes, ...]) -> None:
    async def body() -> None:
        left: list[bool] = []

        async def script(asked: Asked) -> None:
            assert await asked.request()
            await asked.say(*said)
            left.append(await asked.hung_up())

        async with engine(script) as stand:
            receiver = Receiver()
            call = stand.send(receiver)
            await until(lambda: stand.asked and stand.asked[0].head)
            await asyncio.sleep(0.01)
            heard = len(receiver.data)
            call.abort()
            call.abort()
            await until(lambda: left)
            assert not receiver.over
            assert len(receiver.data) == heard
            assert stand.pool.open == 0

    run(body())


def test_a_call_aborted_while_connecting_makes_no_connection() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand:
            receiver = Receiver()
            stand.send(receiver).abort()
            await asyncio.sleep(0.05)
            assert not receiver.over
            assert stand.pool.open == 0
            assert not any(asked.head for asked in stand.asked)

    run(body())


@pytest.mark.parametrize("moment", ["head", "data", "end"])
def test_a_receiver_may_abort_from_any_callback(moment: str) -> None:
    async def body() -> None:
        async with engine(saying(sized(b"whole"))) as stand:
            heard: list[str] = []

            def hear(what: str) -> None:
                heard.append(what)
                if what == moment:
                    call.abort()

            call = stand.send(Receiver(on_any=hear))
            await until(lambda: heard and heard[-1] == moment)
            await asyncio.sleep(0.02)
            assert heard == ["head", "data", "end"][: len(heard)]
            assert heard[-1] == moment
            assert stand.pool.kept == (1 if moment == "end" else 0)

    run(body())


def test_a_paused_call_holds_the_engine_back_and_misses_nothing() -> None:
    async def body() -> None:
        written = 0

        async def script(asked: Asked) -> None:
            nonlocal written
            assert await asked.request()
            asked.writer.write(STREAM)
            for _n in range(400):
                asked.writer.write(chunk(b"x" * 50_000))
                await asked.writer.drain()
                written += 50_000
            await asked.say(LAST_CHUNK)
            await asked.hung_up()

        async with engine(script, chunk_idle_s=0.2) as stand:
            receiver = Receiver()
            call = stand.send(receiver)
            await until(lambda: receiver.data)
            call.pause()
            heard = len(receiver.body)
            await asyncio.sleep(0.5)
            assert len(receiver.body) == heard
            assert written < 20_000_000
            assert not receiver.over
            call.resume()
            await until(lambda: receiver.over)
            assert (len(receiver.body), receiver.ended) == (20_000_000, [True])

    run(body())


def waiting_room_bytes(stand: Stand) -> int:
    """Return what the kernel may hold of the one answer under way; it doubles what it is told, for its own books."""
    (connection,) = stand.pool._connections
    assert connection._transport is not None
    sock: socket.socket = connection._transport.get_extra_info("socket")
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def test_a_widened_call_has_more_under_way_until_its_reader_falls_behind() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            assert await asked.request()
            await asked.say(STREAM + chunk(b"x"))
            await asked.hung_up()

        async with engine(script, receive_bytes=16_384, wide_receive_bytes=65_536) as stand:
            receiver = Receiver()
            call = stand.send(receiver)
            call.widen()  # it has no connection yet
            await until(lambda: receiver.data)
            assert waiting_room_bytes(stand) == 16_384
            call.widen()
            assert waiting_room_bytes(stand) == 65_536
            call.pause()
            assert waiting_room_bytes(stand) == 16_384
            call.widen()  # nobody reads
            assert waiting_room_bytes(stand) == 16_384
            call.abort()

    run(body())


def test_a_call_paused_from_its_last_callback_leaves_a_readable_connection() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand:

            def hear(what: str) -> None:
                if what == "data":
                    call.pause()

            receiver = Receiver(on_any=hear)
            call = stand.send(receiver)
            await until(lambda: receiver.over)
            call.resume()
            assert (await stand.ask()).body == b"whole"
            assert len(stand.asked) == 1

    run(body())


def test_a_closed_pool_ends_everything_silently_and_takes_no_more() -> None:
    async def body() -> None:
        async with engine(saying(then=stay)) as stand:
            receivers = [Receiver() for _n in range(3)]
            for receiver in receivers:
                stand.send(receiver)
            await until(partial(all_asked, stand.asked, 3))
            late = Receiver()
            stand.send(late)
            stand.pool.close()
            await until(lambda: stand.pool.open == 0)
            await asyncio.sleep(0.02)
            assert not any(receiver.over for receiver in [*receivers, late])
            with pytest.raises(RuntimeError, match="closed"):
                stand.send(Receiver())

    run(body())


def all_asked(asked: list[Asked], count: int) -> bool:
    return len([one for one in asked if one.head]) == count


def test_nothing_is_left_scheduled_when_the_pool_is_quiet() -> None:
    """A pool without connections owns no timer: the sweep stops by itself."""

    async def body() -> None:
        async with engine(saying(sized()), kept_idle_s=0.1) as stand:
            await stand.ask()
            assert stand.pool.sweep.running
            await until(lambda: not stand.pool.sweep.running)

    run(body())
