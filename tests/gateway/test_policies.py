"""The policies as clients meet them: headers of quotas, tickets, shorter answers, and a provider's limits."""

import asyncio
import json

import pytest

from gateway.harness import Asked, answer, answer_whole, chat, event, run, standing, until
from millgate.core.settings import AccountSettings, LaneSettings, QuotaLimit, QuotaRule
from millgate.core.words import QuotaKind
from millgate.servers.http import DoorSettings


def test_answers_and_refusals_tell_what_is_left_of_a_quota() -> None:
    async def body() -> None:
        rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 2))
        async with standing(quotas=(rule,)) as stand:
            first, second, third = [await stand.ask(chat(str(number))) for number in range(3)]
            assert (first.status, first.headers["x-ratelimit-limit-requests"]) == (200, "2")
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            assert second.headers["x-ratelimit-remaining-requests"] == "0"
            assert (third.status, third.headers["x-millgate-reason"]) == (429, "quota")
            assert third.headers["x-ratelimit-remaining-requests"] == "0"
            assert 25_000 <= int(third.headers["retry-after-ms"]) <= 30_000
            assert third.error["code"] == "rate_limit_exceeded"

    run(body())


def test_a_ticket_is_given_to_who_asks_and_buys_the_old_age_once() -> None:
    async def queued(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        lane = LaneSettings("interactive", max_queue=0)
        async with standing(queued, max_inflight=1, lane=lane) as stand:
            busy = await stand.client()
            busy.ask(chat("long", stream=True))
            await until(lambda: stand.snapshot.engines[0].running == 1)
            plain = await stand.ask(chat("a"))
            asking = await stand.ask(chat("b"), x_millgate_ticket="1")
            assert "x-millgate-ticket" not in plain.headers
            ticket = asking.headers["x-millgate-ticket"]
            before = stand.snapshot.retries.recognised
            await stand.ask(chat("another body"), x_millgate_ticket=ticket)
            assert stand.snapshot.retries.recognised == before + 1
            await stand.ask(chat("a third body"), x_millgate_ticket=ticket)
            assert stand.snapshot.retries.recognised == before + 1, "once"
            await stand.ask(chat("a fourth body"), x_millgate_ticket="forged" * 8)
            assert stand.snapshot.retries.recognised == before + 1

    run(body())


def test_a_shorter_answer_is_announced_and_asked_for() -> None:
    async def whole_when_told(asked: Asked) -> None:
        if b"long" in asked.body:
            await asked.hung_up(60)
        else:
            asked.reply(answer())

    async def body() -> None:
        lane = LaneSettings("interactive", clip_tokens=32, max_queue=0, max_queue_tokens=None)
        door = DoorSettings(clips=True)
        async with standing(whole_when_told, max_inflight=4, lane=lane, door=door) as stand:
            engine = stand.gateway.driver._governor._knowledge.engines.by_name["engine"]  # type: ignore[attr-defined]
            engine.gate.kv_limit = 1_000
            client = await stand.client()
            client.ask(chat("long", stream=True, max_tokens=900))
            await until(lambda: stand.snapshot.engines[0].running == 1)
            kept = await stand.ask(chat("tool", max_tokens=500, tools=[{"type": "function"}]))
            cut = await stand.ask(chat("short", max_tokens=500))

            assert (cut.status, cut.headers["x-millgate-reshaped"]) == (200, "clip=32")
            assert json.loads(stand.engine.asked[-1].body)["max_tokens"] == 32
            assert kept.status == 503

    run(body())


def test_a_provider_that_says_it_is_empty_is_sent_nothing_more() -> None:
    async def last_one(asked: Asked) -> None:
        asked.reply(
            answer(),
            x_ratelimit_limit_requests="600",
            x_ratelimit_remaining_requests="0",
            x_ratelimit_reset_requests="1m0s",
        )

    async def body() -> None:
        account = AccountSettings((QuotaLimit(QuotaKind.RPM, 600),))
        lane = LaneSettings("interactive", max_queue=0)
        async with standing(last_one, account=account, lane=lane) as stand:
            assert (await stand.ask(chat("first"))).status == 200
            refused = await stand.ask(chat("second"))
            assert refused.status == 503
            assert int(refused.headers["retry-after-ms"]) >= 100

    run(body())


@pytest.mark.parametrize("stream", [False, True])
def test_a_tenant_is_told_its_own_quota_and_not_its_providers_account(stream: bool) -> None:
    async def said(asked: Asked) -> None:
        body, kind = (event("hi") + event(finish="stop") + b"data: [DONE]\n\n", "text/event-stream")
        if not stream:
            body, kind = answer(), "application/json"
        asked.reply(
            body,
            kind=kind,
            x_ratelimit_remaining_requests="598",
            x_ratelimit_remaining_tokens="99",
            anthropic_ratelimit_requests_remaining="598",
        )

    async def body() -> None:
        rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 2))
        async with standing(said, quotas=(rule,)) as stand:
            told = (await stand.ask(chat("first", stream=stream))).headers
            assert {name: told[name] for name in told if "ratelimit" in name and "reset" not in name} == {
                "x-ratelimit-limit-requests": "2",
                "x-ratelimit-remaining-requests": "1",
            }
        async with standing(said) as stand:
            told = (await stand.ask(chat("first", stream=stream))).headers
            assert told["x-ratelimit-remaining-requests"] == "598", "without quotas it passes"

    run(body())


def test_a_provider_is_asked_nothing_but_requests() -> None:
    async def body() -> None:
        account = AccountSettings((QuotaLimit(QuotaKind.RPM, 600),))
        async with standing(answer_whole, account=account) as stand:
            await stand.ask(chat("first"))
            await asyncio.sleep(1.2)  # its health and its gauges would have been read by now
            assert [each.line.split()[1] for each in stand.engine.asked] == [b"/v1/chat/completions"]
            assert stand.engine.scrapes == 0

    run(body())


def test_one_clients_wrong_key_and_unknown_model_shut_the_account_for_no_other() -> None:
    async def judged(asked: Asked) -> None:
        wrong_key = asked.headers.get("authorization") == "Bearer wrong"
        if wrong_key or b"unknown" in asked.body:
            asked.reply(b'{"error":{"message":"no"}}', 401 if wrong_key else 404)
        else:
            await answer_whole(asked)

    async def body() -> None:
        account = AccountSettings((QuotaLimit(QuotaKind.RPM, 60_000),))
        async with standing(judged, account=account) as stand:
            for number in range(12):
                assert (await stand.ask(chat(f"a {number}"), authorization="Bearer wrong")).status == 401
                assert (await stand.ask(chat(f"unknown {number}"))).status == 404
            assert (await stand.ask(chat("good"))).status == 200
            lane = stand.snapshot.lanes[0]
            assert {word.value: count for word, count in lane.outcomes if count} == {
                "bad_request": 24,
                "good": 1,
            }

    run(body())
