"""The ledger: all or nothing over several rules, hints that are true, and a bound on what clients can make it keep."""

import pytest

from millgate.core.events import QuotaShare, QuotaUse
from millgate.core.quotas.bucket import Reservation, Sizes
from millgate.core.quotas.ledger import Ledger, Shortage, Who
from millgate.core.settings import QuotaLimit, QuotaRule, Scope
from millgate.core.words import OutputCharge, QuotaKind

ANN = Who("ann", "m", "interactive")
BOB = Who("bob", "m", "interactive")
SMALL = Sizes(prompt_tokens=100, output_tokens=50)


def rule(
    name: str,
    kind: QuotaKind,
    amount: float,
    *each: Scope,
    tenant: str | None = None,
    model: str | None = None,
    lane: str | None = None,
    output: OutputCharge = OutputCharge.EXPECTED,
    cached: bool = True,
) -> QuotaRule:
    limit = QuotaLimit(kind, amount, output=output, count_cached=cached)
    return QuotaRule(name, limit, tenant, model, lane, each)


def taken(ledger: Ledger, who: Who, sizes: Sizes, now: float) -> Reservation:
    assert ledger.shortage(who, sizes, now) is None
    reservation = ledger.take(who, sizes, now)
    assert isinstance(reservation, Reservation)
    return reservation


def left(ledger: Ledger, who: Who, now: float) -> dict[str, float]:
    return {state.rule: state.remaining for state in ledger.report(who, now)}


def test_without_rules_nothing_is_short_and_nothing_is_kept() -> None:
    ledger = Ledger()

    assert ledger.is_empty
    assert ledger.shortage(ANN, SMALL, 0.0) is None
    assert ledger.shortage(ANN, SMALL, 0.0) is None
    assert ledger.take(ANN, SMALL, 0.0) is None
    assert ledger.report(ANN, 0.0) == ()


def test_a_refusal_by_one_rule_takes_nothing_from_the_others() -> None:
    ledger = Ledger([rule("requests", QuotaKind.RPM, 60), rule("tokens", QuotaKind.TPM, 600)])
    for _ in range(3):
        taken(ledger, ANN, SMALL, 0.0)
    taken(ledger, ANN, Sizes(50, 50), 0.0)

    short = ledger.shortage(ANN, SMALL, 0.0)

    assert short == Shortage("tokens", 10.0, 150, 50, never_fits=False)
    assert left(ledger, ANN, 0.0) == {"requests": 56, "tokens": 50}


def test_the_rule_that_keeps_out_longest_is_named() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1500), rule("requests", QuotaKind.RPM, 1)])
    taken(ledger, ANN, Sizes(1400, 100), 0.0)

    short = ledger.shortage(ANN, SMALL, 0.0)

    assert short is not None
    assert (short.rule, short.wait_s) == ("requests", 60.0)
    assert ledger.shortage(ANN, SMALL, 60.0) is None


def test_demands_are_those_of_buckets_that_have_been_taken_from() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1500, "tenant"), rule("requests", QuotaKind.RPM, 60)])
    assert ledger.demands(ANN, SMALL) == []
    taken(ledger, ANN, SMALL, 0.0)

    assert [each.needed for each in ledger.demands(ANN, Sizes(20, 10))] == [30.0, 1.0]
    assert [each.needed for each in ledger.demands(BOB, Sizes(20, 10))] == [1.0]


def test_asking_changes_nothing() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 200, "tenant")])

    assert [ledger.shortage(ANN, SMALL, 0.0) for _ in range(5)] == [None] * 5
    assert ledger.buckets == 0


def test_what_can_never_fit_is_told_apart() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 100, "tenant")])
    expected = Shortage("tokens", float("inf"), 150, 100, never_fits=True)

    assert ledger.shortage(ANN, Sizes(150, 50), 0.0) == expected
    taken(ledger, ANN, Sizes(10, 10), 0.0)
    assert ledger.shortage(ANN, Sizes(150, 50), 60.0) == expected


@pytest.mark.parametrize(
    ("kind", "prompt_tokens", "used"), [(QuotaKind.TPM, 20, 30), (QuotaKind.OTPM, 5_000, 10)]
)
def test_an_answer_that_is_only_expected_to_be_larger_takes_the_whole_bucket(
    kind: QuotaKind, prompt_tokens: int, used: int
) -> None:
    ledger = Ledger([rule("tokens", kind, 100, "tenant")])
    long = Sizes(prompt_tokens, output_tokens=500)

    reservation = taken(ledger, ANN, long, 0.0)
    assert left(ledger, ANN, 0.0)["tokens"] == 0
    reservation.settle(prompt_tokens, 0, 10, 0.0)
    assert left(ledger, ANN, 0.0)["tokens"] == 100 - used

    short = ledger.shortage(ANN, long, 0.0)
    assert short is not None
    assert not short.never_fits
    taken(ledger, ANN, long, short.wait_s)


