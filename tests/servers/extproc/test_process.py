"""What is said to Envoy, message by message: modes, bounds, endings, and what no one may choose but the gate."""

import json
import ssl
from dataclasses import replace
from math import inf

import grpc
import pytest
import trustme
from google.protobuf.json_format import MessageToDict
from grpc_health.v1.health_pb2 import HealthCheckResponse

from gateway.harness import run, until
from millgate.core.events import Event, Finished, Growth, LeaseGranted
from millgate.dialects.contract import Usage
from millgate.runtime.callers import CallerSettings
from millgate.servers.extproc.attempt import EnvoyAttempt
from millgate.servers.extproc.running import LoggedRequest
from millgate.servers.extproc.settings import DESTINATION, ExtprocSettings
from servers.extproc.envoys import (
    BUFFERED,
    DUPLEX,
    JSON,
    NONE,
    PARTIAL,
    STREAMED,
    Stand,
    channel,
    health_of,
    standing,
)

CHAT = json.dumps(
    {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
).encode()
STREAM = json.dumps({**json.loads(CHAT), "stream": True}).encode()

DONE = b"data: [DONE]\n\n"


def fields_of(mutation: object) -> dict[str, str]:
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}  # type: ignore[attr-defined]


def test_an_admitted_request_is_steered_and_its_body_goes_on() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(fields=(*JSON, (DESTINATION, "10.0.0.1:1"), ("x-data-parallel-rank", "3")))
            await talk.body(STREAM[:40], ends=False)
            await talk.body(STREAM[40:])

            head, body = await talk.told(), await talk.told()

            common = head.request_headers.response
            assert common.clear_route_cache
            assert fields_of(common.header_mutation)[DESTINATION] == stand.destinations[0]
            assert {each.append_action for each in common.header_mutation.set_headers} == {2}
            assert "x-data-parallel-rank" in common.header_mutation.remove_headers
            metadata = MessageToDict(head.dynamic_metadata)
            assert metadata["envoy.lb"] == {DESTINATION: stand.destinations[0]}
            assert metadata["millgate"]["attempt"]
            sent = body.request_body.response.body_mutation.streamed_response
            assert (sent.body, sent.end_of_stream) == (STREAM, True)
            assert await talk.code() is grpc.StatusCode.OK
            assert stand.running == 1, "Envoy's access log will tell its end"

    run(scene())


def test_a_long_body_goes_on_in_pieces() -> None:
    async def scene() -> None:
        body = json.dumps({**json.loads(CHAT), "user": "u" * 100_000}).encode()
        async with standing() as stand:
            talk = stand.open()
            await talk.head()
            await talk.body(body)
            await talk.told()
            pieces = [
                (await talk.told()).request_body.response.body_mutation.streamed_response for _ in (1, 2)
            ]

            assert b"".join(piece.body for piece in pieces) == body
            assert [piece.end_of_stream for piece in pieces] == [False, True]

    run(scene())


def test_a_body_that_envoy_holds_is_steered_with_it() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(BUFFERED, NONE))
            assert (await talk.told()).HasField("request_headers")
            await talk.body(CHAT)
            common = (await talk.told()).request_body.response
            assert fields_of(common.header_mutation)[DESTINATION] == stand.destinations[0]
            assert not common.HasField("body_mutation")

    run(scene())


def test_trailers_end_a_body_and_go_on() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head()
            await talk.body(CHAT, ends=False)
            await talk.trailers()
            told = [await talk.told() for _ in range(3)]
            assert [each.WhichOneof("response") for each in told] == [
                "request_headers",
                "request_body",
                "request_trailers",
            ]
            assert not told[1].request_body.response.body_mutation.streamed_response.end_of_stream

    run(scene())


