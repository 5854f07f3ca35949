"""Keys, tenants and lanes at the HTTP door, over sockets; what goes on to the engine, and what does not."""

import asyncio
import time
from functools import partial
from hashlib import sha256

import pytest

from gateway.harness import CHAT, Answer, Asked, Stand, chat, run, until
from gateway.stand import core_settings, gating
from millgate.core.events import EngineDown
from millgate.core.settings import LaneSettings
from millgate.http1.server import ServerLimits
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.runtime.guesses import MOST_FAILURES
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.http import DoorSettings
from millgate.servers.http.kept_answers import Keeper

KEY, OTHER, UPSTREAM = "mgk_planted-client-key", "mgk_other-client-key", "sk-planted-engine-key"
LANES = ("interactive", "bulk")
GUARDED = CallerSettings(
    tenants=(
        TenantRule("a", (sha256(KEY.encode()).digest(),), LANES),
        TenantRule("b", (sha256(OTHER.encode()).digest(),)),
    ),
    lanes=LANES,
)
TRUSTING = CallerSettings(tenants=GUARDED.tenants, lanes=LANES, trusted_peers=("127.0.0.0/8",))
SMALL_BODIES = ServerLimits(body_bytes=500_000)
LONG = chat().replace(b"{", b"{" + b" " * 300_000, 1)
CORE = core_settings(lanes=[LaneSettings(name) for name in LANES])


def said(answer: Answer) -> tuple[int, bytes, list[str]]:
    """Return what a caller can tell of a refusal, its own date and id aside."""
    return (
        answer.status,
        answer.body,
        sorted(set(answer.headers) - {"date", "connection", "x-request-id", "request-id"}),
    )


def arrived(stand: Stand) -> dict[str, int]:
    return {lane.name: lane.arrived for lane in stand.snapshot.lanes if lane.arrived}


def test_eight_greedy_connections_of_one_tenant_leave_another_one_unaffected() -> None:
    """Each announces the largest body there may be and sends as much of it as is taken."""

    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE, byte_budget=2_000_000, server=SMALL_BODIES) as stand:
            budget = stand.gateway.server.budget
            head = b"POST %b HTTP/1.1\r\nHost: gate\r\nContent-Type: application/json\r\n" % CHAT
            head += b"Authorization: Bearer %b\r\nContent-Length: 500000\r\n\r\n" % KEY.encode()
            greedy = [await stand.client() for _ in range(8)]
            for client in greedy:
                client.writer.write(head)
            assert (await stand.ask(LONG, authorization=f"Bearer {OTHER}")).status == 200
            for client in greedy:
                client.writer.write(b" " * 499_999)
            await until(lambda: budget.tenants.get("a", 0) >= 499_999)
            answers = [await stand.ask(LONG, authorization=f"Bearer {OTHER}") for _ in range(8)]
            assert [answer.status for answer in answers] == [200] * 8
            assert budget.tenants["a"] <= 1_000_000
            for client in greedy:
                client.leave()
            await until(lambda: budget.held_bytes == 0)
            assert (budget.tenants, budget.peers) == ({}, {})

    run(body())


def test_every_caller_without_a_good_key_gets_the_same_answer_and_reaches_nothing() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            answers = [
                await stand.ask(chat()),
                await stand.ask(chat(), authorization="Bearer wrong"),
                await stand.ask(chat(), authorization="Bearer "),
                await stand.ask(chat(), authorization=f"Bearer {KEY[:-1]}"),
                await stand.ask(chat(), authorization="Bearer " + "x" * 8000),
                await stand.ask(chat(), x_api_key="wrong"),
                await stand.ask(chat(), authorization=f"Bearer {KEY}", x_api_key=OTHER),
                await stand.ask(b"", b"/v1/models", b"GET"),
            ]
            assert {answer.status for answer in answers} == {401}
            assert len({str(said(answer)) for answer in answers}) == 1
            assert answers[0].error["code"] == "invalid_api_key"
            assert answers[0].headers["www-authenticate"] == "Bearer"
            assert answers[0].headers["x-should-retry"] == "false"
            assert (stand.engine.asked, arrived(stand)) == ([], {})
            assert stand.gateway.door.entry.refused == len(answers)

    run(body())