def test_a_bound_that_is_charged_in_advance_can_be_too_large() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 100, output=OutputCharge.MAX_TOKENS)])
    short = ledger.shortage(ANN, Sizes(20, 50, max_tokens=500), 0.0)
    assert short is not None
    assert short.never_fits


def test_rules_hold_the_tenant_model_and_lane_that_they_name() -> None:
    ledger = Ledger(
        [
            rule("everybody", QuotaKind.RPM, 100),
            rule("ann", QuotaKind.RPM, 10, tenant="ann"),
            rule("big", QuotaKind.RPM, 5, model="big"),
            rule("bulk", QuotaKind.RPM, 3, lane="throughput"),
        ]
    )

    assert list(left(ledger, ANN, 0.0)) == ["everybody", "ann"]
    assert list(left(ledger, BOB._replace(model="big"), 0.0)) == ["everybody", "big"]
    assert list(left(ledger, BOB._replace(lane="throughput"), 0.0)) == ["everybody", "bulk"]


def test_a_shared_rule_is_one_bucket_and_each_makes_one_for_every_value() -> None:
    shared, each = rule("shared", QuotaKind.RPM, 10), rule("each", QuotaKind.RPM, 10, "tenant", "model")
    ledger = Ledger([shared, each])
    for who in (ANN, BOB, BOB, BOB._replace(model="big")):
        taken(ledger, who, SMALL, 0.0)

    assert left(ledger, ANN, 0.0) == {"shared": 6, "each": 9}
    assert left(ledger, BOB, 0.0) == {"shared": 6, "each": 8}
    assert ledger.buckets == 4


def test_settling_gives_back_what_was_not_used_and_takes_what_was_more() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1000)])
    less, more = taken(ledger, ANN, SMALL, 0.0), taken(ledger, ANN, SMALL, 0.0)
    less.settle(90, 0, 10, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 750}
    more.settle(100, 0, 800, 0.0)

    short = ledger.shortage(ANN, SMALL, 0.0)

    assert short is not None
    assert short.left == 0.0


def test_settling_twice_or_after_a_cancel_changes_nothing() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1000), rule("requests", QuotaKind.RPM, 10)])
    first, second = taken(ledger, ANN, SMALL, 0.0), taken(ledger, ANN, SMALL, 0.0)
    for _ in range(3):
        first.settle(100, 0, 0, 0.0)
        second.cancel(0.0)

    assert left(ledger, ANN, 0.0) == {"tokens": 900, "requests": 9}


def test_unknown_usage_leaves_the_estimate_or_what_was_seen() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1000)])
    taken(ledger, ANN, SMALL, 0.0).settle(None, 0, None, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 850}
    grown = taken(ledger, ANN, SMALL, 0.0)
    grown.progress(70, 0.0)
    grown.settle(None, 0, None, 0.0)

    assert left(ledger, ANN, 0.0) == {"tokens": 680}


def test_cached_prompt_tokens_come_back_where_they_do_not_count() -> None:
    ledger = Ledger([rule("in", QuotaKind.ITPM, 1000, cached=False), rule("all", QuotaKind.ITPM, 1000)])
    taken(ledger, ANN, SMALL, 0.0).settle(100, 80, 50, 0.0)

    assert left(ledger, ANN, 0.0) == {"in": 980, "all": 900}


def test_output_that_is_charged_as_produced_lets_in_while_a_token_is_left() -> None:
    ledger = Ledger([rule("out", QuotaKind.OTPM, 60, output=OutputCharge.PRODUCED)])
    huge = Sizes(prompt_tokens=10, output_tokens=10_000, max_tokens=50_000)
    running = taken(ledger, ANN, huge, 0.0)
    running.progress(40, 0.0)
    running.progress(30, 0.0)
    assert left(ledger, ANN, 0.0) == {"out": 20}
    running.progress(65, 0.0)

    assert ledger.shortage(ANN, huge, 0.0) == Shortage("out", 6.0, 1, -5, never_fits=False)
    running.settle(10, 0, 66, 6.0)
    assert ledger.shortage(ANN, huge, 7.0) is None


