"""An account offered ten times what it grants: the demo's parts, its twin in virtual time, and one short real run."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from lab.demos.provider import ProviderOptions, measure
from lab.demos.provider_emulator import ProviderSetup, counts, provider_of, setup_of
from lab.demos.provider_stage import ProviderStage, gate_config
from lab.demos.provider_users import AccountUser, UserAccounts, write_body
from lab.provider.twin import Outage, ProviderTraffic, Twin

from gateway.harness import Asked, chat, run, standing
from millgate.config.schema import Config
from millgate.core.events import Failed
from millgate.core.quotas.bucket import Sizes
from millgate.core.settings import AccountSettings, QuotaLimit
from millgate.core.state.provider import Provider as Account
from millgate.core.words import FailureKind, OutputCharge, QuotaKind, Sent
from millgate.demos.connection import AttemptAnswer, Endpoint, GateAddress
from millgate.demos.showing import Show
from millgate.demos.users import Wish
from millgate.runtime.verdicts import named_limit

DOOR = GateAddress("127.0.0.1", 1)


def config_of(account: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "engines": [
                {"name": "p", "url": "http://provider.example", "max_inflight": 1000, "account": account}
            ]
        }
    )


@pytest.mark.parametrize("used_share", [0.0, 1.0])
@pytest.mark.parametrize(
    ("account", "asked_per_s"),
    [
        ({"rpm": 300}, 50.0),
        ({"itpm": 90_000}, 50.0),
        ({"otpm": 30_000, "output": "produced"}, 50.0),
        ({"otpm": 30_000, "output": "max_tokens"}, 50.0),
        ({"tpm": 120_000, "output": "max_tokens"}, 50.0),
        ({"tpm": 120_000, "output": "larger"}, 50.0),
        ({"rpm": 300, "itpm": 400_000, "otpm": 80_000, "output": "produced"}, 50.0),
        ({"rpm": 2000, "itpm": 90_000, "otpm": 80_000, "output": "produced"}, 50.0),
        ({"rpm": 2000, "itpm": 400_000, "otpm": 30_000, "output": "produced"}, 50.0),
        ({"rpm": 500, "rpd": 100_000, "tpm": 120_000, "output": "larger"}, 50.0),
        ({"rpm": 500, "rpd": 200_000, "output": "produced"}, 50.0),
    ],
)
def test_ten_times_the_account_is_used_up_and_hardly_refused(
    account: dict[str, Any], asked_per_s: float, used_share: float
) -> None:
    twin = Twin(config_of(account), ProviderTraffic(asked_per_s), seed=3, used_share=used_share)
    twin.run_until(20.0)
    twin.count_anew()
    twin.run_until(40.0)
    assert twin.counts.refused_share < 0.005
    assert twin.used_share >= 0.95
    assert twin.counts.yields.total() > 2 * twin.counts.answered


@pytest.mark.parametrize("kind", [FailureKind.CONNECT, FailureKind.REFUSED])
def test_a_provider_that_fails_is_tried_singly_and_used_again_soon_after(kind: FailureKind) -> None:
    twin = Twin(config_of({"rpm": 600}), ProviderTraffic(5.0), seed=1, outage=Outage(20.0, 40.0, kind))
    twin.run_until(40.0)
    assert 3 <= twin.counts.failed <= 10
    twin.count_anew()
    twin.run_until(46.5)
    assert twin.counts.failed == 0
    assert twin.counts.answered > 5


def test_hints_of_output_charged_as_made_count_the_line_before_them() -> None:
    """What such a limit reserves at the permit is the expected output; nothing would make every hint the shortest."""
    limit = {"otpm": 60_000, "output": "produced"}
    twin = Twin(config_of(limit), ProviderTraffic(100.0), seed=2, used_share=1.0)
    twin.run_until(30.0)
    assert twin.counts.promised < 0.1 * twin.counts.yields.total()


SIZES = Sizes(1, 1)


def account() -> Account:
    return Account(AccountSettings((QuotaLimit(QuotaKind.RPM, 6000),)), 0.0)


@pytest.mark.parametrize("over_limit", [True, False])
def test_a_burst_of_refusals_leaves_the_breaker_closed(over_limit: bool) -> None:
    provider = account()
    for attempt in range(50):
        provider.started(attempt, SIZES, 1.0)
    for attempt in range(50):
        refused = Failed(attempt, FailureKind.REFUSED, Sent.REQUEST, 2.0, over_limit)
        provider.failed(refused, 1.0, 0, 1.5)
    assert not provider.breaker.is_open
    assert provider.wait_s(SIZES, 1.5) >= 2.0


def test_after_an_overload_one_request_tries_until_its_first_tokens() -> None:
    provider = account()
    provider.started(1, SIZES, 1.0)
    provider.failed(Failed(1, FailureKind.REFUSED, Sent.REQUEST, 1.0), 1.0, 0, 1.5)
    assert provider.wait_s(SIZES, 3.0) == 0.0
    provider.started(2, SIZES, 3.0)
    assert provider.wait_s(SIZES, 3.0) > 0.0
    provider.grew(2, 5, 3.5)
    assert provider.wait_s(SIZES, 3.5) == 0.0


def test_a_trial_whose_answer_takes_long_keeps_nobody_waiting_for_ever() -> None:
    provider = account()
    provider.started(1, SIZES, 1.0)
    provider.failed(Failed(1, FailureKind.CONNECT, Sent.NONE), 1.0, 0, 1.5)
    provider.started(2, SIZES, 3.0)
    assert provider.wait_s(SIZES, 7.9) > 0.0
    assert provider.wait_s(SIZES, 8.0) == 0.0
    provider.started(3, SIZES, 8.0)
    assert provider.wait_s(SIZES, 8.0) == 0.0


def test_a_new_account_is_not_charged_for_what_runs_on_the_one_before() -> None:
    limits = AccountSettings((QuotaLimit(QuotaKind.OTPM, 6000, output=OutputCharge.PRODUCED),))
    new, untouched = Account(limits, 0.0), Account(limits, 0.0)
    new.answered(1, 10, 0, 1000, 1.0)
    for provider in (new, untouched):
        provider.started(2, SIZES, 2.0)
        provider.failed(Failed(2, FailureKind.REFUSED, Sent.REQUEST, 1.0, over_limit=True), 2.0, 0, 2.5)
    assert new.wait_s(SIZES, 3.0) == untouched.wait_s(SIZES, 3.0) > 0.0


def test_one_answer_that_fails_stops_nobody_else() -> None:
    provider = account()
    provider.started(1, SIZES, 1.0)
    provider.failed(Failed(1, FailureKind.STATUS, Sent.REQUEST), 1.0, 0, 1.5)
    assert provider.wait_s(SIZES, 1.5) == 0.0


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": {"type": "requests", "message": "Rate limit reached"}}', QuotaKind.RPM),
        (b'{"error": {"type": "tokens", "message": "Limit 10000, Requested 3082"}}', QuotaKind.TPM),
        (b'{"error": {"message": "Rate limit reached on requests per day (RPD)"}}', QuotaKind.RPD),
        (b'{"message": "exceed the rate limit of 40,000 input tokens per minute"}', QuotaKind.ITPM),
        (b'{"message": "rate limit of 8,000 output tokens per minute"}', QuotaKind.OTPM),
        (b'{"message": "Requests to the operation have exceeded token rate limit"}', QuotaKind.TPM),
        (b'{"message": "Requests to the operation have exceeded call rate limit"}', QuotaKind.RPM),
        (b'{"error": {"message": "slow down"}}', None),
        (b" " * 5000 + b"output tokens", None),
        (b"", None),
    ],
)
def test_the_limit_that_a_429_names_is_read(body: bytes, kind: QuotaKind | None) -> None:
    assert named_limit(body) is kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": ()}, "limits: give at least one"),
        ({"limits": (("rpm", 1), ("rpm", 2))}, "limits: give at least one, each kind once"),
        ({"limits": (("rps", 1),)}, "limits: must be one of rpm"),
        ({"limits": (("rpm", 0),)}, "limits.rpm: must be from 1"),
        ({"output": "free"}, "output: must be one of"),
        ({"offered": 0.0}, "offered: must be from"),
        ({"used_share": 1.5}, "used_share: must be from"),
        ({"limits": (("rpm", 60_000),)}, "offered x limit, requests a second: must be from"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProviderOptions(**options)


def test_limits_that_only_one_provider_has_are_asked_in_its_dialect() -> None:
    assert ProviderOptions().path == "/v1/chat/completions"
    assert ProviderOptions((("otpm", 60_000),), "produced").path == "/v1/messages"


def test_the_offered_load_is_a_multiple_of_the_binding_limit() -> None:
    assert ProviderOptions().asked_per_s == 100.0
    assert ProviderOptions((("otpm", 60_000), ("rpm", 6)), "produced").asked_per_s == 100.0
    assert ProviderOptions((("tpm", 240_000),), "larger").asked_per_s == 100.0


def test_a_setup_survives_the_command_line_and_is_what_the_gate_is_told() -> None:
    setup = ProviderSetup((("otpm", 60_000), ("rpm", 600)), "produced", 1.0)
    assert setup_of(setup.as_argument()) == setup
    engine = gate_config(DOOR, setup)["engines"][0]
    assert engine["account"] == {"otpm": 60_000, "rpm": 600, "output": "produced"}
    assert counts(provider_of(setup))["asked"] == 0


def test_a_hint_is_counted_as_kept_only_when_its_user_was_answered() -> None:
    class Scripted(Endpoint):
        def __init__(self, answers: list[AttemptAnswer]) -> None:
            super().__init__(DOOR)
            self.answers = answers

        async def ask(self, body: bytes, patience_s: float) -> AttemptAnswer:
            return self.answers.pop(0)

    async def live(answers: list[AttemptAnswer]) -> UserAccounts:
        import random

        books = UserAccounts()
        user = AccountUser(Scripted(answers), random.Random(1), books)
        await user.live(write_body(1, Wish(0.0, 10, 5), max_tokens=9))
        return books

    wait = AttemptAnswer(503, hint_s=0.001, reason="too_late")
    kept = asyncio.run(live([wait, AttemptAnswer(200)]))
    broken = asyncio.run(live([wait, wait, AttemptAnswer(503, retry=False)]))
    assert (kept.promised, kept.kept, kept.answered) == (1, 1, 1)
    assert (broken.promised, broken.kept, broken.answered) == (2, 0, 0)
    assert broken.refusals == Counter({"too_late": 2, "provider 503": 1})


def test_a_short_real_run_stays_below_the_limit() -> None:
    options = ProviderOptions((("rpm", 300),), offered=4.0, duration_s=2.0, warmup_s=1.0, used_share=0.0)
    with ProviderStage() as stage:
        result = measure(options, stage, Show(as_json=True))
    assert result.refused == {}
    assert result.sent > 0
    assert result.books.answered > 0


def test_the_limit_that_a_429_names_is_lowered_behind_the_real_door() -> None:
    async def refuse(asked: Asked) -> None:
        error = {"type": "rate_limit_error", "message": "limit of 8,000 output tokens per minute"}
        asked.reply(json.dumps({"error": error}).encode(), status=429, retry_after="5")

    async def body() -> None:
        limits = (QuotaLimit(QuotaKind.RPM, 60), QuotaLimit(QuotaKind.OTPM, 600_000))
        async with standing(refuse, account=AccountSettings(limits)) as stand:
            assert (await stand.ask(chat("first"))).status == 429
            provider = stand.gateway.driver._governor._knowledge.engines.by_name["engine"].provider  # type: ignore[attr-defined]
            now, sizes = time.monotonic(), Sizes(1, 1)
            left = {
                limit.kind: max(0.0, bucket.level(now)) for limit, bucket, _ in provider.account.shared(sizes)
            }
        assert left[QuotaKind.OTPM] == 0.0
        assert left[QuotaKind.RPM] > 0.0

    run(body())