def test_a_key_of_a_megabyte_is_refused_before_it_is_read_whole() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            answer = await stand.ask(chat(), authorization="Bearer " + "x" * 1_000_000)
            assert answer.status == 431
            assert answer.headers["connection"] == "close"

    run(body())


def test_a_caller_is_refused_before_its_body_is_asked_for() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            client = await stand.client()
            client.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 1000\r\nexpect: 100-continue\r\n\r\n"
            )
            assert (await client.answer()).status == 401

    run(body())


@pytest.mark.parametrize("field", ["authorization", "x_api_key"])
def test_a_client_key_stops_here_and_the_engines_own_goes_on(field: str) -> None:
    async def body() -> None:
        address = {"api_key": UPSTREAM}
        async with gating(callers=GUARDED, core=CORE, address=address) as stand:
            sent = {field: KEY if field == "x_api_key" else f"Bearer {KEY}"}
            assert (await stand.ask(chat(), CHAT, b"POST", **sent)).status == 200
            assert (await stand.ask(b"", b"/v1/models", b"GET", **sent)).status == 200
            for asked in stand.engine.asked:
                assert asked.headers["authorization"] == f"Bearer {UPSTREAM}"
                assert KEY not in str(asked.headers)

    run(body())


def test_a_client_key_goes_nowhere_where_the_engine_has_none() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            assert (await stand.ask(chat(), authorization=f"Bearer {KEY}", x_api_key=KEY)).status == 200
            assert KEY not in str(stand.engine.asked[0].headers)

    run(body())


def test_an_anthropic_client_is_replaced_in_its_own_field_too() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE, address={"api_key": UPSTREAM}) as stand:
            fields = {"x_api_key": KEY, "anthropic_version": "2023-06-01"}
            assert (await stand.ask(chat(), CHAT, b"POST", **fields)).status == 200
            assert stand.engine.asked[0].headers["x-api-key"] == UPSTREAM

    run(body())


def test_without_tenants_a_credential_passes_untouched_or_is_replaced() -> None:
    async def body() -> None:
        for settings in (CallerSettings(), CallerSettings(open_tenants=True)):
            async with gating(callers=settings) as stand:
                assert (await stand.ask(chat(), authorization="Bearer theirs")).status == 200
                assert stand.engine.asked[0].headers["authorization"] == "Bearer theirs"
        async with gating(address={"api_key": UPSTREAM}) as stand:
            assert (await stand.ask(chat(), authorization="Bearer theirs")).status == 200
            assert stand.engine.asked[0].headers["authorization"] == f"Bearer {UPSTREAM}"

    run(body())


def test_the_lane_is_the_keys_choice_and_headers_of_strangers_are_dropped_and_counted() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            mine = {"authorization": f"Bearer {KEY}"}
            await stand.ask(chat(), CHAT, b"POST", **mine)
            await stand.ask(chat(), CHAT, b"POST", **mine, x_millgate_lane="bulk")
            await stand.ask(
                chat(), authorization=f"Bearer {OTHER}", x_millgate_lane="bulk", x_millgate_tenant="a"
            )
            assert arrived(stand) == {"interactive": 2, "bulk": 1}
            assert stand.gateway.door.entry.callers.spoofed == 2
            assert not any("millgate" in name for asked in stand.engine.asked for name in asked.headers)

    run(body())


def test_a_trusted_peer_speaks_for_its_callers() -> None:
    async def body() -> None:
        async with gating(callers=TRUSTING, core=CORE) as stand:
            assert (await stand.ask(chat(), x_millgate_tenant="b", x_millgate_lane="bulk")).status == 200
            assert (await stand.ask(chat(), x_millgate_tenant="nobody")).status == 401
            assert arrived(stand) == {"bulk": 1}

    run(body())