def test_idle_full_buckets_are_forgotten_first() -> None:
    ledger = Ledger([rule("each", QuotaKind.RPM, 60, "tenant")], max_buckets=3)
    busy = taken(ledger, Who("busy", "", ""), SMALL, 0.0)
    for tenant in ("a", "b", "c", "d"):
        taken(ledger, Who(tenant, "", ""), SMALL, 0.0).settle(0, 0, 0, 0.0)
        taken(ledger, Who("busy", "", ""), SMALL, 1.0)

    assert ledger.buckets == 3
    assert left(ledger, Who("busy", "", ""), 1.0)["each"] == 56
    busy.settle(0, 0, 0, 1.0)


def test_a_million_names_keep_the_table_at_its_bound() -> None:
    """INV-5: invented tenants cost bounded memory."""
    ledger = Ledger([rule("each", QuotaKind.RPM, 60, "tenant")], max_buckets=50)
    for number in range(2_000):
        taken(ledger, Who(f"t{number}", "", ""), SMALL, 0.001 * number)

    assert ledger.buckets == 50


def test_shared_buckets_are_never_forgotten() -> None:
    ledger = Ledger(
        [rule("all", QuotaKind.RPM, 10_000), rule("each", QuotaKind.RPM, 60, "tenant")], max_buckets=2
    )
    for number in range(100):
        taken(ledger, Who(f"t{number}", "", ""), SMALL, 0.0)

    assert left(ledger, ANN, 0.0)["all"] == 9_900


def test_new_rules_keep_what_was_spent_under_the_same_name() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 1000), rule("old", QuotaKind.RPM, 5, "tenant")])
    taken(ledger, ANN, SMALL, 0.0)
    ledger.reconfigure([rule("tokens", QuotaKind.TPM, 600), rule("new", QuotaKind.RPM, 5)], 0.0)

    assert left(ledger, ANN, 0.0) == {"tokens": 450, "new": 5}
    taken(ledger, ANN, SMALL, 0.0)
    ledger.reconfigure([rule("tokens", QuotaKind.TPM, 6000)], 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 5700}
    assert left(ledger, ANN, 1.0) == {"tokens": 5800}
    assert ledger.buckets == 1


def test_a_budget_that_is_raised_for_a_team_without_any_left_lets_it_go_on_at_once() -> None:
    """The level stayed: of a day's tokens twice as many were no more than before, for hours; after a restart they were."""
    ledger = Ledger([rule("tokens", QuotaKind.TPD, 150)])
    taken(ledger, ANN, SMALL, 0.0)
    assert ledger.shortage(ANN, SMALL, 0.0) is not None
    ledger.reconfigure([rule("tokens", QuotaKind.TPD, 300)], 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 150}
    assert ledger.shortage(ANN, SMALL, 0.0) is None


def test_a_budget_that_is_lowered_below_what_is_used_has_nothing_left_and_no_debt() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPD, 1000)])
    taken(ledger, ANN, SMALL, 0.0)
    ledger.reconfigure([rule("tokens", QuotaKind.TPD, 500)], 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 350}
    ledger.reconfigure([rule("tokens", QuotaKind.TPD, 100)], 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 0}


def test_a_replica_adds_its_part_of_what_a_budget_is_raised_by() -> None:
    limits = [rule("tokens", QuotaKind.TPD, amount) for amount in (400, 800)]
    ledger = Ledger(limits[:1])
    half = {"tokens": QuotaShare("tokens", limits[0].limit.rate_per_s / 2, 200.0)}
    ledger.leased(half, 2, 0.0)
    taken(ledger, ANN, SMALL, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 50}
    ledger.reconfigure(limits[1:], 0.0)
    ledger.leased(half, 2, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 200}, "the store has not heard of it yet"
    ledger.leased({"tokens": QuotaShare("tokens", limits[1].limit.rate_per_s / 2, 400.0)}, 2, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 250}
    ledger.reconfigure(limits[1:], 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 250}, "the same rules change nothing"


def test_so_does_one_of_a_budget_that_each_tenant_has() -> None:
    limits = [rule("tokens", QuotaKind.TPD, amount, "tenant") for amount in (400, 800)]
    ledger = Ledger(limits[:1])
    ledger.leased({}, 2, 0.0)
    taken(ledger, ANN, SMALL, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 50}
    ledger.reconfigure(limits[1:], 0.0)
    ledger.leased({}, 2, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 250}
    ledger.leased({}, 1, 0.0)
    ledger.reconfigure(limits[:1], 0.0)
    ledger.reconfigure(limits[1:], 0.0)
    ledger.leased({}, 1, 0.0)
    assert left(ledger, ANN, 0.0) == {"tokens": 500}, "also where it is alone by now"