@pytest.mark.parametrize("running", [0, 1])
def test_a_body_that_envoy_holds_is_whole_also_before_trailers(running: int) -> None:
    async def scene() -> None:
        async with standing(max_inflight=1) as stand:
            other = stand.open()
            if running:
                await other.head(modes=(BUFFERED, DUPLEX))
                await other.told()
                await other.body(CHAT)
                await other.told()
            talk = stand.open()
            await talk.head(modes=(BUFFERED, DUPLEX))
            await talk.told()
            await talk.body(CHAT, ends=False)
            await until(lambda: stand.queued == running and stand.running == 1)
            if (
                not running
            ):  # Envoy waits for this before it sends trailers; that they come sooner does no harm
                assert (await talk.told()).HasField("request_body")
            await talk.trailers()
            if running:
                await other.answer(200, [b"{}"], "application/json")
                assert (await talk.told()).HasField("request_body")
            assert (await talk.told()).HasField("request_trailers")

            await talk.answer(200, [b'{"choices":[]}'], "application/json")
            await until(lambda: stand.outcomes() == {"good": 1 + running})

    run(scene())


def test_a_mode_that_is_not_known_is_refused_and_says_why() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(PARTIAL, NONE))
            refused = (await talk.told()).immediate_response
            assert refused.status.code == 500
            assert b"FULL_DUPLEX_STREAMED" in refused.body

    run(scene())


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_without_the_body_the_head_decides(mode: int) -> None:
    async def scene() -> None:
        async with standing(max_inflight=1, max_queue=0) as stand:
            talk = stand.open()
            await talk.head(fields=(*JSON, ("content-length", "4000")), modes=(mode, DUPLEX))
            told = fields_of((await talk.told()).request_headers.response.header_mutation)
            assert told[DESTINATION] == stand.destinations[0]
            if mode == STREAMED:
                await talk.body(CHAT)
                assert (await talk.told()).HasField("request_body")

            second = stand.open()
            await second.head(modes=(mode, DUPLEX))
            assert (await second.told()).immediate_response.status.code == 503

    run(scene())


def test_a_body_before_its_head_ends_the_stream() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.body(CHAT)
            assert await talk.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert stand.running == 0

    run(scene())


def test_a_request_without_a_body_is_answered_by_its_head() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(method="GET", path="/v1/models", fields=(), ends=True)
            listed = (await talk.told()).immediate_response
            assert listed.status.code == 200
            assert json.loads(listed.body)["object"] == "list"

            talk = stand.open()
            await talk.head(ends=True)  # nothing where a chat is expected
            assert (await talk.told()).immediate_response.status.code == 400

    run(scene())


def test_bodies_are_bounded_announced_or_not() -> None:
    async def scene() -> None:
        async with standing(door=ExtprocSettings(body_bytes=1000)) as stand:
            talk = stand.open()
            await talk.head(fields=(*JSON, ("content-length", "1001")))
            assert (await talk.told()).immediate_response.status.code == 413

            talk = stand.open()
            await talk.head()
            await talk.body(b"a" * 1001, ends=False)
            assert (await talk.told()).immediate_response.status.code == 413
            assert stand.gateway.server.budget.held_bytes == 0

    run(scene())


def test_a_body_for_which_there_is_never_room_is_told_how_long_one_may_be() -> None:
    async def scene() -> None:
        async with standing() as stand:
            stand.gateway.server.budget.limit_bytes = 1000
            talk = stand.open()
            await talk.head(fields=(*JSON, ("content-length", "800")))
            answer = (await talk.told()).immediate_response
            assert (answer.status.code, b"750 bytes" in answer.body) == (413, True)

    run(scene())


def test_more_streams_than_may_be_are_turned_away_and_health_still_answers() -> None:
    async def scene() -> None:
        async with standing(door=ExtprocSettings(streams=2)) as stand:
            held = [stand.open() for _ in range(2)]
            for talk in held:
                await talk.head()
            await until(lambda: stand.gateway.extproc is not None and stand.gateway.extproc.ongoing == 2)

            assert await stand.open().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await health_of(stand, "") == HealthCheckResponse.SERVING

            held[0].call.cancel()
            await until(lambda: stand.gateway.extproc is not None and stand.gateway.extproc.ongoing == 1)

    run(scene())


