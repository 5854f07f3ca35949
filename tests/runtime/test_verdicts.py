"""What an engine's refusal says: of a limit, of credit, and of nothing that another refusal would not say too."""

import pytest

from millgate.core.words import FailureKind, QuotaKind
from millgate.dialects.contract import EngineError
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import Said, event_verdict, verdict

_TOKENS = b'{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"Rate limit reached"}}'
_ANTHROPIC = (
    b'{"type":"error","error":{"type":"rate_limit_error","message":"exceed your input tokens per minute"}}'
)


@pytest.mark.parametrize(
    ("body", "limit"), [(_TOKENS, QuotaKind.TPM), (_ANTHROPIC, QuotaKind.ITPM), (b"{}", None)]
)
def test_a_limit_that_is_met_within_a_stream_counts_as_one_that_is_met_before_it(
    body: bytes, limit: QuotaKind | None
) -> None:
    """It was taken for an overload of the provider, which empties no bucket here."""
    met = FailureKind.REFUSED, Said(over_limit=True, limit=limit)
    assert event_verdict(EngineError(429, body)) == met
    assert verdict(AnswerHead(429, (), None), body) == met


def test_an_overload_that_is_told_within_a_stream_names_no_limit() -> None:
    assert event_verdict(EngineError(529, _TOKENS)) == (FailureKind.REFUSED, Said())


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, b'{"error":{"type":"insufficient_quota","code":"credit_balance_exhausted"}}'),
        (
            429,
            b'{"type":"error","error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}',
        ),
        (
            400,
            b'{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to go on"}}',
        ),
    ],
)
def test_an_account_without_credit_says_so_in_the_words_of_each_provider(status: int, body: bytes) -> None:
    assert verdict(AnswerHead(status, (), None), body) == (FailureKind.NO_CREDIT, Said())


def test_a_request_that_speaks_of_credit_is_at_fault_all_the_same() -> None:
    body = b'{"error":{"message":"unknown field: Your credit balance is too low"}}'
    assert verdict(AnswerHead(400, (), None), body) == (FailureKind.STATUS, Said(blames_request=True))