def test_the_report_tells_limit_rest_and_reset() -> None:
    ledger = Ledger([rule("tokens", QuotaKind.TPM, 600)])
    taken(ledger, ANN, SMALL, 0.0)

    (state,) = ledger.report(ANN, 5.0)

    assert (state.kind, state.limit, state.remaining, state.reset_s) == (QuotaKind.TPM, 600, 500, 10.0)


def test_levels_are_the_least_that_is_left_by_each_rule() -> None:
    ledger = Ledger([rule("all", QuotaKind.RPM, 60), rule("each", QuotaKind.RPM, 6, "tenant")])
    assert [(level.name, level.left_share, level.owners) for level in ledger.levels(0.0)] == [
        ("all", 1.0, 0),
        ("each", 1.0, 0),
    ]
    for _ in range(3):
        taken(ledger, ANN, SMALL, 0.0)
    taken(ledger, BOB, SMALL, 0.0)
    every, each = ledger.levels(0.0)

    assert every.left_share == pytest.approx(56 / 60)
    assert each.left_share == pytest.approx(0.5)
    assert each.owners == 2


def test_levels_of_many_owners_are_those_of_the_last_served() -> None:
    ledger = Ledger([rule("each", QuotaKind.RPM, 60, "tenant")])
    for number in range(1_000):
        taken(ledger, Who(f"tenant {number}", "m", "interactive"), SMALL, 0.0)
    (level,) = ledger.levels(0.0)

    assert level.owners == 256
    assert level.left_share == pytest.approx(59 / 60)


BUDGETS = [rule("each", QuotaKind.TPD, 86_400, "tenant"), rule("all", QuotaKind.TPD, 172_800)]


def test_what_is_used_of_a_day_is_used_of_it_after_a_restart_too_less_what_was_added_since() -> None:
    before = Ledger(BUDGETS)
    taken(before, ANN, Sizes(8_000, 0), 100.0)
    taken(before, BOB, Sizes(1_000, 0), 100.0)

    after = Ledger(BUDGETS)
    after.keep(before.uses(100.0), ago_s=10.0, now=5.0)

    assert left(after, ANN, 5.0) == pytest.approx({"each": 78_410, "all": 163_820})
    assert left(after, BOB, 5.0) == pytest.approx({"each": 85_410, "all": 163_820})
    assert left(after, ANN, 7.0)["each"] == pytest.approx(78_412), "it fills as before"


def test_told_twice_it_counts_once_and_what_was_used_meanwhile_stays_used() -> None:
    ledger = Ledger(BUDGETS)
    kept = (QuotaUse("each", "ann", None, None, 8_000.0),)
    ledger.keep(kept, 0.0, 0.0)
    taken(ledger, ANN, Sizes(500, 0), 0.0)
    ledger.keep(kept, 1.0, 1.0)
    assert left(ledger, ANN, 1.0)["each"] == pytest.approx(77_901)


def test_a_larger_limit_leaves_what_was_used_used_and_a_debt_is_a_debt() -> None:
    kept = (QuotaUse("each", "ann", None, None, 90_000.0),)
    same, larger = Ledger(BUDGETS), Ledger([rule("each", QuotaKind.TPD, 172_800, "tenant")])
    same.keep(kept, 0.0, 0.0)
    larger.keep(kept, 0.0, 0.0)
    short = same.shortage(ANN, SMALL, 0.0)
    assert short is not None
    assert short.wait_s == pytest.approx(3_750)
    assert left(larger, ANN, 0.0) == {"each": pytest.approx(82_800)}


@pytest.mark.parametrize(
    "use",
    [
        QuotaUse("gone", None, None, None, 8_000.0),
        QuotaUse("each", None, None, None, 8_000.0),
        QuotaUse("all", "ann", None, None, 8_000.0),
        QuotaUse("each", "ann", None, None, 5.0),
    ],
    ids=["no such rule", "the rule was shared", "the rule had owners", "full again"],
)
def test_a_use_that_no_bucket_has_any_more_changes_nothing(use: QuotaUse) -> None:
    ledger = Ledger(BUDGETS)
    ledger.keep((use,), 10.0, 0.0)
    assert left(ledger, ANN, 0.0) == {"each": 86_400, "all": 172_800}
    assert ledger.buckets == 0


