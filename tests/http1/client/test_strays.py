"""What an engine, or a balancer before it, says before it can have read the request: it is no answer, and no later request gets another one's."""

import asyncio

from http1.client.engine import Asked, Receiver, Stand, engine, run, saying, sized, until
from millgate.http1.wire.outbox import Outbox


def sending_late(stand: Stand) -> None:
    """Have what is sent leave a moment later, as where the loop reads many sockets first."""
    later = asyncio.get_running_loop().call_later
    stand.pool.outbox = Outbox(lambda send: later(0.1, send))


def test_an_answer_that_came_before_its_request_had_left_is_no_answer_to_it() -> None:
    """A balancer's 408 for a silent connection. Each request after it on that connection got the answer of the one before."""

    async def body() -> None:
        is_time = asyncio.Event()

        async def script(asked: Asked) -> None:
            while await asked.request():
                await asked.say(sized(asked.body))
                if asked.number == 1:
                    await is_time.wait()
                    await asked.say(sized(b"stale", status=b"408 X"))

        async with engine(script) as stand:
            await stand.ask(b"first")
            sending_late(stand)
            receiver = Receiver()
            stand.send(receiver, b"second", may_retry=False)
            is_time.set()
            await until(lambda: receiver.over)
            assert (receiver.body, receiver.failed) == (b"second", [])
            assert (await stand.ask(b"third")).body == b"third"
            assert len(stand.asked) == 2

    run(body())


def test_a_call_that_is_held_back_and_given_up_as_its_connection_is_made_leaves_none() -> None:
    """The engine worked on its answer for as long as that took, for no client; in which turn that was differs."""

    async def body() -> None:
        async with engine(saying(sized())) as stand:
            for turn in range(40):
                call = stand.send(Receiver())
                call.pause()
                for _ in range(turn):
                    await asyncio.sleep(0)
                call.abort()
                await until(lambda: stand.pool.open == 0)

    run(body())


def test_a_connection_on_which_the_engine_spoke_first_is_not_used_again() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            if asked.number == 1:
                await asked.say(sized(b"full", status=b"503 X"))
            while await asked.request():
                await asked.say(sized(asked.body))

        async with engine(script) as stand:
            sending_late(stand)
            assert (await stand.ask(b"first")).body == b"full"
            assert stand.pool.kept == 0
            assert (await stand.ask(b"second")).body == b"second"

    run(body())