def test_a_peer_that_keeps_guessing_is_told_to_stop_and_a_good_key_still_passes() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            client = await stand.client()
            for _ in range(MOST_FAILURES):
                client.ask(b"", b"/v1/models", b"GET")
                assert (await client.answer()).status == 401
            client.ask(b"", b"/v1/models", b"GET")
            stopped = await client.answer()
            assert stopped.status == 429
            assert 1 <= int(stopped.headers["retry-after"]) <= 60
            assert (await stand.ask(chat(), authorization=f"Bearer {KEY}")).status == 200

    run(body())


def test_a_key_that_a_reload_takes_away_while_the_body_comes_is_refused_then() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            client = await stand.client()
            payload = chat()
            client.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
                % (KEY.encode(), len(payload))
                + payload[:1]
            )
            await until(lambda: stand.gateway.server.budget.held_bytes > 0)
            stand.gateway.door.entry.replace(CallerSettings(tenants=GUARDED.tenants[1:], lanes=LANES))
            client.writer.write(payload[1:])
            assert (await client.answer()).status == 401
            assert stand.engine.asked == []

    run(body())


def test_the_metrics_page_counts_callers_fields_and_the_service() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            await stand.ask(chat())
            await stand.ask(chat(), authorization=f"Bearer {OTHER}", x_millgate_tenant="a")
            assert stand.gateway.admin is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.admin.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            page = (await reader.read()).decode()
            writer.close()
            for line in (
                "millgate_door_refused_callers_total 1.0",
                "millgate_door_spoofed_fields_total 1.0",
                "millgate_config_reload_success 1.0",
                "millgate_config_reloads_total 0.0",
                "millgate_door_body_limit_bytes 2.56e+08",
                "millgate_log_lines_dropped_total 0.0",
            ):
                assert f"\n{line}\n" in page
            assert "millgate_loop_lag_seconds " in page

    run(body())


def test_a_caller_without_a_key_is_refused_in_anthropics_words_on_anthropics_paths() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            for path, method in ((b"/v1/messages", b"POST"), (b"/v1/models", b"GET")):
                answer = await stand.ask(
                    b"{}", path, method, x_api_key="wrong", anthropic_version="2023-06-01"
                )
                said = answer.json()
                assert (answer.status, said["error"]["type"]) == (401, "authentication_error")
                assert said["request_id"] == answer.headers["request-id"]

    run(body())


def test_a_kept_response_is_its_tenants_alone() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"id":"resp_1","status":"completed"}')

    async def body() -> None:
        async with gating(script, callers=GUARDED, core=CORE) as stand:
            made = await stand.ask(b'{"input":"hi"}', b"/v1/responses", authorization=f"Bearer {KEY}")
            assert made.status == 200
            for key, status in ((KEY, 200), (OTHER, 404)):
                got = await stand.ask(b"", b"/v1/responses/resp_1", b"GET", authorization=f"Bearer {key}")
                assert got.status == status
            assert len(stand.engine.asked) == 2

    run(body())


def test_a_request_that_goes_on_from_another_tenants_answer_reaches_no_engine() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"id":"resp_1","status":"completed"}')

    async def body() -> None:
        async with gating(script, callers=GUARDED, core=CORE) as stand:
            await stand.ask(b'{"input":"hi"}', b"/v1/responses", authorization=f"Bearer {KEY}")
            for key, field, status in (
                (KEY, '"previous_response_id":"resp_1"', 200),
                (OTHER, '"previous_response_id":"resp_1"', 404),
                (OTHER, '"conversation":{"id":"resp_1"}', 404),
                (KEY, '"conversation":"conv_never_seen"', 404),
                (KEY, '"conversation":{"id":"conv_theirs","id":"resp_1"}', 404),
            ):
                asked = b'{"input":"hi",%b}' % field.encode()
                answer = await stand.ask(asked, b"/v1/responses", authorization=f"Bearer {key}")
                assert answer.status == status
                assert status == 200 or answer.error["code"] == "not_found"
            assert len(stand.engine.asked) == 2

    run(body())


