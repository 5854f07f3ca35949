"""Several accounts of one model: their line moves at the sum of their rates."""

import pytest

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import (
    ClientGone,
    EngineProgress,
    Failed,
    Finished,
    Growth,
    PrefixMarks,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
)
from millgate.core.words import FailureKind, QuotaKind, Reason, Sent
from millgate.wiring.governor import build_governor

STEP_S = 0.05
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 10


def _gate(*per_minute: float, deadline_s: float = 10.0, max_queue: int | None = None) -> Governor:
    """Return a gate before accounts of so many requests a minute, saved for five seconds at most."""
    engines = tuple(
        EngineSettings(
            f"account-{number}",
            100,
            prior=steady_prior(0.2),
            account=AccountSettings((QuotaLimit(QuotaKind.RPM, rate, burst_s=5.0),)),
        )
        for number, rate in enumerate(per_minute)
    )
    lane = LaneSettings("lane", deadline_s=deadline_s, max_queue=max_queue)
    return build_governor(Settings((lane,), engines), 0.0)


class _Served:
    """Answers at once what is admitted; `at` is when each was."""

    def __init__(self, gate: Governor) -> None:
        self._gate = gate
        self.at: dict[int, float] = {}

    def take(self, decisions: tuple[Decision, ...], now: float) -> None:
        open_now = [each for each in decisions if isinstance(each, Admit)]
        while open_now:
            number = open_now.pop().attempt
            self.at[number] = now
            for event in (Finished(number, PROMPT_TOKENS, OUTPUT_TOKENS), Released(number)):
                made = self._gate.handle(event, now)
                open_now += [each for each in made if isinstance(each, Admit)]

    def run(self, begin: float, end: float) -> None:
        for step in range(int((end - begin) / STEP_S)):
            now = begin + step * STEP_S
            self.take(self._gate.handle(Tick(), now), now)


@pytest.mark.parametrize("per_minute", [(120.0, 60.0), (60.0, 60.0, 60.0), (180.0,)])
def test_a_burst_before_several_accounts_is_queued_as_far_as_all_of_them_serve_in_time(
    per_minute: tuple[float, ...],
) -> None:
    """The line was reckoned as if the fastest account served it alone: a third was refused that would have been in time."""
    gate = _gate(*per_minute)
    served = _Served(gate)
    decisions = {number: ask(gate, number, 0.0) for number in range(100)}
    served.take(tuple(decisions.values()), 0.0)
    queued = [each for each in decisions.values() if isinstance(each, Queue)]
    served.run(STEP_S, 12.0)

    assert len(queued) == pytest.approx(30, abs=3)
    assert len([number for number, at in served.at.items() if at <= 10.0]) >= 0.9 * len(queued)
    late_s = [served.at[each.attempt] - each.expected_wait_s for each in queued if each.attempt in served.at]
    assert max(map(abs, late_s)) < 1.0


def test_a_hint_before_several_accounts_is_when_all_of_them_have_served_those_before_it() -> None:
    gate = _gate(120.0, 60.0, deadline_s=60.0, max_queue=0)
    hints = [each.retry_after_s for number in range(30) if isinstance(each := ask(gate, number, 0.0), Yield)]

    assert hints[-1] == pytest.approx(len(hints) / 3.0, rel=0.15)


@pytest.mark.parametrize(
    ("kind", "charged"),
    [
        (FailureKind.CONNECT, 0.0),
        (FailureKind.REFUSED, 0.0),
        (FailureKind.NO_CREDIT, 0.0),
        (FailureKind.STATUS, 100.0),
    ],
)
def test_a_tenant_is_charged_no_tokens_of_a_prompt_that_its_provider_has_refused_to_read(
    kind: FailureKind, charged: float
) -> None:
    """Each retry of a refused request took its prompt from the day's budget again."""
    rules = [
        QuotaRule("day.tpd", QuotaLimit(QuotaKind.TPD, 10_000)),
        QuotaRule("day.rpd", QuotaLimit(QuotaKind.RPD, 100)),
    ]
    gate = gate_of(quotas=tuple(rules))
    before = ask(gate, 1, 0.0).quota
    gate.handle(Failed(1, kind, Sent.REQUEST, over_limit=kind is FailureKind.REFUSED), 0.0)
    gate.handle(Released(1), 0.0)
    (tokens, requests) = ask(gate, 2, 0.0).quota

    assert before[0].remaining - tokens.remaining == pytest.approx(charged, abs=25)
    assert before[1].remaining - requests.remaining == 1.0


def test_a_line_before_an_account_that_is_out_is_that_of_the_others() -> None:
    gate = _gate(60.0, 60.0, deadline_s=60.0)
    first = ask(gate, 1, 0.0)
    refused = Failed(1, FailureKind.REFUSED, Sent.REQUEST, 30.0, over_limit=True)
    gate.handle(refused, 0.1)
    gate.handle(Released(1), 0.1)
    waits = [
        each.expected_wait_s for number in range(2, 23) if isinstance(each := ask(gate, number, 0.1), Queue)
    ]

    assert isinstance(first, Admit)
    assert waits[-1] == pytest.approx(len(waits) / 0.98, rel=0.1)


