"""The line door on real sockets, in a gateway with an HTTP door beside it, before a scripted engine."""

import asyncio
import json
import ssl
from dataclasses import replace
from typing import Any

import pytest
import trustme

from gateway.harness import CHAT, Asked, Client as HttpClient, answer, chat, run, until
from millgate.core.words import Outcome
from millgate.dialects.line import LineReply, Status
from millgate.servers.line import LineLimits
from millgate.servers.line.attempt import words_of
from servers.line.stand import brief, chunk, ping, upload
from servers.line.talk import Gate, LineStand, Peer, line_standing

BODY = chat("hello")


def line_upload(body: bytes = BODY, job: str = "J", **more: Any) -> bytes:
    return upload(body, job, 64, **more)


def last_chunk(body: bytes = BODY, job: str = "J", seq: int = 9) -> bytes:
    return chunk(body, -(-len(body) // 64) - 1, job, seq, 64)


async def come(stand: LineStand, number: int, *, retry: bool) -> tuple[LineReply, list[int]]:
    """Be one client: upload, and with `retry` come back after each hint; return the end and the hints."""
    peer = await stand.peer()
    peer.send(line_upload(job=f"J{number}"))
    hints = []
    while (reply := await peer.final()).status is Status.YIELD:
        hints.append(reply.retry_hint_ms)
        if not retry:
            break
        await asyncio.sleep(min(reply.retry_hint_ms, 500) / 1000)
        peer.send(last_chunk(job=f"J{number}"))
    return reply, hints


def test_the_seeds_own_test_one_slot_and_twenty_clients() -> None:
    """In-flight never above 1, executed 1, yielded 19, no queue, distinct hints, in-flight 0 afterwards."""

    async def body() -> None:
        engine = Gate()
        async with line_standing(engine) as stand:
            clients = [asyncio.create_task(come(stand, number, retry=False)) for number in range(20)]
            await until(lambda: sum(client.done() for client in clients) == 19)
            (running,) = [client for client in clients if not client.done()]
            hints = [client.result()[1][0] for client in clients if client is not running]
            assert (stand.door.executed, stand.door.yielded) == (1, 19)
            assert len(set(hints)) == 19
            watcher = await stand.peer()
            watcher.send(ping())
            pong = await watcher.reply()
            assert (pong.receipt("server.health"), pong.receipt("backend.inflight")) == (0, 1)
            assert (pong.receipt("server.executed_total"), pong.receipt("server.yielded_total")) == (1, 19)
            engine.go.set()
            done, _ = await running
            assert done.status is Status.DONE
            assert (done.receipt("server.health"), done.receipt("backend.inflight")) == (0, 1)
            await until(lambda: stand.snapshot.engines[0].running == 0)
            watcher.send(ping())
            pong = await watcher.reply()
            assert (pong.receipt("server.health"), pong.receipt("backend.inflight")) == (1, 0)
            assert engine.most == 1
            for peer in stand.peers:
                peer.leave()
            await stand.settle()

    run(body())


def test_with_retries_all_twenty_are_executed_one_at_a_time() -> None:
    async def body() -> None:
        engine = Gate(work_s=0.05)
        async with line_standing(engine) as stand:
            ends = await asyncio.gather(*(come(stand, number, retry=True) for number in range(20)))
            assert [end.status for end, _ in ends] == [Status.DONE] * 20
            assert (engine.served, engine.most) == (20, 1)
            assert max(len(hints) for _, hints in ends) <= 50
            await stand.settle()

    run(body())


def test_one_governor_for_all_doors() -> None:
    """A stream taken over HTTP is not free on the line, and the other way round."""

    async def body() -> None:
        engine = Gate()
        async with line_standing(engine) as stand:
            http = HttpClient(*await asyncio.open_connection("127.0.0.1", stand.gateway.port))
            http.ask(BODY, CHAT)
            await until(lambda: engine.running == 1)
            peer = await stand.peer()
            peer.send(line_upload())
            assert (await peer.final()).need == "server_busy"
            engine.go.set()
            assert (await http.answer()).status == 200
            http.leave()
            await until(lambda: stand.snapshot.engines[0].running == 0)
            peer.send(last_chunk())
            assert (await peer.final()).status is Status.DONE
            assert stand.snapshot.retries.recognised == 1
            await stand.settle()

    run(body())


def test_the_engine_gets_the_payload_and_the_client_its_answer() -> None:
    async def script(asked: Asked) -> None:
        assert asked.line.startswith(b"POST /v1/chat/completions ")
        assert asked.headers["content-type"] == "application/json"
        assert asked.body == BODY
        asked.reply(answer("x" * 100_000, output_tokens=30))

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload(want_result=True))
            data = b""
            while (reply := await peer.reply()).status is not Status.DONE:
                if reply.verb == "result" and reply.chunk is not None:
                    from base64 import b64decode

                    data += b64decode(reply.chunk.bytes_b64)
            assert json.loads(data)["choices"][0]["message"]["content"] == "x" * 100_000
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 30

    run(body())


def test_a_failing_engine_aborts_the_job_and_a_full_one_yields_it() -> None:
    async def body() -> None:
        statuses = iter([500, 503, 200])

        async def script(asked: Asked) -> None:
            asked.reply(answer(), next(statuses), retry_after="2")

        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload(job="A"))
            reply = await peer.final()
            assert (reply.status, reply.need, reply.error) == (Status.ABORT, "backend_error", "backend_error")
            peer.send(line_upload(job="B"))
            reply = await peer.final()
            assert (reply.status, reply.retry_hint_ms) == (Status.YIELD, 2000)
            peer.send(last_chunk(job="B"))
            assert (await peer.final()).status is Status.DONE
            await stand.settle()

    run(body())


