"""What one request takes from each kind of limit, before and after its size is known."""

import pytest

from millgate.core.quotas.bucket import Sizes, needed_amount, reserved_amount, used_amount
from millgate.core.settings import QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

SIZES = Sizes(prompt_tokens=100, output_tokens=50, max_tokens=400)
UNBOUNDED = Sizes(prompt_tokens=100, output_tokens=50)


def limit(
    kind: QuotaKind, output: OutputCharge = OutputCharge.EXPECTED, *, cached: bool = True
) -> QuotaLimit:
    return QuotaLimit(kind, 1000, output=output, count_cached=cached)


@pytest.mark.parametrize(
    ("output", "tpm", "otpm", "tpm_unbounded", "otpm_unbounded"),
    [
        (OutputCharge.EXPECTED, 150, 50, 150, 50),
        (OutputCharge.MAX_TOKENS, 500, 400, 150, 50),
        (OutputCharge.PRODUCED, 100, 0, 100, 0),
        (OutputCharge.LARGER, 400, 400, 100, 0),
    ],
)
def test_output_is_charged_by_the_rule_of_the_limit(
    output: OutputCharge, tpm: int, otpm: int, tpm_unbounded: int, otpm_unbounded: int
) -> None:
    both = (limit(QuotaKind.TPM, output), limit(QuotaKind.OTPM, output))

    assert tuple(reserved_amount(each, SIZES) for each in both) == (tpm, otpm)
    assert tuple(reserved_amount(each, UNBOUNDED) for each in both) == (tpm_unbounded, otpm_unbounded)


def test_requests_and_prompts_are_charged_alike_under_every_rule() -> None:
    for output in OutputCharge:
        assert reserved_amount(limit(QuotaKind.RPM, output), SIZES) == 1
        assert reserved_amount(limit(QuotaKind.RPD, output), SIZES) == 1
        assert reserved_amount(limit(QuotaKind.ITPM, output), SIZES) == 100


def test_a_limit_that_reserves_nothing_still_needs_a_token() -> None:
    assert needed_amount(limit(QuotaKind.OTPM, OutputCharge.PRODUCED), SIZES) == 1
    assert needed_amount(limit(QuotaKind.OTPM), SIZES) == 50


def test_cached_prompt_tokens_are_left_out_where_they_do_not_count() -> None:
    assert used_amount(limit(QuotaKind.ITPM), 100, 80, 7) == 100
    assert used_amount(limit(QuotaKind.ITPM, cached=False), 100, 80, 7) == 20
    assert used_amount(limit(QuotaKind.TPM, cached=False), 100, 80, 7) == 27
    assert used_amount(limit(QuotaKind.TPM, cached=False), 100, 800, 7) == 7
    assert used_amount(limit(QuotaKind.OTPM, cached=False), 100, 80, 7) == 7
    assert used_amount(limit(QuotaKind.RPM), 100, 80, 7) == 1


def test_what_is_expected_from_a_cache_is_not_reserved_where_it_does_not_count() -> None:
    sizes = SIZES._replace(cached_tokens=80)

    assert reserved_amount(limit(QuotaKind.ITPM), sizes) == 100
    assert reserved_amount(limit(QuotaKind.ITPM, cached=False), sizes) == 20
    assert reserved_amount(limit(QuotaKind.TPM, cached=False), sizes) == 70
    assert reserved_amount(limit(QuotaKind.TPM, OutputCharge.LARGER, cached=False), sizes) == 400