def test_a_long_context_that_came_from_the_cache_is_not_charged_whole_where_its_user_stops_the_answer() -> (
    None
):
    """Each press of Escape in an agent took 150,000 tokens from a limit that does not count what is cached."""
    uncached = QuotaLimit(QuotaKind.ITPM, 200_000.0, count_cached=False)
    engine = EngineSettings("account", 100, prior=steady_prior(2.0), account=AccountSettings((uncached,)))
    gate = gate_of(engine=engine, quotas=(QuotaRule("team", uncached),))
    asked = {"prompt_bytes": 600_000, "stream": True}
    first = ask(gate, 1, 0.0, **asked)
    gate.handle(EngineProgress("account", (Growth(1, 0, 150_000, 149_000),)), 0.5)
    (ended,) = gate.handle(ClientGone(1), 1.0)
    gate.handle(Released(1), 1.0)
    snapshot = gate.snapshot(1.0)
    account = snapshot.engines[0].account

    assert isinstance(first, Admit)
    assert isinstance(ended, Ended)
    assert (ended.prompt_tokens, ended.cached_tokens, ended.output_tokens) == (150_000, 149_000, 0)
    assert account is not None
    assert account.left_share > 0.0
    assert snapshot.quotas[0].left_share == pytest.approx(1.0, abs=0.01)


def _turns_of(session: int, turn: int) -> PrefixMarks:
    """Return the marks of a conversation of 50,000 tokens that grows by 500 with each turn."""
    ends = [200_000 + 2_000 * each for each in range(turn + 1)]
    return tuple((1_000 * session + number, end) for number, end in enumerate(ends))


def _asks_turn(gate: Governor, number: int, session: int, turn: int, now: float) -> Decision:
    marks = _turns_of(session, turn)
    decision: Decision = ask(gate, number, now, prompt_bytes=marks[-1][1], stream=True, marks=lambda: marks)
    return decision


def _takes_turn(gate: Governor, number: int, session: int, turn: int, now: float, told: int) -> Decision:
    """Ask for a turn and answer it at once, `told` tokens of it from the cache."""
    decision = _asks_turn(gate, number, session, turn, now)
    prompt_tokens = _turns_of(session, turn)[-1][1] // 4
    gate.handle(Finished(number, prompt_tokens, 10, cached_tokens=told), now)
    gate.handle(Released(number), now)
    return decision


@pytest.mark.parametrize(("cached", "running"), [(True, 8), (False, 4)])
def test_agents_whose_contexts_are_cached_run_at_once_where_the_account_does_not_count_them(
    cached: bool, running: int
) -> None:
    """Eight agents with 50,000 tokens each waited for each other's turns, while the provider counted a hundredth of them."""
    uncached = QuotaLimit(QuotaKind.ITPM, 250_000.0, count_cached=False)
    engine = EngineSettings("account", 100, prior=steady_prior(2.0), account=AccountSettings((uncached,)))
    gate = gate_of(engine=engine)
    for session in range(8):
        for turn in range(2):
            now = 60.0 * (2 * session + turn)
            told = 50_000 if cached and turn else 0
            _takes_turn(gate, 100 * session + turn, session, turn, now, told)
    asked = [_asks_turn(gate, 5_000 + session, session, 2, 1_200.0) for session in range(8)]

    assert sum([isinstance(each, Admit) for each in asked]) == running


def test_a_context_larger_than_a_minute_goes_on_where_its_provider_has_it_cached() -> None:
    """An agent that grew beyond the account's minute was told that it can never fit, and the provider counted a few hundred tokens."""
    uncached = QuotaLimit(QuotaKind.ITPM, 50_500.0, count_cached=False)
    engine = EngineSettings("account", 100, prior=steady_prior(2.0), account=AccountSettings((uncached,)))
    gate = gate_of(engine=engine)
    answers = [
        _takes_turn(gate, turn, 1, turn, 120.0 * turn, 50_000 + 500 * (turn - 1) if turn else 0)
        for turn in range(10)
    ]
    unknown = _asks_turn(gate, 99, 2, 9, 1_300.0)

    assert all(isinstance(each, Admit) for each in answers)
    assert isinstance(unknown, Yield)
    assert unknown.reason is Reason.TOO_LARGE


def test_a_context_that_goes_on_at_another_account_is_charged_whole_there() -> None:
    """What one account has in its cache the other one reads, and counts."""
    uncached = QuotaLimit(QuotaKind.ITPM, 600_000.0, count_cached=False)
    one, other = (
        EngineSettings(name, 1, prior=steady_prior(2.0), account=AccountSettings((uncached,)))
        for name in ("one", "other")
    )
    lane = LaneSettings("lane", deadline_s=60.0, max_overtakes=0)
    gate = build_governor(Settings((lane,), (one, other)), 0.0)
    for turn in range(3):
        _takes_turn(gate, turn, 1, turn, 60.0 * turn, 50_000 if turn else 0)
    held = _asks_turn(gate, 10, 1, 3, 300.0)
    before = _left(gate, 300.0)
    moved = _asks_turn(gate, 11, 1, 3, 300.0)

    assert isinstance(held, Admit)
    assert isinstance(moved, Admit)
    assert held.legs[0].engine != moved.legs[0].engine
    name = moved.legs[0].engine
    taken = (before[name] - _left(gate, 300.0)[name]) * 600_000.0 * 0.98
    assert taken == pytest.approx(51_500, rel=0.1)


def _left(gate: Governor, now: float) -> dict[str, float]:
    """Return what share of each account is left."""
    accounts = {each.name: each.account for each in gate.snapshot(now).engines}
    return {name: account.left_share for name, account in accounts.items() if account is not None}
