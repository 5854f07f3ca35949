"""The pace of prompts that a lane is protected from."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from millgate.core.limits.prefill_pace import Comings, FirstTokens, PrefillPace, Protection, protection_of
from millgate.core.limits.slo_gradient import TARGET
from millgate.core.settings import LaneSettings, ServicePrior

_CHAT = LaneSettings("chat", ttft_slo_s=1.0, tpot_slo_s=0.05, share=3.0)
_LONG = LaneSettings("long", ttft_slo_s=30.0, share=1.0)
_TARGET_S = TARGET * 0.05
# A step takes half of what the protected lane lets a token take.
_PRIOR = ServicePrior(tpot_base_s=_TARGET_S / 2.0)


def _pace() -> PrefillPace:
    protection = protection_of((_CHAT, _LONG))
    assert protection is not None
    return PrefillPace(protection, _PRIOR, Comings())


@pytest.mark.parametrize(
    ("lanes", "paced"),
    [
        ((_CHAT, _LONG), {"long"}),
        ((_CHAT,), None),
        ((_LONG, LaneSettings("other")), None),
        ((_CHAT, LaneSettings("looser", ttft_slo_s=1.0, tpot_slo_s=0.1), _LONG), {"looser", "long"}),
        ((_CHAT, LaneSettings("later", ttft_slo_s=9.0, tpot_slo_s=0.05)), {"later"}),
        ((_CHAT, LaneSettings("same", ttft_slo_s=1.0, tpot_slo_s=0.05)), None),
        ((_CHAT, LaneSettings("rarely", ttft_slo_s=1.0, tpot_slo_s=0.05, tpot_share=0.9)), {"rarely"}),
        ((_CHAT, LaneSettings("surely", ttft_slo_s=1.0, tpot_slo_s=0.05, ttft_share=0.99)), {"chat"}),
    ],
)
def test_the_lane_with_the_tightest_promise_is_protected_from_all_that_promise_less(
    lanes: tuple[LaneSettings, ...], paced: set[str] | None
) -> None:
    protection = protection_of(lanes)
    assert (protection and {name for name, _share in protection.paced}) == paced


def test_it_begins_where_the_prior_leaves_the_protected_lane_its_time_per_token() -> None:
    pace = _pace()
    assert pace.share == pytest.approx(0.5)
    assert pace.spacing_s(0.4, 0.0) == pytest.approx(0.8)
    pace.given("long", 0.4, 10.0)
    assert pace.opens_at() == pytest.approx(10.8)
    pace.given("chat", 0.4, 10.0)
    assert pace.opens_at() == pytest.approx(10.8), "the protected lane sets no pace"


def test_the_quantiles_that_the_protected_lane_names_are_those_that_are_kept() -> None:
    """Half of what may be slow and late: p99 TPOT is steered at 0.995, p50 to the first token lets a quarter be late."""
    protection = protection_of((replace(_CHAT, tpot_share=0.99, ttft_share=0.5), _LONG))
    assert protection is not None
    assert protection.tpot_share == pytest.approx(0.995)
    assert protection.first_tokens.late_share == pytest.approx(0.25)


@given(st.floats(0.05, 0.95), st.floats(0.01, 1.0))
def test_it_finds_the_share_of_reading_that_keeps_the_time_per_token(rests: float, began: float) -> None:
    """Of an engine whose step takes `rests` of the target, and which reads as much as it is let."""
    pace = _pace()
    pace.share = began
    for second in range(400):
        used = min(pace.share, 0.98)
        pace.given("long", used, float(second))
        pace.observe(1.0, rests * _TARGET_S / (1.0 - used))
    assert pace.share == pytest.approx(1.0 - rests, abs=0.03)


def test_prompts_pay_only_for_what_they_cause() -> None:
    quiet = _pace()
    assert not quiet.observe(1.0, 2.0 * _TARGET_S), "no prompt was read: streams pay"
    busy = _pace()
    busy.given("long", 0.5, 0.0)
    assert busy.observe(1.0, 2.0 * _TARGET_S)
    assert busy.share < 0.5


def test_in_a_flood_of_the_protected_lane_the_others_keep_their_part_of_what_is_read() -> None:
    """A fourth of the shares is a third of what the protected lane reads, however slow tokens are; then streams pay."""
    pace = _pace()
    for second in range(100):
        pace.given("chat", 0.6, float(second))
        pace.given("long", 0.2, float(second))
        pays = pace.observe(1.0, 2.0 * _TARGET_S)
    assert pace.share == pace.least == pytest.approx(0.2, rel=0.01)
    assert not pays


def test_the_part_of_an_idle_lane_is_not_that_of_another() -> None:
    """`batch` has half of all shares and no prompts: `long` keeps its fourth beside the three of chat, a third of what that reads."""
    protection = protection_of((_CHAT, _LONG, LaneSettings("batch", share=_CHAT.share + _LONG.share)))
    assert protection is not None
    pace = PrefillPace(protection, _PRIOR, Comings())
    for second in range(100):
        pace.given("chat", 0.6, float(second))
        pace.given("long", 0.2, float(second))
        pace.observe(1.0, 2.0 * _TARGET_S)
    assert pace.least == pytest.approx(0.2, rel=0.01)

    pace.given("chat", 0.6, 100.0)
    pace.given("batch", 0.1, 100.0)
    pace.observe(1.0, 2.0 * _TARGET_S)
    assert pace.least > 0.25, "with prompts of its own it has its part"


def test_a_protected_lane_is_quiet_when_nothing_of_it_comes_not_when_all_of_it_is_refused() -> None:
    protection, comings = protection_of((_CHAT, _LONG)), Comings()
    assert protection is not None
    pace = PrefillPace(protection, _PRIOR, comings)
    pace.given("long", 2.0, 0.0)
    assert not pace.is_quiet(5.0)
    for second in range(5, 60):
        comings.came(float(second))
    assert not pace.is_quiet(60.0)
    assert pace.opens_at(quiet_by=60.0) == pytest.approx(4.0)
    assert pace.is_quiet(70.0)
    assert pace.spacing_s(2.0, 70.0) == 2.0


def test_the_seldom_protected_lane_is_quiet_only_after_longer_than_it_usually_is() -> None:
    protection, comings = protection_of((_CHAT, _LONG)), Comings()
    assert protection is not None
    pace = PrefillPace(protection, _PRIOR, comings)
    for minute in range(10):
        comings.came(60.0 * minute)
        pace.given("chat", 0.1, 60.0 * minute, 5.0)
    assert not pace.is_quiet(540.0 + 120.0)
    assert pace.is_quiet(540.0 + 300.0)


def test_without_shares_nothing_is_reserved_for_prompts() -> None:
    lanes = [LaneSettings("chat", tpot_slo_s=0.05, share=0.0), LaneSettings("long", share=0.0)]
    assert protection_of(lanes) == Protection(
        0.05, 0.975, FirstTokens(10.0, 0.5 * (1.0 - 0.95)), (("long", 0.0),), 0.0
    )