def test_nor_does_a_count_of_what_such_a_request_would_read() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"id":"resp_1","status":"completed"}')

    async def body() -> None:
        async with gating(script, callers=GUARDED, core=CORE) as stand:
            await stand.ask(b'{"input":"hi"}', b"/v1/responses", authorization=f"Bearer {KEY}")
            going_on = b'{"input":"hi","previous_response_id":"resp_1"}'
            for key, asked, status in (
                (KEY, b'{"input":"hi"}', 200),
                (OTHER, b'{"input":"hi"}', 200),
                (KEY, going_on, 200),
                (OTHER, going_on, 404),
                (OTHER, going_on.replace(b"_id", b"_i\\u0064"), 404),
                (OTHER, b" " * LONG_BYTES + going_on, 413),
                (KEY, b"[", 400),
            ):
                answer = await stand.ask(asked, b"/v1/responses/input_tokens", authorization=f"Bearer {key}")
                assert answer.status == status, asked[-60:]
            assert len(stand.engine.asked) == 4

    run(body())


def test_a_request_waits_a_moment_for_what_another_process_may_just_tell_of_a_stored_answer() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            kept, told = stand.gateway.door.kept_answers, []
            kept.on_new = lambda answer_id, _keeper: told.append(answer_id)
            keeper = Keeper(stand.snapshot.engines[0].name, "a")
            for number, (path, method) in enumerate(
                ((b"/v1/responses", b"POST"), (b"/v1/responses/resp_1", b"GET"))
            ):
                asked = (
                    b'{"input":"hi","previous_response_id":"resp_%d"}' % number if method == b"POST" else b""
                )
                add = partial(kept.add, f"resp_{number}", keeper, is_news=False)
                asyncio.get_running_loop().call_later(0.003, add)
                answer = await stand.ask(asked, path, method, authorization=f"Bearer {KEY}")
                assert answer.status == 200
            assert told == []

            leaving = await stand.client()
            leaving.ask(b"", b"/v1/responses/resp_9", b"GET", {"authorization": f"Bearer {KEY}"})
            leaving.leave()
            unknown = await stand.ask(b"", b"/v1/responses/resp_9", b"GET", authorization=f"Bearer {KEY}")
            assert unknown.status == 404
            assert len(stand.engine.asked) == 2

    run(body())


def test_after_a_restart_a_stored_answer_is_refused_to_every_tenant_but_not_where_there_is_one() -> None:
    async def body() -> None:
        for callers, status in (
            (GUARDED, 404),
            (CallerSettings(open_tenants=True), 404),
            (CallerSettings(), 200),
        ):
            async with gating(callers=callers, core=CORE) as stand:  # has seen no answer of before
                going_on = b'{"input":"hi","previous_response_id":"resp_1"}'
                for sent, path, method in (
                    (going_on, b"/v1/responses", b"POST"),
                    (going_on, b"/v1/responses/input_tokens", b"POST"),
                    (b"", b"/v1/responses/resp_1", b"GET"),
                    (b"", b"/v1/responses/resp_1", b"DELETE"),
                    (b"", b"/v1/responses/resp_1/cancel", b"POST"),
                    (b"", b"/v1/responses/resp_1/input_items", b"GET"),
                ):
                    answer = await stand.ask(sent, path, method, authorization=f"Bearer {KEY}")
                    assert answer.status == status, (path, method)
                assert bool(stand.engine.asked) is (status == 200)

    run(body())


def test_a_load_tool_finds_the_gate_healthy_without_a_key_while_an_engine_is_up() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            healthy = await stand.ask(b"", b"/health", b"GET")
            assert (healthy.status, healthy.body) == (200, b"")
            client = await stand.client()
            client.ask(b"", b"/health", b"HEAD")
            looked = await client.answer()
            assert (looked.status, looked.body) == (200, b"")
            name = stand.snapshot.engines[0].name
            stand.gateway.driver.post(EngineDown(name))
            assert (await stand.ask(b"", b"/health", b"GET")).status == 503
            assert (stand.engine.asked, arrived(stand)) == ([], {})

    run(body())


def test_where_it_is_opened_healthz_says_that_the_process_lives_whatever_its_engines_and_its_loop_do() -> (
    None
):
    async def body() -> None:
        async with gating(
            callers=GUARDED, core=CORE, door=DoorSettings(pages=frozenset({b"/healthz"}))
        ) as stand:
            stand.gateway.driver.post(EngineDown(stand.snapshot.engines[0].name))
            stand.gateway.door.lag.stop()
            stand.gateway.door.lag.overloaded = True
            alive = await stand.ask(b"", b"/healthz", b"GET")
            assert (alive.status, alive.body) == (200, b"ok\n")
        async with gating(core=CORE) as closed:
            assert (await closed.ask(b"", b"/healthz", b"GET")).status == 404

    run(body())


