"""INV-6 over any story: several rules and tenants, answers of any size, settled in any order, at odd times."""

from hypothesis import settings as profile, strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millgate.core.quotas.bucket import Reservation, Sizes, reserved_amount, used_amount
from millgate.core.quotas.ledger import Ledger, Shortage, Who
from millgate.core.settings import QuotaLimit, QuotaRule
from millgate.core.words import OutputCharge, QuotaKind

TENANTS = ("ann", "bob")
CHARGES = (OutputCharge.EXPECTED, OutputCharge.MAX_TOKENS)
TOLERANCE = 1e-3


class Taken:
    """One request as an outsider knows it: when, what its limit counts for it now, and the excess over its estimate."""

    def __init__(self, tenant: str, at: float, reservation: Reservation, amounts: dict[str, float]) -> None:
        self.tenant, self.at, self.reservation = tenant, at, reservation
        self.amounts = amounts
        self.excess = dict.fromkeys(amounts, 0.0)


class Inv6(RuleBasedStateMachine):
    """INV-6: settled amounts in any window <= burst + rate x t + the underestimates so far; no level above its burst."""

    @initialize(
        output=some.sampled_from(CHARGES),
        cached=some.booleans(),
        burst_s=some.sampled_from([None, 1.0, 20.0]),
    )
    def begin(self, output: OutputCharge, cached: bool, burst_s: float | None) -> None:
        self.now = 0.0
        self.held_to = [
            QuotaRule("rpm", QuotaLimit(QuotaKind.RPM, 30, burst_s), each=("tenant",)),
            QuotaRule("tpm", QuotaLimit(QuotaKind.TPM, 6_000, burst_s, output, cached), each=("tenant",)),
            QuotaRule("otpm", QuotaLimit(QuotaKind.OTPM, 1_200, None, output)),
        ]
        self.ledger = Ledger(self.held_to)
        self.open: list[Taken] = []
        self.all: list[Taken] = []

    @rule(gap_s=some.floats(0.0, 30.0))
    def time_passes(self, gap_s: float) -> None:
        self.now += gap_s

    @rule(
        tenant=some.sampled_from(TENANTS),
        prompt=some.integers(0, 3_000),
        output=some.integers(0, 600),
        more=some.integers(0, 400),
    )
    def a_request_asks(self, tenant: str, prompt: int, output: int, more: int) -> None:
        sizes, who = Sizes(prompt, output, output + more), Who(tenant, "m", "l")
        before = self.ledger.report(who, self.now)
        got = self.ledger.shortage(who, sizes, self.now) or self.ledger.take(who, sizes, self.now)
        if isinstance(got, Reservation):
            amounts = {each.name: reserved_amount(each.limit, sizes) for each in self.held_to}
            taken = Taken(tenant, self.now, got, amounts)
            self.open.append(taken)
            self.all.append(taken)
            return
        assert isinstance(got, Shortage)
        assert self.ledger.report(who, self.now) == before
        if not got.never_fits:
            assert self.ledger.shortage(who, sizes, self.now + got.wait_s) is None

    @rule(
        which=some.integers(0, 30),
        prompt=some.integers(0, 4_000),
        cached=some.integers(0, 4_000),
        output=some.integers(0, 900),
        is_left=some.booleans(),
    )
    def an_answer_ends(self, which: int, prompt: int, cached: int, output: int, is_left: bool) -> None:
        if which >= len(self.open):
            return
        taken = self.open.pop(which)
        if is_left:
            taken.reservation.read(prompt, min(cached, prompt))
            taken.reservation.settle(None, 0, output, self.now)
        else:
            taken.reservation.settle(prompt, min(cached, prompt), output, self.now)
        for each in self.held_to:
            used = used_amount(each.limit, prompt, min(cached, prompt), output)
            taken.excess[each.name] = max(0.0, used - taken.amounts[each.name])
            taken.amounts[each.name] = used

    @rule(which=some.integers(0, 30))
    def a_request_is_taken_back(self, which: int) -> None:
        if which < len(self.open):
            taken = self.open.pop(which)
            taken.reservation.cancel(self.now)
            taken.amounts = dict.fromkeys(taken.amounts, 0.0)

    @invariant()
    def no_window_holds_more_than_burst_and_rate(self) -> None:
        if not getattr(self, "all", None):
            return
        for each in self.held_to:
            groups = TENANTS if each.each else (None,)
            for tenant in groups:
                self._check(each, [one for one in self.all if tenant is None or one.tenant == tenant])

    def _check(self, held_to: QuotaRule, requests: list[Taken]) -> None:
        """Look at every window that begins and ends with a request; between them nothing is counted."""
        limit, name = held_to.limit, held_to.name
        underestimates = sum(one.excess[name] for one in requests)
        for first, begin in enumerate(requests):
            total = 0.0
            for last in requests[first:]:
                total += last.amounts[name]
                allowed = limit.burst + limit.rate_per_s * (last.at - begin.at) + underestimates
                assert total <= allowed + TOLERANCE, (name, begin.at, last.at)

    @invariant()
    def no_level_is_above_its_burst(self) -> None:
        if not getattr(self, "all", None):
            return
        for tenant in TENANTS:
            states = self.ledger.report(Who(tenant, "m", "l"), self.now)
            for state, each in zip(states, self.held_to, strict=True):
                assert state.remaining <= each.limit.burst + TOLERANCE


TestInv6 = Inv6.TestCase
TestInv6.settings = profile(max_examples=60, stateful_step_count=50)