def test_a_job_against_an_unknown_model_carries_the_engines_words_and_a_request_id() -> None:
    async def script(asked: Asked) -> None:
        error = {"message": "The model `nope` does not exist.", "type": "NotFoundError", "code": 404}
        asked.reply(json.dumps({"error": error}).encode(), 404)

    async def body() -> None:
        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload())
            reply = await peer.final()
            assert (reply.status, reply.need, reply.error) == (Status.ABORT, "backend_error", "backend_error")
            assert reply.message == "the engine answered 404: The model `nope` does not exist."
            assert reply.request_id == stand.engine.asked[0].headers["x-request-id"]
            assert reply.request_id.startswith(stand.gateway.door.boot)
            (told,) = stand.gateway.observers.why(reply.request_id)
            assert told.attempt == int(reply.request_id.rpartition("-")[2], 16)
            await stand.settle()

    run(body())


def test_the_engines_request_id_of_a_job_stands_in_why_and_an_echo_of_ours_does_not() -> None:
    async def body() -> None:
        given = iter(["req_theirs", None])

        async def script(asked: Asked) -> None:
            asked.reply(answer(), 200, x_request_id=next(given) or asked.headers["x-request-id"])

        async with line_standing(script) as stand:
            peer = await stand.peer()
            for job in "AB":
                peer.send(line_upload(job=job))
                assert (await peer.final()).status is Status.DONE
            theirs, echoed = [
                stand.gateway.observers.why(asked.headers["x-request-id"])[0].upstream_ids
                for asked in stand.engine.asked
            ]
            assert (theirs, echoed) == (("req_theirs",), ())
            (found,) = stand.gateway.observers.why("req_theirs")
            assert found.upstream_ids == theirs
            await stand.settle()

    run(body())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b'{"detail": "no such model"}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"error": {"message": "two\\nlines \\u001b[31mred \\u202eback"}}', "two lines [31mred back"),
        (b"<html>\n\x07 not found\r\n</html>", "<html> not found </html>"),
        (b'{"error":' * 5000, '{"error":' * 3),
        (b"\xff" * 40_000, "\ufffd" * 10),
        (b"x" * 1_000_000, "x" * 100),
        (b'{"error": {"message": ["secret"]}}', '{"error": {"message": ["secret"]}}'),
        (b"", ""),
    ],
)
def test_an_engines_words_are_one_bounded_line(said: bytes, words: str) -> None:
    told = words_of(400, said)
    assert told.startswith(f"the engine answered 400: {words}" if words else "the engine answered 400")
    assert told.isprintable()
    assert len(told) <= 500


def test_a_bad_request_is_aborted_before_it_takes_a_slot() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            asked.reply(answer())

        async with line_standing(script) as stand:
            peer = await stand.peer()
            peer.send(line_upload(b'{"model": 5, "messages": []}'))
            reply = await peer.final()
            assert reply.need == "backend_error"
            assert "model" in reply.message
            assert reply.request_id
            assert stand.snapshot.lanes[1].arrived == 0
            peer.send(line_upload(b"not JSON at all, any bytes"))
            assert (await peer.final()).status is Status.DONE
            assert stand.engine.asked[0].headers["content-type"] == "application/json"

    run(body())


def test_a_peer_that_leaves_ends_its_job() -> None:
    async def body() -> None:
        engine = Gate()
        async with line_standing(engine) as stand:
            for leave in (Peer.leave, lambda peer: peer.writer.close()):
                peer = await stand.peer()
                peer.send(line_upload())
                await until(lambda: engine.running == 1)
                leave(peer)
                await until(lambda: engine.running == 0)
                await stand.settle()
            outcomes = dict(stand.snapshot.lanes[1].outcomes)
            assert outcomes[Outcome.CLIENT_GONE] == 2

    run(body())


async def _yielded_wave(stand: LineStand) -> list[tuple[Peer, int]]:
    """Send twenty jobs to a full gate; return the peers, each with its hint."""
    wave = []
    for number in range(20):
        peer = await stand.peer()
        peer.send(line_upload(job=f"J{number}"))
        wave.append((peer, (await peer.final()).retry_hint_ms))
    return wave