def test_a_body_behind_a_question_for_health_is_not_received_as_no_key_was_shown() -> None:
    """Eight strangers held the bytes of all tenants so: the path needs no key, and its body was waited for."""

    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE, byte_budget=2_000_000, server=SMALL_BODIES) as stand:
            for framing in (b"Content-Length: 400000", b"Transfer-Encoding: chunked"):
                for method in (b"GET", b"HEAD"):
                    client = await stand.client()
                    client.writer.write(
                        b"%b /health HTTP/1.1\r\nHost: gate\r\n%b\r\n\r\n" % (method, framing)
                    )
                    looked = await client.head()
                    assert (looked.status, looked.headers["connection"]) == (200, "close")
                    client.writer.write(b"61a80\r\n" + b" " * 399_000)
                    await until(lambda: stand.gateway.server.budget.held_bytes == 0)
                    client.leave()
            assert (await stand.ask(LONG, authorization=f"Bearer {KEY}")).status == 200

    run(body())


@pytest.mark.parametrize(
    ("path", "page", "kind"),
    [
        (b"/version", b'{"version":"0.32.0"}', "application/json"),
        (b"/metrics", b"vllm:num_requests_running 1.0\n", "text/plain"),
        (b"/ping", b"", "text/plain"),
    ],
)
def test_an_engines_page_about_itself_is_shown_where_the_operator_says_so(
    path: bytes, page: bytes, kind: str
) -> None:
    async def show(asked: Asked) -> None:
        asked.reply(page, kind=kind)

    async def body() -> None:
        opened = DoorSettings(pages=frozenset((path,)))
        async with gating(show, callers=GUARDED, core=CORE, door=opened) as stand:
            stand.engine.metrics = page  # which it serves beside its script
            assert (await stand.ask(b"", path, b"GET")).status == 401
            got = await stand.ask(b"", path, b"GET", authorization=f"Bearer {KEY}")
            assert (got.status, got.body) == (200, page)
            assert (await stand.ask(b"{}", path, authorization=f"Bearer {KEY}")).status == 405
            assert arrived(stand) == {}
        async with gating(show, callers=GUARDED, core=CORE) as stand:
            assert (await stand.ask(b"", path, b"GET", authorization=f"Bearer {KEY}")).status == 404
            assert not stand.engine.asked

    run(body())


def test_options_names_the_methods_of_a_path_and_reaches_no_engine() -> None:
    async def body() -> None:
        async with gating(callers=GUARDED, core=CORE) as stand:
            for path, allowed in ((CHAT, "POST, OPTIONS"), (b"/v1/models", "GET, OPTIONS")):
                answer = await stand.ask(b"", path, b"OPTIONS")
                assert (answer.status, answer.headers["allow"]) == (200, allowed)
                assert "access-control-allow-origin" not in answer.headers
            assert (await stand.ask(b"", b"/nowhere", b"OPTIONS")).status == 404
            assert not stand.engine.asked

    run(body())


def test_a_key_is_refused_from_its_end_on_also_by_a_connection_that_has_used_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest, end = sha256(KEY.encode()).digest(), time.time() + 3600.0
    rules = (TenantRule("a", (digest,), LANES, expiries={digest: end}), GUARDED.tenants[1])

    async def body() -> None:
        async with gating(callers=CallerSettings(tenants=rules, lanes=LANES), core=CORE) as stand:
            client = await stand.client()
            for status in (200, 200, 401):
                if status == 401:
                    monkeypatch.setattr("millgate.runtime.callers.time.time", lambda: end)
                client.ask(chat(), headers={"authorization": f"Bearer {KEY}"})
                assert (await client.answer()).status == status
            client.leave()
            assert (await stand.ask(chat(), authorization=f"Bearer {OTHER}")).status == 200

    run(body())
