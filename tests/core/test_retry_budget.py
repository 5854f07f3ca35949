"""A retry that nobody asked for is rationed; a return that was agreed on is not."""

import pytest
from hypothesis import given, settings, strategies as some

from millgate.core.governor.allowances import (
    FORGET_AFTER_S,
    OTHERS,
    RetryBudget,
)
from millgate.core.measure import WINDOW_S
from millgate.core.snapshot import TenantSnapshot


def _spend_all(budget: RetryBudget, tenant: str, now: float, drain_per_s: float) -> int:
    """Let this tenant retry until it is refused; return how often it passed."""
    passed = 0
    while budget.allows(tenant, now, drain_per_s):
        budget.spend(tenant, now)
        passed += 1
    return passed


@pytest.mark.parametrize(
    ("admitted", "drain_per_s", "passes"),
    [(0, 0.0, 1), (0, 0.1, 1), (0, 2.0, 1), (0, 10.0, 5), (100, 0.0, 21), (100, 10.0, 25), (4, 0.0, 1)],
)
def test_the_budget_is_a_fifth_of_the_admitted_and_a_reserve(
    admitted: int, drain_per_s: float, passes: int
) -> None:
    budget = RetryBudget()
    for number in range(admitted):
        budget.admitted(number * 5.0 / admitted)

    assert _spend_all(budget, "t", 5.0, drain_per_s) == passes
    assert budget.spent(5.0) == passes


def test_what_was_spent_comes_back_after_the_window() -> None:
    budget = RetryBudget()
    assert _spend_all(budget, "t", 0.5, 10.0) == 5
    assert not budget.allows("t", 9.9, 10.0)
    assert budget.allows("t", 0.0 + WINDOW_S, 10.0)
    assert _spend_all(budget, "t", WINDOW_S, 10.0) == 5


def test_admissions_that_are_too_old_earn_nothing() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.admitted(3.0)

    assert budget.budget(12.9, 0.0) == pytest.approx(21.0)
    assert budget.budget(13.0, 0.0) == pytest.approx(1.0)


def test_a_tenant_alone_may_use_all_and_leaves_the_next_one_its_share() -> None:
    budget = RetryBudget()
    assert _spend_all(budget, "loud", 1.0, 20.0) == 10
    assert _spend_all(budget, "quiet", 1.0, 20.0) == 5
    assert not budget.allows("loud", 1.0, 20.0)
    assert _spend_all(budget, "third", 1.0, 20.0) == 3


def test_shares_that_nobody_uses_are_lent() -> None:
    budget = RetryBudget()
    budget.spend("quiet", 1.0)

    assert _spend_all(budget, "loud", 1.0, 20.0) == 9


def test_one_that_retries_three_times_as_often_takes_nothing_from_the_share_of_another() -> None:
    """Ten in ten seconds are five for each, whoever asks first and more often."""
    budget, passed = RetryBudget(), {"loud": 0, "quiet": 0}
    for step in range(600):
        now = step / 10.0
        for tenant in ("loud", "loud", "loud", "quiet"):
            if budget.allows(tenant, now, 20.0):
                budget.spend(tenant, now)
                passed[tenant] += now >= 2 * WINDOW_S

    windows = 60 / WINDOW_S - 2
    assert passed["quiet"] >= 5 * windows
    assert sum(passed.values()) <= 1.5 * 10 * windows


@settings(max_examples=60)
@given(some.lists(some.tuples(some.integers(0, 6), some.floats(0.0, 4.0), some.booleans()), max_size=150))
def test_inv_5_never_more_than_twice_the_budget_passes_in_a_window(
    steps: list[tuple[int, float, bool]],
) -> None:
    budget, now, spent = RetryBudget(tenants=4), 0.0, []
    for who, step_s, admitted in steps:
        now += step_s
        if admitted:
            budget.admitted(now)
        ceiling, before = budget.budget(now, 10.0), budget.spent(now)
        if budget.allows(str(who), now, 10.0):
            budget.spend(str(who), now)
            spent.append(now)
            assert before + 1 <= 2.0 * ceiling
        recent = sum(int(each) > int(now) - WINDOW_S for each in spent)
        assert budget.spent(now) == recent
    assert len(budget.amplification()) <= 5


def test_asking_changes_nothing() -> None:
    """`explain` asks as well, and for times to come."""
    asked, left_alone = RetryBudget(), RetryBudget()
    for budget in (asked, left_alone):
        for number in range(8):
            budget.spend("t", number / 2.0)
    for later in (4.0, 100.0, 11.0):
        asked.allows("t", later, 10.0)

    assert [asked.spent(at) for at in (4.0, 12.0)] == [left_alone.spent(at) for at in (4.0, 12.0)] == [8, 2]


def test_amplification_is_attempts_over_requests_by_tenant() -> None:
    budget = RetryBudget()
    for retry in (False, True, True):
        budget.arrived("t", 1.0, retry=retry)
    budget.arrived("u", 1.0, retry=False)

    assert budget.amplification() == (TenantSnapshot("t", 3, 1), TenantSnapshot("u", 1, 1))


def test_inv_5_tenants_beyond_the_bound_are_known_together_until_another_is_at_rest() -> None:
    budget = RetryBudget(tenants=2)
    for tenant in ("a", "b", "c", "d", "a"):
        budget.arrived(tenant, 1.0, retry=False)
    assert {name: attempts for name, attempts, _ in budget.amplification()} == {
        "a": 2,
        "b": 1,
        OTHERS: 2,
    }

    budget.arrived("a", 500.0, retry=False)
    budget.arrived("c", 2.0 + FORGET_AFTER_S, retry=False)
    assert {each.tenant for each in budget.amplification()} == {"a", "c", OTHERS}
