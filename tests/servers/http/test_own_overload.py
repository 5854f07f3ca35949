"""A gateway that is itself too slow refuses before it reads."""

import time

from gateway.harness import chat, run, standing, until
from millgate.runtime.lag import TICK_S


def test_requests_are_refused_after_their_head_while_the_loop_lags_and_taken_again_after() -> None:
    async def body() -> None:
        async with standing() as stand:
            lag = stand.gateway.door.lag
            lag.overloaded = True
            lag.stop()  # the next tick on time would take it back while this test still asks
            got = await stand.ask(chat())
            assert (got.status, got.headers["x-millgate-reason"]) == (503, "overloaded_gate")
            assert "slot" not in got.error["message"]
            named = await stand.ask(chat(), x_request_id="mine")
            assert named.headers["x-request-id"] == "mine"
            again = await stand.ask(chat())
            assert again.headers["x-request-id"] not in {got.headers["x-request-id"], "mine"}
            assert got.headers["connection"] == "close"
            assert not stand.engine.asked
            lag.start()
            await until(lambda: not lag.overloaded)  # the next tick on time takes it back
            assert (await stand.ask(chat())).status == 200
            assert stand.gateway.door.shed == 3

    run(body())


def test_a_loop_that_is_blocked_again_and_again_is_noticed() -> None:
    async def body() -> None:
        async with standing() as stand:
            lag = stand.gateway.door.lag

            def block() -> bool:
                time.sleep(2.5 * TICK_S)  # what no code of the gateway may do
                return lag.overloaded

            await until(block)

    run(body())
