"""The provider on a socket: its law, its headers and refusals, in both dialects, streamed and not."""

import asyncio
import http.client
import json
import threading
from typing import Any

import pytest
from lab.provider.law import ProviderLaw
from lab.provider.service import ProviderService

from millgate.core.events import Remaining
from millgate.core.quotas.bucket import Sizes
from millgate.core.settings import QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind
from millgate.dialects.quota_headers import read_quota_headers

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
Answer = tuple[int, dict[str, str], bytes]


def ask(provider: ProviderService, path: str = OPENAI, **body: Any) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=10)
    text = json.dumps({"model": "m", "messages": [], **body}).ljust(400)
    connection.request("POST", path, text, {"content-type": "application/json"})
    answer = connection.getresponse()
    got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return got


def said(answer: Answer) -> dict[QuotaKind, Remaining]:
    headers = [(name.encode(), value.encode()) for name, value in answer[1].items()]
    return {word.kind: word for word in read_quota_headers(headers, 0.0)}


@pytest.mark.parametrize(
    ("limit", "used", "requested", "wait_s"),
    [(10_000, 8_554, 3_082, 9.816), (30_000, 18_928, 11_159, 0.174)],
)
def test_the_law_gives_the_waits_of_published_refusals(
    limit: int, used: int, requested: int, wait_s: float
) -> None:
    tpm = QuotaLimit(QuotaKind.TPM, limit, output=OutputCharge.LARGER)
    law = ProviderLaw([tpm], 0.0, used_share=used / limit)
    verdict = law.ask(Sizes(requested, 0, 0), 0.0)

    assert verdict.wait_s == pytest.approx(wait_s, abs=5e-4)
    assert law.ask(Sizes(requested, 0, 0), verdict.wait_s + 1e-6).refused_by is None


def test_output_charged_as_produced_refuses_at_zero_and_lets_streams_run_on() -> None:
    law = ProviderLaw([QuotaLimit(QuotaKind.OTPM, 600, output=OutputCharge.PRODUCED)], 0.0)
    sizes = Sizes(10, 900, 1000)
    grant = law.grant(sizes, 0.0)
    grant.produce(599, 0.0)
    assert law.ask(sizes, 0.0).refused_by is None
    grant.produce(301, 0.0)

    assert law.ask(sizes, 0.0) == (QuotaKind.OTPM, 30.0, False, 900, 0)
    grant.end(0, 0.0)
    assert law.meters[QuotaKind.OTPM].used(0.0) == 900


def test_estimates_are_corrected_at_the_end_but_for_openais() -> None:
    law = ProviderLaw(
        [
            QuotaLimit(QuotaKind.OTPM, 6000, output=OutputCharge.MAX_TOKENS),
            QuotaLimit(QuotaKind.TPM, 6000, output=OutputCharge.LARGER),
            QuotaLimit(QuotaKind.ITPM, 6000, count_cached=False),
        ],
        0.0,
    )
    grant = law.grant(Sizes(300, 50, 1000), 0.0)
    grant.produce(50, 0.0)
    grant.end(200, 0.0)

    assert {kind: meter.used(0.0) for kind, meter in law.meters.items()} == {
        QuotaKind.OTPM: 50,
        QuotaKind.TPM: 1000,
        QuotaKind.ITPM: 100,
    }


def test_another_client_takes_only_what_is_there() -> None:
    law = ProviderLaw([QuotaLimit(QuotaKind.RPM, 60)], 0.0)
    law.eat(QuotaKind.RPM, 100, 0.0)

    assert law.meters[QuotaKind.RPM].used(0.0) == 60
    assert law.ask(Sizes(1, 1), 0.0).wait_s == 1.0


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
def test_a_whole_answer_tells_usage_and_how_the_account_stands(path: str) -> None:
    limits = [
        QuotaLimit(QuotaKind.RPM, 60),
        QuotaLimit(QuotaKind.ITPM, 60_000),
        QuotaLimit(QuotaKind.OTPM, 8_000),
    ]
    with ProviderService(limits, output_tokens=7, cached_share=0.5) as provider:
        answer = ask(provider, path, max_tokens=100)

    usage = json.loads(answer[2])["usage"]
    assert answer[0] == 200
    assert 7 in (usage.get("completion_tokens"), usage.get("output_tokens"))
    assert 100 in (
        usage.get("prompt_tokens"),
        usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0),
    )
    assert said(answer)[QuotaKind.RPM][:3] == (QuotaKind.RPM, 60, 59)