def test_two_waves_whose_peers_close_are_not_before_the_third() -> None:
    """A peer that closes has no appointment; one that keeps its connection has."""

    async def body() -> None:
        engine = Gate()
        async with line_standing(engine) as stand:
            first = await stand.peer()
            first.send(line_upload())
            await until(lambda: engine.running == 1)
            for leave in (Peer.leave, lambda peer: peer.writer.close()):
                away = await _yielded_wave(stand)
                assert stand.snapshot.retries.appointments == 20
                for peer, _ in away:
                    leave(peer)
                await until(lambda: stand.snapshot.retries.appointments == 0)
            stays = await _yielded_wave(stand)
            assert stand.snapshot.retries.appointments == 20
            assert stays[0][1] <= 1.25 * away[0][1]
            assert max(hint_ms for _, hint_ms in stays) <= 1.25 * max(hint_ms for _, hint_ms in away)
            engine.go.set()
            assert (await first.final()).status is Status.DONE

    run(body())


def test_a_long_job_is_kept_alive_and_answers_pings_meanwhile() -> None:
    async def body() -> None:
        engine = Gate()
        async with line_standing(engine, limits=LineLimits(keep_alive_s=0.2, idle_s=0.3)) as stand:
            peer = await stand.peer()
            peer.send(line_upload())
            await until(lambda: engine.running == 1)
            peer.send(ping())
            said = [brief(await peer.reply()) for _ in range(6)]
            assert said.count("confirm/ok P 2") == 1
            assert said[-2:] == ["clarify/ok J 4", "clarify/ok J 4"]
            engine.go.set()
            assert (await peer.final()).status is Status.DONE
            assert [reply.need for reply in await peer.until_closed()] == ["idle_timeout"]

    run(body())


def test_a_peer_that_reads_nothing_is_cut_and_holds_little() -> None:
    async def body() -> None:
        limits = LineLimits(write_stall_s=0.3, unsent_bytes=4096)
        async with line_standing(limits=limits) as stand:
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.line_port, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            line = ping("x" * 1000)
            with_pings = asyncio.create_task(_flood(writer, line))
            await until(lambda: stand.door.connections == 1)
            await until(lambda: stand.door.connections == 0, 20)
            with_pings.cancel()
            writer.transport.abort()
            del reader

    async def _flood(writer: asyncio.StreamWriter, line: bytes) -> None:
        while True:
            writer.write(line * 50)
            await writer.drain()

    run(body())


def test_connections_over_the_cap_are_told_and_closed() -> None:
    async def body() -> None:
        async with line_standing(limits=LineLimits(connections=1)) as stand:
            first = await stand.peer()
            first.send(ping())
            await first.reply()
            second = await stand.peer()
            (reply,) = await second.until_closed()
            assert (reply.status, reply.need) == (Status.YIELD, "server_busy")
            first.send(ping())
            assert (await first.reply()).status is Status.OK

    run(body())


def test_a_drain_lets_running_jobs_end_and_closes_the_rest() -> None:
    async def body() -> None:
        engine = Gate()
        async with line_standing(engine) as stand:
            busy, idle = await stand.peer(), await stand.peer()
            idle.send(ping())
            await idle.reply()
            busy.send(line_upload())
            await until(lambda: engine.running == 1)
            drain = asyncio.create_task(stand.gateway.drain())
            assert [each.status for each in await idle.until_closed()] == [Status.YIELD]
            engine.go.set()
            said = await busy.until_closed()
            assert [each.status for each in said[-2:]] == [Status.DONE, Status.YIELD]
            await drain

    run(body())


def test_peers_that_a_drain_refuses_do_not_prolong_it() -> None:
    """Clients come back each second, and a connection that was refused stays for one: drains lasted their whole grace."""

    async def body() -> None:
        engine = Gate()
        async with line_standing(engine, limits=LineLimits(linger_s=60.0)) as stand:
            stand.gateway.settings = replace(stand.gateway.settings, drain_grace_s=60.0)
            busy = await stand.peer()
            busy.send(line_upload())
            await until(lambda: engine.running == 1)
            drain = asyncio.create_task(stand.gateway.drain())
            await until(lambda: stand.gateway.draining)
            refused = await stand.peer()
            assert (await refused.reply()).job == "J_?"
            engine.go.set()
            await busy.until_closed()
            busy.leave()
            await asyncio.wait_for(drain, 20)

    run(body())


def test_tls_and_a_token() -> None:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)

    async def body() -> None:
        async with line_standing(ssl=server, token="secret") as stand:
            peer = await stand.peer(ssl=client)
            peer.send(ping(token="secret") + line_upload())
            assert (await peer.final()).status is Status.DONE
            stranger = await stand.peer(ssl=client)
            stranger.send(line_upload())
            assert [reply.need for reply in await stranger.until_closed()] == ["unauthorized"]

    run(body())


def test_inv_2_a_job_of_several_answers_takes_as_many_streams() -> None:
    asks = json.loads(BODY) | {"n": 2}

    async def body() -> None:
        gate = Gate()
        async with line_standing(gate, max_inflight=2) as stand:
            first, second = await stand.peer(), await stand.peer()
            first.send(line_upload(json.dumps(asks).encode(), "first"))
            await until(lambda: gate.running == 1)
            second.send(line_upload(job="second"))
            assert (await second.final()).status is Status.YIELD
            assert stand.gateway.driver.snapshot().engines[0].running == 2
            gate.go.set()
            assert (await first.final()).status is Status.DONE

    run(body())
