"""A team over its budget, its rate or its streams is told which limit, how much is left, and when there is enough."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

from gateway.harness import Asked, chat, run, standing
from gateway.stand import core_settings, gating
from millgate.core.decisions import QuotaState, Yield
from millgate.core.settings import QuotaLimit, QuotaRule, Settings
from millgate.core.words import Counted, QuotaKind, Reason
from millgate.dialects import DIALECTS
from millgate.servers.requests.response_headers import refusal


async def takes_thousand(asked: Asked) -> None:
    """Answer, and say that it took a thousand tokens."""
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    asked.reply(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())


def test_a_team_that_has_used_up_its_day_hears_what_is_left_and_when_there_is_enough() -> None:
    """It heard that the rate limit is used up and that coming back is of no use: not which, not how much, not until when."""
    budget = QuotaRule("budget", QuotaLimit(QuotaKind.TPD, 2400.0))

    async def body() -> None:
        async with standing(takes_thousand, quotas=(budget,)) as stand:
            for _ in range(2):
                assert (await stand.ask(chat())).status == 200
            got = await stand.ask(chat("word " * 500))
            assert (got.status, got.error["code"]) == (429, "rate_limit_exceeded")
            assert got.headers["x-should-retry"] == "false"
            said = re.fullmatch(
                r"the rate limit is used up: of 2,400 tokens a day 400 are left, and the request needs ([\d,]+);"
                r" there is enough in (\d+h)?\d+m\d+s at the earliest",
                got.error["message"],
            )
            assert said is not None, got.error["message"]
            assert int(said[1].replace(",", "")) > 400
            large = await stand.ask(chat("word " * 50_000))
            assert large.status == 413
            assert re.search(
                r"it needs [\d,]+ tokens with its answer, and no context window or quota here holds more than 2,400; coming",
                large.error["message"],
            )

    run(body())


def _quota(kind: QuotaKind, limit: float, left: float, needed: float, *, retry: bool) -> Yield:
    states = (
        QuotaState("other", QuotaKind.RPM, 60.0, 59.0, 1.0),
        QuotaState("rule", kind, limit, left, 10.0),
    )
    return Yield(1, Reason.QUOTA, 2.5, retry, needed, left, quota=states)


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (
            _quota(QuotaKind.RPM, 60.0, 0.5, 1.0, retry=True),
            "the rate limit is used up: of 60 requests a minute 0 are left, and the request needs 1; come back in 2.5 s",
        ),
        (
            _quota(QuotaKind.RPM, 60.0, 0.9, 1.0, retry=True),
            "the rate limit is used up: of 60 requests a minute 0 are left, and the request needs 1; come back in 2.5 s",
        ),
        (
            _quota(QuotaKind.TPM, 6000.0, 40.0, 140.0, retry=True)._replace(promised=30.0),
            (
                "the rate limit is used up: of 6,000 tokens a minute 40 are left, and the request needs 140;"
                " 30 are promised to clients that were told to come before it; come back in 2.5 s"
            ),
        ),
        (
            _quota(QuotaKind.TPD, 86400.0, 0.0, 7200.0, retry=False),
            (
                "the rate limit is used up: of 86,400 tokens a day 0 are left, and the request needs 7,200;"
                " there is enough in 2h0m0s at the earliest"
            ),
        ),
        (
            _quota(QuotaKind.TPD, 86400.0, 0.0, 7200.0, retry=False)._replace(bound=-3600.0),
            (
                "the rate limit is used up: of 86,400 tokens a day 0 are left, and the request needs 7,200;"
                " there is enough in 3h0m0s at the earliest"
            ),
        ),
        (
            Yield(1, Reason.QUOTA, 0.0, retry=False, value=2.0, bound=1.0),
            "the rate limit is used up; coming back is of no use",
        ),
        (
            Yield(1, Reason.TENANT_LIMIT, 2.5, retry=True, value=8.0, bound=8.0),
            "too many requests are running for this caller: 8 of 8; come back in 2.5 s",
        ),
        (
            Yield(1, Reason.TENANT_LIMIT, 0.5, retry=True, value=0.0, bound=4.0),
            "too many requests are running for this caller; come back in 0.5 s",
        ),
        (
            Yield(1, Reason.TOO_LARGE, 0.0, retry=False, value=12.0, bound=4.0, counted=Counted.STREAMS),
            (
                "the request can never fit the limits that it falls under: it makes 12 sequences (n or best_of times its"
                " prompts), and no engine here runs more than 4 at once; coming back is of no use"
            ),
        ),
        (
            Yield(1, Reason.TOO_LARGE, 0.0, retry=False),
            "the request can never fit the limits that it falls under; coming back is of no use",
        ),
    ],
)
def test_a_refusal_says_its_numbers_in_either_dialect(decision: Yield, said: str) -> None:
    for name in ("openai", "anthropic"):
        _status, _lines, body, _close = refusal(DIALECTS[name], decision, b"id-1")
        assert json.loads(body)["error"]["message"] == said


@pytest.mark.parametrize(
    ("kind", "retry", "is_closed"),
    [
        (QuotaKind.RPD, True, True),
        (QuotaKind.TPD, True, True),
        (QuotaKind.TPD, False, False),
        (QuotaKind.TPM, True, False),
    ],
)
def test_who_is_sent_to_another_replica_for_the_rest_of_a_day_gets_a_new_connection(
    kind: QuotaKind, retry: bool, is_closed: bool
) -> None:
    """A kept connection leads to the same worker, which has nothing left."""
    decision = _quota(kind, 86400.0, 0.0, 7200.0, retry=retry)
    _status, _lines, body, close = refusal(DIALECTS["openai"], decision, b"id-1")
    assert close is is_closed
    assert (b"0 are left here, and" in body) is is_closed


def test_the_bucket_that_was_short_is_the_one_with_so_much_left() -> None:
    decision = _quota(QuotaKind.TPD, 100.0, 0.0, 5.0, retry=False)
    assert decision.short_of is not None
    assert decision.short_of.rule == "rule"
    in_debt = decision._replace(bound=-40.0)
    assert in_debt.short_of is not None
    assert in_debt.short_of.rule == "rule"


def test_a_reload_that_cuts_a_budget_while_a_request_runs_leaves_its_team_what_is_left() -> None:
    """What the request got back in the end was taken for a charge: the team was refused for as long as the cut was deep."""
    release = asyncio.Event()

    async def slow(asked: Asked) -> None:
        await release.wait()
        await takes_thousand(asked)

    def budget(amount: float) -> Settings:
        rule = QuotaRule("budget", QuotaLimit(QuotaKind.TPD, amount))
        return replace(core_settings(), quotas=(rule,))

    async def body() -> None:
        async with gating(slow, core=budget(1_000_000.0)) as stand:
            running = asyncio.ensure_future(stand.ask(chat("word " * 3000, max_tokens=50)))
            await stand.engine.next()
            await stand.gateway.adopt(stand.gateway.settings, budget(20_000.0))
            release.set()
            assert (await running).status == 200
            got = await stand.ask(chat())
            assert got.status == 200
            assert int(got.headers["x-ratelimit-remaining-tokens"]) > 18_000

    run(body())
