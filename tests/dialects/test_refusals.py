"""The one table of refusals."""

import json

import pytest

from millgate.core.words import FailureKind, Reason
from millgate.dialects.refusals import FAILURES, REASONS, Refuser


def test_every_reason_and_every_failure_has_its_words() -> None:
    assert set(REASONS) == set(Reason)
    assert set(FAILURES) == set(FailureKind)


@pytest.mark.parametrize(
    ("reason", "openai", "code", "anthropic"),
    [
        (Reason.SATURATED, 503, "server_is_overloaded", 529),
        (Reason.QUEUE_FULL, 503, "server_is_overloaded", 529),
        (Reason.DISPLACED, 503, "server_is_overloaded", 529),
        (Reason.TOO_LATE, 503, "server_is_overloaded", 529),
        (Reason.EXPIRED, 503, "server_is_overloaded", 529),
        (Reason.QUOTA, 429, "rate_limit_exceeded", 429),
        (Reason.TENANT_LIMIT, 429, "rate_limit_exceeded", 429),
        (Reason.RETRY_BUDGET, 429, "slow_down", 429),
        (Reason.NO_ENGINE, 503, "no_healthy_upstream", 503),
        (Reason.NO_LEASE, 503, "server_is_overloaded", 529),
        (Reason.DRAINING, 503, "server_is_overloaded", 529),
        (Reason.TOO_LARGE, 413, "request_too_large", 413),
        (Reason.OVERLOADED_GATE, 503, "server_is_overloaded", 529),
    ],
)
def test_each_reason_is_said_as_the_design_says(
    reason: Reason, openai: int, code: str, anthropic: int
) -> None:
    ours = Refuser("openai").refuse(reason, 3.2, retry=True, request_id=b"id")
    theirs = Refuser("anthropic").refuse(reason, 3.2, retry=True, request_id=b"id")
    assert (ours.status, json.loads(ours.body)["error"]["code"]) == (openai, code)
    assert theirs.status == anthropic
    assert ours.close is theirs.close is (reason in {Reason.DRAINING, Reason.NO_LEASE})


@pytest.mark.parametrize(
    ("hint_s", "whole", "exact"),
    [
        (0.0, b"1", b"100"),
        (0.25, b"1", b"250"),
        (3.2, b"4", b"3200"),
        (59.5, b"60", b"59500"),
        (900.0, b"60", b"60000"),
    ],
)
def test_a_hint_is_said_in_whole_seconds_and_in_milliseconds(
    hint_s: float, whole: bytes, exact: bytes
) -> None:
    headers = dict(Refuser().refuse(Reason.SATURATED, hint_s, retry=True, request_id=b"id").headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (whole, exact)
    assert headers[b"x-should-retry"] == b"true"


def test_no_hint_is_given_where_coming_back_is_of_no_use() -> None:
    headers = dict(Refuser().refuse(Reason.TOO_LATE, 3.0, retry=False, request_id=b"id").headers)
    assert headers[b"x-should-retry"] == b"false"
    assert not any(name.startswith(b"retry-after") for name in headers)


def test_a_person_who_is_refused_as_too_late_is_not_told_that_asking_again_is_of_no_use() -> None:
    """Chats show the sentence, and a click on "regenerate" a few seconds later was served."""
    late = Refuser().refuse(Reason.TOO_LATE, 3.0, retry=False, request_id=b"id").body
    assert b"an automatic retry would be too late as well" in late
    assert b"of no use" not in late


def test_a_refusal_names_its_reason_and_the_request() -> None:
    headers = dict(Refuser().refuse(Reason.QUEUE_FULL, 1.0, retry=True, request_id=b"abc").headers)
    assert headers[b"x-millgate-reason"] == b"queue_full"
    assert headers[b"x-request-id"] == headers[b"request-id"] == b"abc"


def test_an_openai_body_has_the_four_fields() -> None:
    body = json.loads(Refuser().refuse(Reason.SATURATED, 3.25, retry=True, request_id=b"id").body)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "service_unavailable_error"
    assert "3.2 s" in body["error"]["message"]


def test_an_anthropic_body_has_type_and_request_id() -> None:
    body = json.loads(
        Refuser("anthropic").refuse(Reason.SATURATED, 3.0, retry=True, request_id=b"req-1").body
    )
    assert body["type"] == "error"
    assert body["error"]["type"] == "overloaded_error"
    assert body["request_id"] == "req-1"


@pytest.mark.parametrize("kind", list(FailureKind))
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_every_failure_is_a_server_error_in_json(kind: FailureKind, dialect: str) -> None:
    answer = Refuser(dialect).failed(kind, b"id")
    assert 500 <= answer.status <= 599
    assert json.loads(answer.body)["error"]["message"]


def test_a_timeout_is_not_to_be_retried() -> None:
    assert dict(Refuser().failed(FailureKind.TIMEOUT, b"id").headers)[b"x-should-retry"] == b"false"


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("retry", [True, False])
@pytest.mark.parametrize("hint_s", [0.0, 0.25, 1.0, 31.4159, 400.0])
def test_a_refusal_in_lines_is_the_same_refusal(dialect: str, retry: bool, hint_s: float) -> None:
    refuser = Refuser(dialect)
    for reason in Reason:
        answer = refuser.refuse(reason, hint_s, retry, b"id-1")
        lines = b"".join(b"%b: %b\r\n" % pair for pair in answer.headers)
        assert refuser.refuse_in_lines(reason, hint_s, retry, b"id-1") == (
            answer.status,
            lines,
            answer.body,
            answer.close,
        )


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_the_words_of_a_failure_are_written_before_a_request_comes(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind Envoy they go with every request that carries the gate's own key."""
    refuser, written = Refuser(dialect), list[object]()
    monkeypatch.setattr(json, "dumps", written.append)
    bodies = [refuser.failed(kind, b"id").body for kind in FailureKind]
    assert not written
    assert all(json.loads(body)["error"]["message"] for body in bodies)
