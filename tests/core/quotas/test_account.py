"""One provider account: hardly ever refused, hardly anything unused, whatever binds and whoever eats from it too."""

import pytest

from core.quotas.provider_world import World
from millgate.core.events import Remaining
from millgate.core.quotas.account import CUSHION, MARGIN, Account
from millgate.core.quotas.bucket import Sizes
from millgate.core.settings import AccountSettings, QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

RPM = QuotaLimit(QuotaKind.RPM, 600)
PLENTY = QuotaLimit(QuotaKind.RPM, 2000)
BINDING = {
    "rpm": (RPM,),
    "few requests": (QuotaLimit(QuotaKind.RPM, 60),),
    "itpm": (QuotaLimit(QuotaKind.ITPM, 200_000), PLENTY),
    "otpm as produced": (QuotaLimit(QuotaKind.OTPM, 60_000, output=OutputCharge.PRODUCED), PLENTY),
    "otpm by max_tokens": (QuotaLimit(QuotaKind.OTPM, 60_000, output=OutputCharge.MAX_TOKENS), PLENTY),
    "tpm corrected": (QuotaLimit(QuotaKind.TPM, 200_000, output=OutputCharge.MAX_TOKENS), PLENTY),
    "tpm as openai's": (QuotaLimit(QuotaKind.TPM, 300_000, output=OutputCharge.LARGER), PLENTY),
}


@pytest.mark.parametrize("used_share", [0.0, 1.0], ids=["full at the start", "empty at the start"])
@pytest.mark.parametrize("eaten", [0.0, 0.2], ids=["alone", "a fifth eaten"])
@pytest.mark.parametrize("binding", BINDING)
def test_at_ten_times_the_load_nearly_nothing_is_refused_and_nearly_all_is_used(
    binding: str, eaten: float, used_share: float
) -> None:
    score = World(BINDING[binding], seed=7, used_share=used_share, eaten=eaten).run(for_s=240.0)

    assert score.refused < 0.005 * score.sent
    assert score.used_share >= 0.95


@pytest.mark.parametrize("binding", ["rpm", "itpm", "otpm by max_tokens"])
def test_without_headers_it_learns_from_a_few_refusals_what_others_take(binding: str) -> None:
    score = World(BINDING[binding], seed=3, used_share=1.0, eaten=0.2, headers=False).run(for_s=600.0)

    assert score.refused < 0.005 * score.sent
    assert score.used_share >= 0.95


@pytest.mark.parametrize(("named", "left"), [(None, 1.0), (QuotaKind.RPM, 0.1)])
def test_a_provider_that_refuses_for_half_a_minute_without_a_limit_is_used_in_full_after_it(
    named: QuotaKind | None, left: float
) -> None:
    """A router whose own provider was out said 429 for 30 s: for twenty minutes a tenth of the account was used, and most clients were refused."""
    account = Account(AccountSettings((RPM,)), 0.0)
    for now in (100.0, 110.0, 120.0, 130.0):
        account.take(Sizes(10, 10), now)
        account.refused(5.0, now, named)
    start_s = account.wait_s(Sizes(10, 10), 130.0)
    tenth_s = account.wait_s(Sizes(10, 10), 130.0, place=11) - start_s

    assert start_s < 10.0 / left
    assert tenth_s == pytest.approx(1.0 / left, rel=0.3)


def test_an_account_that_believes_in_ten_times_its_quota_is_seen() -> None:
    """The measure can fail: refusals alone do not keep a wrongly configured account below one in two hundred."""
    believed = (QuotaLimit(QuotaKind.RPM, 6000),)
    score = World((RPM,), seed=7, used_share=1.0, headers=False, believed=believed).run(for_s=60.0)

    assert score.refused > 0.005 * score.sent


def account(*limits: QuotaLimit) -> Account:
    return Account(AccountSettings(limits), 0.0)


def rested(*limits: QuotaLimit) -> Account:
    """Return an account that has filled up; one request has gone, so that its levels count."""
    fresh = account(*limits)
    fresh.take(Sizes(0, 0, None), 0.0).cancel(0.0)
    return fresh


def left(of: Account, now: float) -> dict[QuotaKind, float]:
    return {limit.kind: max(0.0, bucket.level(now)) for limit, bucket, _ in of.shared(Sizes(1, 1))}


def amount(of: Account) -> float:
    """Return the first limit as it stands."""
    return of.shared(Sizes(1, 1))[0][0].amount


def test_an_account_without_limits_lets_everything_go_until_it_is_refused() -> None:
    free = account()

    assert free.wait_s(Sizes(10**6, 10**6, None), 0.0) == 0.0
    free.pause(3.0, 0.0)
    assert free.wait_s(Sizes(1, 1, None), 1.0) == 2.0


def test_the_first_request_goes_at_once_and_a_full_account_stays_below_the_limit() -> None:
    fresh = account(QuotaLimit(QuotaKind.TPM, 6000))

    assert fresh.wait_s(Sizes(3000, 100, None), 0.0) == 0.0
    fresh.take(Sizes(3000, 100, None), 0.0).cancel(0.0)
    assert fresh.wait_s(Sizes(3000, 100, None), 0.0) > 0.0
    assert left(fresh, 1000.0)[QuotaKind.TPM] == pytest.approx(6000 * (1 - MARGIN))