def test_a_stream_of_openais_ends_with_usage_where_it_was_asked_for() -> None:
    with ProviderService([], output_tokens=5, tpot_s=0.002) as provider:
        _, headers, plain = ask(provider, stream=True)
        _, _, counted = ask(provider, stream=True, stream_options={"include_usage": True})

    assert headers["content-type"].startswith("text/event-stream")
    assert b'"completion_tokens":5' not in plain
    assert b'"completion_tokens":5' in counted
    assert counted.endswith(b"data: [DONE]\n\n")


def test_a_stream_of_anthropics_has_its_named_events() -> None:
    with ProviderService([], output_tokens=3) as provider:
        _, _, body = ask(provider, ANTHROPIC, stream=True, max_tokens=10)

    names = [line.removeprefix(b"event: ") for line in body.splitlines() if line.startswith(b"event: ")]
    assert names[0] == b"message_start"
    assert names[-2:] == [b"message_delta", b"message_stop"]
    assert b'"output_tokens": 3' in body


@pytest.mark.parametrize(
    ("path", "word"), [(OPENAI, b"rate_limit_exceeded"), (ANTHROPIC, b"rate_limit_error")]
)
def test_a_request_too_many_is_refused_with_a_true_hint(path: str, word: bytes) -> None:
    with ProviderService([QuotaLimit(QuotaKind.RPM, 2)]) as provider:
        for _ in range(2):
            assert ask(provider, path, max_tokens=1)[0] == 200
        answer = ask(provider, path, max_tokens=1)

        assert (provider.asked, provider.passed, provider.refused[QuotaKind.RPM]) == (3, 2, 1)
    assert answer[0] == 429
    assert word in answer[2]
    assert 29 <= float(answer[1]["retry-after"]) <= 30
    assert said(answer)[QuotaKind.RPM].remaining == 0


def test_what_can_never_fit_has_no_hint() -> None:
    with ProviderService([QuotaLimit(QuotaKind.TPM, 50)]) as provider:
        status, headers, body = ask(provider, max_tokens=10)

    assert (status, headers.get("retry-after")) == (429, None)
    assert b"too large" in body


@pytest.mark.parametrize(("path", "status"), [(OPENAI, 503), (ANTHROPIC, 529)])
def test_an_overloaded_provider_says_so(path: str, status: int) -> None:
    with ProviderService([]) as provider:
        provider.overload(60.0, hint_s=3.0)
        answer = ask(provider, path)

        assert (answer[0], answer[1]["retry-after"], provider.overloaded) == (status, "3", 1)
        provider.overload(0.0)
        assert ask(provider, path)[0] == 200


def test_counts_begin_anew_and_the_bucket_stays_as_it_is() -> None:
    now = [0.0]
    with ProviderService([QuotaLimit(QuotaKind.RPM, 60)], clock=lambda: now[0]) as provider:
        ask(provider)
        provider.count_from_now()
        for _ in range(6):
            ask(provider)
        assert provider.on_loop(lambda: provider.law.meters[QuotaKind.RPM].used(0.0)) == 7
        now[0] = 10.0

        assert provider.used_share(QuotaKind.RPM) == pytest.approx(0.6)
        assert provider.asked == provider.passed == 6


def test_a_hang_up_stops_the_answer_and_what_was_produced_stays_charged() -> None:
    async def story() -> float:
        limits = [QuotaLimit(QuotaKind.OTPM, 6e6, output=OutputCharge.MAX_TOKENS)]
        async with ProviderService(limits, output_tokens=50_000, tpot_s=0.001) as provider:
            reader, writer = await asyncio.open_connection("127.0.0.1", provider.port)
            body = b'{"stream": true, "max_tokens": 60000}'
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await reader.readuntil(b"word ")
            writer.close()
            charged = provider.law.meters[QuotaKind.OTPM]
            while charged.charged >= 60_000:  # noqa: ASYNC110 - the kit announces no such end
                await asyncio.sleep(0.002)
            return charged.charged

    assert 0 < asyncio.run(asyncio.wait_for(story(), 10.0)) < 50_000


def test_lengths_may_come_from_the_request_and_many_may_ask_at_once() -> None:
    with ProviderService([], output_tokens=lambda request: request.json()["words"], ttft_s=0.01) as provider:
        got: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: got.append(ask(provider, words=n)[2].count(b"word ")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(got) == list(range(8))
