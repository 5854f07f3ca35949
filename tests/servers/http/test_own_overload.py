"""A gateway that is itself too slow refuses before it reads."""

import asyncio
import json
import time
from pathlib import Path

from gateway.harness import chat, run, standing, until
from gateway.test_observers import get, watched
from millgate.observe.observers import ObserverSettings
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
            assert stand.gateway.door.shedding.count == 3

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


def test_32_clients_who_come_at_once_to_an_idle_gate_are_no_overload_of_it() -> None:
    def work_a_turn() -> None:
        time.sleep(2.5 * TICK_S)  # a turn full of work: accepting, reading, dialling engines

    async def body() -> None:
        async with standing() as stand:
            clients = [await stand.client() for _ in range(32)]
            for _ in range(2):
                work_a_turn()
                await asyncio.sleep(0.001)
            for client in clients:
                client.ask(chat())
            answers = [await client.answer() for client in clients]
            assert "overloaded_gate" not in {each.headers.get("x-millgate-reason") for each in answers}
            assert stand.gateway.door.lag.worst_s > stand.gateway.door.lag.late_s
            assert stand.gateway.door.shedding.count == 0

    run(body())


def test_what_the_gate_refuses_for_its_own_lag_is_in_the_log_and_in_why(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        stand = await watched(ObserverSettings(str(log)))
        assert stand.gateway.admin is not None
        port = stand.gateway.admin.port
        lag = stand.gateway.door.lag
        lag.stop()  # the next tick on time would take it back while this test still asks
        lag.overloaded, lag.lag_s = True, 0.3
        asked = chat("not read")
        mine = await stand.ask(asked, x_request_id="mine")
        unnamed = await stand.ask(asked)
        told = [
            json.loads((await get(port, f"/api/why?id={each.headers['x-request-id']}"))[1])["attempts"]
            for each in (mine, unnamed)
        ]
        _, page = await get(port, "/metrics")
        await stand.close()

        assert [[each["attempt"] for each in attempts] for attempts in told] == [[1], [2]]
        arrived, refused = told[0][0]["steps"]
        assert arrived["words"] == f"arrived: {len(asked)} bytes announced, not read"
        assert "stream" not in arrived["numbers"]
        assert refused["words"] == (
            "refused overloaded_gate: the gate itself is too busy, 0.3 s late; told to come back in 1.0 s"
        )
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["id"] for line in lines] == ["mine", unnamed.headers["x-request-id"]]
        for line in lines:
            assert (line["outcome"], line["reason"]) == ("yielded", "overloaded_gate")
            assert (line["retry_after_s"], line["retry"]) == (1.0, True)
            assert "stream" not in line
        assert b"millgate_door_shed_total 2.0" in page
        assert b'millgate_tenant_attempts_total{tenant="-"} 2.0' in page

    run(body())


def test_what_is_no_work_is_refused_without_a_record(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        stand = await watched(ObserverSettings(str(log)))
        stand.gateway.door.lag.stop()
        stand.gateway.door.lag.overloaded = True
        for path in (b"/nowhere", b"/tokenize"):
            assert (await stand.ask(chat(), path=path)).status == 503
        assert stand.gateway.door.shedding.count == 2
        await stand.close()
        assert not log.read_text()

    run(body())