def test_a_request_within_the_margin_goes_when_all_is_there_and_a_larger_one_never() -> None:
    full = rested(QuotaLimit(QuotaKind.TPM, 6000))

    assert full.wait_s(Sizes(5950, 0, None), 1000.0) == 0.0
    assert full.wait_s(Sizes(6001, 0, None), 1000.0) == float("inf")


def test_output_that_is_charged_as_produced_is_never_too_much() -> None:
    full = rested(QuotaLimit(QuotaKind.OTPM, 6000, output=OutputCharge.PRODUCED))

    assert full.wait_s(Sizes(10, 10_000, 50_000), 1000.0) == 0.0


def test_output_that_is_charged_as_produced_is_no_matter_of_requests_or_prompts() -> None:
    """A configured account has one rule for output, and every limit of it has that rule."""
    made = OutputCharge.PRODUCED
    full = rested(
        QuotaLimit(QuotaKind.RPM, 600, output=made), QuotaLimit(QuotaKind.ITPM, 60_000, output=made)
    )
    for _ in range(10):
        full.take(Sizes(100, 5_000, None), 1000.0)
    full.seen((Remaining(QuotaKind.RPM, 600, 590), Remaining(QuotaKind.ITPM, 60_000, 59_000)), 1000.0)

    below = 1 - CUSHION * (1 - MARGIN)
    assert left(full, 1000.0)[QuotaKind.RPM] == pytest.approx(600 * below - 10)
    assert left(full, 1000.0)[QuotaKind.ITPM] == pytest.approx(60_000 * below - 1000)
    assert full.wait_s(Sizes(60_001, 0, None), 2000.0) == float("inf")


def test_a_day_is_believed_in_until_the_provider_says_otherwise_and_then_three_seconds_of_it_are_left() -> (
    None
):
    fresh = account(QuotaLimit(QuotaKind.RPD, 86_400))
    assert left(fresh, 0.0)[QuotaKind.RPD] == pytest.approx(86_400 * (1 - MARGIN))

    fresh.seen((Remaining(QuotaKind.RPD, 86_400, 10.0),), 0.0)
    assert left(fresh, 0.0)[QuotaKind.RPD] == pytest.approx(10.0 - CUSHION * 60)


def test_a_word_of_the_provider_lowers_and_never_raises() -> None:
    full = rested(QuotaLimit(QuotaKind.ITPM, 60_000))
    full.seen((Remaining(QuotaKind.ITPM, 60_000, 20_000), Remaining(QuotaKind.TPM, 1, 1)), 1000.0)
    assert left(full, 1000.0)[QuotaKind.ITPM] == pytest.approx(20_000 - CUSHION * 60_000 * (1 - MARGIN))
    before = left(full, 1000.0)
    full.seen((Remaining(QuotaKind.ITPM, None, 59_000), Remaining(QuotaKind.ITPM)), 1000.0)

    assert left(full, 1000.0) == before


def test_a_lower_limit_than_configured_is_believed_and_a_higher_one_is_not() -> None:
    full = rested(RPM)
    full.seen((Remaining(QuotaKind.RPM, 6000, 6000),), 1000.0)
    assert left(full, 1000.0)[QuotaKind.RPM] == pytest.approx(588)
    full.seen((Remaining(QuotaKind.RPM, 60, 60),), 1000.0)

    assert left(full, 2000.0)[QuotaKind.RPM] == pytest.approx(58.8)
    assert amount(full) == 60


def test_a_limit_that_the_provider_lowers_while_a_request_runs_leaves_no_debt() -> None:
    """Configured for fifty times what the account has: after its first answer it was shut for most of a minute."""
    account = Account(AccountSettings((QuotaLimit(QuotaKind.TPM, 5_000_000.0),)), 0.0)
    reservation = account.take(Sizes(20, 256, None), 0.0)
    account.seen((Remaining(QuotaKind.TPM, 100_000.0, 99_000.0, 0.6),), 0.01)
    account.settle(reservation, 20, 0, 2, 0.02)

    assert account.wait_s(Sizes(20, 256, None), 0.02) == 0.0
    assert account.levels(0.02)[0] > 0.9


def test_a_limit_that_the_provider_lowers_and_raises_again_is_followed_up_to_the_configured_one() -> None:
    full = rested(RPM)
    full.seen((Remaining(QuotaKind.RPM, 60, 60),), 1000.0)
    full.seen((Remaining(QuotaKind.RPM, None, 50),), 1001.0)
    assert amount(full) == 60

    full.seen((Remaining(QuotaKind.RPM, 300, 300),), 2000.0)
    assert amount(full) == 300
    full.seen((Remaining(QuotaKind.RPM, 6000, 6000),), 3000.0)
    assert amount(full) == 600
    assert left(full, 3060.0)[QuotaKind.RPM] == pytest.approx(588)