def test_how_far_a_stream_is_comes_from_the_log_as_soon_as_bytes_can_be_read_as_tokens() -> None:
    """What the door reports once a second moves adaptive limits, and what outgrows its estimate weighs more."""

    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head()
            await talk.body(STREAM)
            metadata = MessageToDict((await talk.told()).dynamic_metadata)
            door = stand.gateway.extproc
            assert door is not None
            running = door._desk.running
            name = metadata["millgate"]["attempt"]
            attempt = running._leases[name].request
            assert isinstance(attempt, EnvoyAttempt)

            running.heard(LoggedRequest(name, goes_on=True, body_bytes=5000))
            assert attempt.growth() is None, "no answer has said yet how many bytes a token has"
            running.sizes.complete(Usage(5, 100), 10_000, None, streamed=True)

            assert attempt.growth() == ("engine-0", Growth(attempt.number, 50))

    run(scene())


def _issued_by(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    return context


def test_over_tls_it_speaks_http2_to_those_that_trust_it() -> None:
    authority = trustme.CA()
    context = _issued_by(authority)

    async def scene() -> None:
        async with standing(tls=(context, authority.cert_pem.bytes())) as stand:
            talk = stand.open()
            await talk.head()
            await talk.body(STREAM)

            assert fields_of((await talk.told()).request_headers.response.header_mutation)[DESTINATION]

    run(scene())


def test_a_reload_shows_envoys_the_new_certificate_and_keeps_those_that_are_connected() -> None:
    ours, renewed = trustme.CA(), trustme.CA()

    async def asked(stand: Stand) -> str:
        talk = stand.open()
        await talk.head()
        await talk.body(STREAM)
        return fields_of((await talk.told()).request_headers.response.header_mutation)[DESTINATION]

    async def scene() -> None:
        async with standing(tls=(_issued_by(ours), ours.cert_pem.bytes())) as stand:
            assert await asked(stand)
            settings, door = stand.gateway.settings, stand.gateway.extproc
            assert settings.extproc is not None
            assert door is not None
            extproc, port = replace(settings.extproc, ssl=_issued_by(renewed)), door.port
            assert await stand.gateway.adopt(replace(settings, extproc=extproc), stand.core) == ()

            assert await asked(stand)
            async with channel(port, renewed.cert_pem.bytes()) as fresh:
                assert await asked(replace(stand, channel=fresh))
            async with channel(port, ours.cert_pem.bytes()) as stale:
                with pytest.raises(grpc.aio.AioRpcError):
                    await asked(replace(stand, channel=stale))

    run(scene())


def test_what_falls_due_while_an_engine_is_taken_away_may_still_go_there() -> None:
    """Reading the configuration holds the loop: a request that was admitted then was never answered."""

    async def scene() -> None:
        async with standing(max_inflight=1) as stand:
            gateway, door = stand.gateway, stand.gateway.extproc
            assert door is not None
            desk = door._desk
            busy, queued = stand.open(), stand.open()
            for talk in (busy, queued):
                await talk.head()
                await talk.body(STREAM)
            await busy.told()
            await until(lambda: stand.queued == 1)
            due: list[Event] = [Finished(1, 5, 2, released=True)]
            gateway.driver.before_step = lambda: due.pop() if due and "second" in desk.destinations else None
            (engine,) = gateway.settings.engines
            settings = replace(gateway.settings, engines=(replace(engine, name="second", port=1),))
            core = replace(stand.core, engines=(replace(stand.core.engines[0], name="second"),))
            await gateway.adopt(settings, core)
            told = fields_of((await queued.told()).request_headers.response.header_mutation)
            assert told[DESTINATION] == stand.destinations[0]
            assert (due, list(desk.destinations)) == ([], ["second"])

    run(scene())


def test_health_knows_its_names_and_the_drain() -> None:
    async def scene() -> None:
        async with standing() as stand:
            names = ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
            await until(lambda: stand.gateway.ready().ready)
            for name in names:
                assert await health_of(stand, name) == HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health_of(stand, "nobody")
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND

            await stand.gateway.drain()

            told = {name: await health_of(stand, name) for name in names}
            assert told.pop("liveness") == HealthCheckResponse.SERVING
            assert set(told.values()) == {HealthCheckResponse.NOT_SERVING}

    run(scene())


@pytest.mark.parametrize("ending", ["cancel", "half-close"])
def test_a_client_that_leaves_the_queue_is_out_of_it(ending: str) -> None:
    async def scene() -> None:
        async with standing(max_inflight=1) as stand:
            first, second = stand.open(), stand.open()
            await first.head()
            await first.body(STREAM)
            await first.told()
            await second.head()
            await second.body(STREAM)
            await until(lambda: stand.queued == 1)

            if ending == "cancel":
                second.call.cancel()
            else:
                await second.call.done_writing()

            await until(lambda: stand.queued == 0)
            assert stand.outcomes() == {"client_gone": 1}
            assert stand.running == 1

    run(scene())


RESPONSE = json.dumps({"model": "m", "input": "Hello"}).encode()


def test_inv_2_work_in_the_background_is_refused_by_name() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(path="/v1/responses")
            await talk.body(json.dumps({**json.loads(RESPONSE), "background": True}).encode())
            refused = (await talk.told()).immediate_response
            assert (refused.status.code, json.loads(refused.body)["error"]["param"]) == (400, "background")
            assert stand.outcomes() == {}

    run(scene())


@pytest.mark.parametrize("as_text", [True, False])
def test_a_subset_confines_a_request(as_text: bool) -> None:
    async def scene() -> None:
        async with standing(engines=3) as stand:
            wanted = stand.destinations[1:]
            for _ in range(6):
                talk = stand.open()
                await talk.head(subset=",".join(wanted) if as_text else wanted)
                await talk.body(STREAM)
                told = fields_of((await talk.told()).request_headers.response.header_mutation)
                assert told[DESTINATION] in wanted
            loads = [engine.running for engine in stand.gateway.driver.snapshot().engines]
            assert loads == [0, 3, 3]

    run(scene())


@pytest.mark.parametrize("subset", [[], ["10.1.1.1:80"]])
def test_a_subset_without_any_of_our_engines_is_refused(subset: list[str]) -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(subset=subset)
            await talk.body(STREAM)
            assert (await talk.told()).immediate_response.status.code == 503

    run(scene())


@pytest.mark.parametrize(("trusted", "lane"), [(("127.0.0.0/8",), "other"), ((), "interactive")])
def test_an_objective_is_believed_of_trusted_gateways_alone(trusted: tuple[str, ...], lane: str) -> None:
    callers = CallerSettings(trusted_peers=trusted, lanes=("interactive", "other"))

    async def scene() -> None:
        door = ExtprocSettings(objective_lanes={"batch": "other"})
        async with standing(door=door, callers=callers) as stand:
            talk = stand.open()
            await talk.head(fields=(*JSON, ("x-llm-d-inference-objective", "batch")))
            await talk.body(STREAM)
            await talk.told()
            arrived = {each.name: each.arrived for each in stand.gateway.driver.snapshot().lanes}
            assert arrived[lane] == 1

    run(scene())


def test_a_closed_replica_refuses_at_once() -> None:
    async def scene() -> None:
        async with standing() as stand:
            stand.gateway.driver.post(LeaseGranted(inf, 2, closed=True))
            talk = stand.open()
            await talk.head()
            await talk.body(CHAT)
            refused = (await talk.told()).immediate_response

            told = fields_of(refused.headers)
            assert (refused.status.code, told["x-millgate-reason"]) == (503, "no_lease")
            assert (told["x-should-retry"], told["retry-after-ms"]) == ("true", "1000")

    run(scene())


def test_a_refusal_has_the_words_of_both_worlds() -> None:
    async def scene() -> None:
        async with standing(max_inflight=1, max_queue=0) as stand:
            first = stand.open()
            await first.head()
            await first.body(STREAM)
            await first.told()
            talk = stand.open()
            await talk.head(fields=(*JSON, ("x-millgate-ticket", "1")))
            await talk.body(STREAM)
            refused = (await talk.told()).immediate_response

            told = fields_of(refused.headers)
            assert refused.status.code == 503
            assert json.loads(refused.body)["error"]["code"] == "server_is_overloaded"
            assert told["x-millgate-reason"] == "saturated"
            assert told["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            assert float(told["retry-after-ms"]) > 0
            assert told["x-millgate-ticket"]

    run(scene())