def test_a_replica_that_had_a_third_and_has_a_half_now_has_half_of_what_was_left() -> None:
    ledger = Ledger(BUDGETS)
    ledger.leased({"all": QuotaShare("all", 1.0, 86_400)}, 2, 0.0)
    ledger.keep(
        (
            QuotaUse("all", None, None, None, 14_400.0, 1 / 3),
            QuotaUse("each", "ann", None, None, 14_400.0, 1 / 3),
        ),
        0.0,
        0.0,
    )
    assert left(ledger, ANN, 0.0) == pytest.approx({"each": 21_600, "all": 64_800})


def test_a_share_that_is_away_comes_back_with_what_was_left() -> None:
    ledger = Ledger(BUDGETS)
    ledger.leased({}, 2, 0.0)
    ledger.keep((QuotaUse("all", None, None, None, 129_600.0),), 0.0, 0.0)
    ledger.leased({"all": QuotaShare("all", 1.0, 86_400)}, 2, 0.0)
    assert left(ledger, ANN, 0.0)["all"] == pytest.approx(21_600), "half of what was left"


def test_a_new_replica_has_an_even_part_of_a_day_although_its_first_share_was_small() -> None:
    """With two workers some gates began with half of each day's budget, for the other half was still leased to the worker that was first."""
    ledger = Ledger(BUDGETS[1:])
    ledger.leased({"all": QuotaShare("all", 0.0, 0.0)}, 2, 0.0)
    short = ledger.shortage(ANN, SMALL, 0.0)
    assert short is not None
    assert (short.wait_s, short.never_fits) == (1.0, False), "it said: in nine minutes"
    for burst in (500.0, 86_400.0, 115_200.0):
        ledger.leased({"all": QuotaShare("all", 0.01, burst)}, 2, 0.0)
    assert left(ledger, ANN, 0.0)["all"] == pytest.approx(86_400)
    taken(ledger, ANN, Sizes(80_000, 0), 0.0)
    ledger.leased({"all": QuotaShare("all", 2.0, 172_800)}, 1, 0.0)
    assert left(ledger, ANN, 0.0)["all"] == pytest.approx(12_800), (
        "the other one is believed to have used as much"
    )


def test_told_again_while_its_share_grows_a_replica_has_its_part_of_what_was_left() -> None:
    ledger = Ledger(BUDGETS[1:])
    kept = (QuotaUse("all", None, None, None, 129_600.0),)
    for burst in (0.0, 500.0, 43_200.0, 86_400.0):
        ledger.leased({"all": QuotaShare("all", 0.01, burst)}, 2, 0.0)
        ledger.keep(kept, 0.0, 0.0)
    assert left(ledger, ANN, 0.0)["all"] == pytest.approx(21_600)


def test_replicas_that_take_each_others_place_cost_no_tenant_a_part_of_its_day() -> None:
    """With two workers each replacement took a third of every day, as three shared it for a moment and what was cut off did not come back."""
    ledger = Ledger(BUDGETS)
    halves = {"all": QuotaShare("all", 1.0, 86_400)}
    ledger.leased(halves, 2, 0.0)
    taken(ledger, ANN, Sizes(8_640, 0), 0.0)
    assert left(ledger, ANN, 0.0) == pytest.approx({"each": 34_560, "all": 77_760})
    for _replacement in range(5):
        ledger.leased(halves, 3, 0.0)  # it hears of the new one before its share shrinks
        ledger.leased({"all": QuotaShare("all", 2 / 3, 57_600)}, 3, 0.0)
        assert left(ledger, ANN, 0.0) == pytest.approx({"each": 23_040, "all": 51_840})
        ledger.leased({"all": QuotaShare("all", 2 / 3, 57_600)}, 2, 0.0)
        ledger.leased(halves, 2, 0.0)
    assert left(ledger, ANN, 0.0) == pytest.approx({"each": 34_560, "all": 77_760})


def test_a_debt_of_a_day_is_shared_among_replicas_as_its_rest_is() -> None:
    ledger = Ledger(BUDGETS[:1])
    ledger.take(ANN, Sizes(86_400 + 6_000, 0), 0.0)
    ledger.leased({}, 2, 0.0)
    short = ledger.shortage(ANN, SMALL, 0.0)
    assert short is not None
    assert short.left == pytest.approx(-3_000)


def test_of_very_many_owners_those_that_came_last_are_kept() -> None:
    ledger = Ledger(BUDGETS[:1])
    for number in range(10_050):
        taken(ledger, ANN._replace(tenant=f"t{number}"), SMALL, 0.0)
    uses = ledger.uses(0.0)
    assert (len(uses), uses[0].tenant, uses[-1].tenant) == (10_000, "t50", "t10049")