def test_a_refusal_empties_its_limit_and_pauses_everything_until_the_hint() -> None:
    full = rested(RPM, QuotaLimit(QuotaKind.ITPM, 60_000))
    full.refused(12.0, 1000.0, QuotaKind.RPM)

    assert full.wait_s(Sizes(1, 1, None), 1005.0) >= 7.0
    assert left(full, 1012.0)[QuotaKind.RPM] == 0.0
    assert left(full, 1012.0)[QuotaKind.ITPM] == pytest.approx(58_800)
    assert full.wait_s(Sizes(1, 1, None), 1012.0 + 60 * CUSHION + 0.2) == 0.0
    left_share, others_share, paused_s = full.levels(1005.0)
    assert left_share < 0.0
    assert (others_share, paused_s) == (0.0, 7.0)


def test_refusals_without_a_hint_pause_ever_longer_until_an_answer_comes() -> None:
    free, now, pauses = account(), 0.0, []
    for _ in range(8):
        free.pause(None, now)
        free.pause(None, now)
        pauses.append(free.wait_s(Sizes(1, 1, None), now))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    free.answered(1, 0, 1)
    free.pause(None, now)

    assert free.wait_s(Sizes(1, 1, None), now) == 1.0


def test_a_refusal_that_names_no_limit_does_not_end_the_day() -> None:
    """The day stood lowest, as the minute had filled up: one 429 for too many at once left a seventieth of the rate."""
    full = rested(RPM, QuotaLimit(QuotaKind.RPD, 10_000))
    for _ in range(500):
        full.take(Sizes(1, 1, None), 1000.0)
    full.take(Sizes(1, 1, None), 2000.0)
    full.refused(2.0, 2000.0)

    assert full.wait_s(Sizes(1, 1, None), 2000.0) >= 2.0
    assert full.wait_s(Sizes(1, 1, None), 2000.0, place=600) < 90.0
    full.refused(2.0, 2200.0, QuotaKind.RPD)
    assert full.wait_s(Sizes(1, 1, None), 2200.0, place=600) > 3600.0


def test_an_answer_to_which_nothing_is_written_ends_a_row_of_pauses_too() -> None:
    """Embeddings: their pauses grew to a minute with every refusal of a day."""
    free, now = account(), 0.0
    for _ in range(5):
        free.refused(None, now)
        now += free.wait_s(Sizes(1, 0, None), now)
        free.answered(10, 0, 0)
    free.refused(None, now)

    assert free.wait_s(Sizes(1, 0, None), now) == 1.0


def test_an_absurd_hint_is_tried_again_after_an_hour() -> None:
    free = account()
    free.refused(1e12, 0.0)

    assert free.wait_s(Sizes(1, 1, None), 0.0) == 3600.0
    free.refused(-5.0, 4000.0)
    assert free.wait_s(Sizes(1, 1, None), 4000.0) == 0.0


def test_a_limit_of_requests_that_is_told_for_a_window_is_not_taken_for_that_of_a_minute() -> None:
    """Azure tells 80 of 480 requests a minute, those of ten seconds: a sixth of the account was used."""
    account = Account(AccountSettings((QuotaLimit(QuotaKind.RPM, 480, burst_s=10.0),)), 0.0)
    account.take(Sizes(10, 10), 0.0)
    account.seen((Remaining(QuotaKind.RPM, 80.0, 79.0, None),), 60.0)
    line_s = account.wait_s(Sizes(10, 10), 60.0, place=480) - account.wait_s(Sizes(10, 10), 60.0)
    account.seen((Remaining(QuotaKind.RPM, 40.0, 39.0, None),), 120.0)
    lowered_s = account.wait_s(Sizes(10, 10), 120.0, place=480) - account.wait_s(Sizes(10, 10), 120.0)
    account.seen((Remaining(QuotaKind.RPM, 120.0, None, None),), 180.0)
    by_the_minute_s = account.wait_s(Sizes(10, 10), 180.0, place=480)

    assert line_s == pytest.approx((480 - 80) / 8, rel=0.05)
    assert lowered_s == pytest.approx((480 - 40) / 4, rel=0.05)
    assert by_the_minute_s == pytest.approx((480 - 20) / 2, rel=0.05)


def test_a_request_larger_than_a_short_window_goes_alone_where_the_minute_has_it() -> None:
    """With `burst: 10s` a sixth of the minute was the most that a prompt could need; Azure counts tokens by the minute."""
    tpm = QuotaLimit(QuotaKind.TPM, 100_000, burst_s=10.0, output=OutputCharge.MAX_TOKENS)
    account = Account(AccountSettings((tpm,)), 0.0)
    account.take(Sizes(10, 10, 10), 0.0)
    large = Sizes(18_000, 500, 2_000)
    waited_s = account.wait_s(large, 60.0)
    account.take(large, 60.0)

    assert waited_s == 0.0
    assert account.wait_s(Sizes(10, 10, 10), 60.0) == pytest.approx(
        (20_000 - 100_000 / 6) / (100_000 / 60), rel=0.3
    )
    assert account.beyond(large) is None
    assert account.beyond(Sizes(99_000, 500, 2_000)) == (101_000, 100_000)
