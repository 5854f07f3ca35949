"""After a hang-up: when does the permit end? Never before the engine is done, and not long after."""

from dataclasses import replace

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Ended, Queue
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineProgress,
    EngineSeen,
    Finished,
    FirstToken,
    Growth,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, QuotaLimit, QuotaRule, ServicePrior, Settings
from millgate.core.snapshot import EngineSnapshot
from millgate.core.words import IgnoresHangups, Outcome, QuotaKind, Stage
from millgate.wiring.governor import build_governor


def _gate(ignores: IgnoresHangups = IgnoresHangups.AUTO, cap: int = 1) -> Governor:
    """Return a gate before one engine: 0.1 s to the first token, then 100 tokens in 9.9 s."""
    lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0)
    engine = EngineSettings("engine", cap, prior=steady_prior(10.0), ignores_hangups=ignores)
    return governor(lane, engines=(engine,))


def _arrive(gate: Governor, attempt: int, now: float) -> object:
    return gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=100), now)[0]


def _engine(gate: Governor, now: float) -> EngineSnapshot:
    return gate.snapshot(now).engines[0]


def _gauge(gate: Governor, now: float, running: int | None, waiting: int | None = 0) -> list[int]:
    """Read the gauge now; return who was admitted because of it."""
    decisions = gate.handle(EngineSeen("engine", now, running, waiting), now)
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def test_without_a_gauge_the_permit_ends_after_the_abort_lag() -> None:
    gate = _gate()
    _arrive(gate, 1, 0.0)
    assert isinstance(_arrive(gate, 2, 0.1), Queue)
    gone = gate.handle(ClientGone(1), 1.0)[0]

    assert isinstance(gone, Ended)
    assert (gone.outcome, gone.cause) == (Outcome.CLIENT_GONE, Stage.PREFILL)
    assert gate.next_wake() == pytest.approx(1.3)
    assert gate.handle(Tick(), 1.29) == ()
    assert _engine(gate, 1.29).departing == 1
    assert [each.attempt for each in gate.handle(Tick(), 1.31)] == [2]
    assert _engine(gate, 1.31).departing == 0


def test_the_lag_may_be_said_where_nothing_shows_it() -> None:
    """SGLang behind several replicas: no gauge tells what becomes of one stream, and it takes 2 s."""
    lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0)
    slow = EngineSettings(
        "engine", 1, prior=steady_prior(10.0), ignores_hangups=IgnoresHangups.NO, abort_lag_s=2.0
    )
    gate = governor(lane, engines=(slow,))
    _arrive(gate, 1, 0.0)
    gate.handle(ClientGone(1), 1.0)

    assert gate.next_wake() == pytest.approx(3.0)
    gate.reconfigure(Settings((lane,), (replace(slow, abort_lag_s=4.0),)), 1.5)
    gate.handle(Tick(), 3.1)
    _arrive(gate, 2, 4.0)
    gate.handle(ClientGone(2), 5.0)
    assert gate.next_wake() == pytest.approx(9.0)


def test_the_runtimes_own_word_ends_it_at_once() -> None:
    gate = _gate()
    _arrive(gate, 1, 0.0)
    gate.handle(ClientGone(1), 1.0)

    assert gate.handle(Released(1), 1.05) == ()
    assert _engine(gate, 1.05).running == 0


def test_an_engine_that_ignores_hangups_keeps_the_permit_until_its_tokens_are_out() -> None:
    gate = _gate(IgnoresHangups.YES)
    _arrive(gate, 1, 0.0)
    gate.handle(FirstToken(1), 0.1)
    gate.handle(EngineProgress("engine", (Growth(1, 20),)), 2.0)
    gate.handle(ClientGone(1), 2.0)

    # 80 tokens of 0.099 s remain.
    assert gate.next_wake() == pytest.approx(2.0 + 80 * 0.099)


def test_an_engine_that_computes_whole_answers_to_their_end_keeps_their_permits_and_no_streams() -> None:
    """As `transformers serve` does, which has no gauge."""
    gate = _gate(IgnoresHangups.WHOLE, cap=2)
    gate.handle(Arrived(1, prompt_bytes=400, max_tokens=100, stream=False), 0.0)
    _arrive(gate, 2, 0.0)
    gate.handle(FirstToken(2), 0.1)
    gate.handle(Tick(), 0.2)
    gate.handle(ClientGone(1), 4.0)
    gate.handle(ClientGone(2), 4.0)

    assert gate.next_wake() == pytest.approx(4.3)
    gate.handle(Tick(), 4.4)
    assert _engine(gate, 4.4).departing == 1
    # It has been at the whole answer for 4 of 10 s.
    assert gate.next_wake() == pytest.approx(10.0)
    gate.handle(Tick(), 10.1)
    assert _engine(gate, 10.1).running == 0


def test_a_whole_answer_that_takes_longer_than_expected_keeps_its_permit_for_an_abort_lag() -> None:
    gate = _gate(IgnoresHangups.YES)
    gate.handle(Arrived(1, prompt_bytes=400, max_tokens=100, stream=False), 0.0)
    gate.handle(Tick(), 0.2)
    gate.handle(ClientGone(1), 12.0)

    assert gate.next_wake() == pytest.approx(12.3)


def test_a_fresh_gauge_decides_when_the_client_is_out_of_the_engine() -> None:
    gate = _gate(cap=2)
    _arrive(gate, 1, 0.0)
    _arrive(gate, 2, 0.0)
    _arrive(gate, 3, 0.0)
    _gauge(gate, 1.0, 2)
    gate.handle(ClientGone(1), 1.1)

    assert _gauge(gate, 1.5, 2) == []
    assert gate.handle(Tick(), 1.6) == ()
    assert _engine(gate, 1.6).departing == 1
    assert _gauge(gate, 2.0, 1) == [3]
    assert _engine(gate, 2.0).running == 2


def test_a_reading_from_before_the_hangup_proves_nothing() -> None:
    gate = _gate(cap=2)
    _arrive(gate, 1, 0.0)
    _arrive(gate, 2, 0.0)
    gate.handle(ClientGone(1), 2.0)
    gate.handle(EngineSeen("engine", 1.9, 0, 0), 2.05)

    assert _engine(gate, 2.05).departing == 1


def test_who_was_just_admitted_is_not_yet_expected_in_the_gauge() -> None:
    """A gauge of 1 may be the departed client, while the newcomer is still on its way to the engine."""
    gate = _gate(cap=2)
    _gauge(gate, 0.0, 0)
    _arrive(gate, 1, 0.5)
    gate.handle(ClientGone(1), 1.0)
    _arrive(gate, 2, 1.4)

    _gauge(gate, 1.5, 1)
    assert _engine(gate, 1.5).departing == 1
    _gauge(gate, 2.0, 1)
    assert _engine(gate, 2.0).departing == 0


def test_an_engine_shared_with_others_never_lets_go_early_and_does_so_by_time_at_last() -> None:
    """Strangers' streams in the gauge may be ours: the permit is queued as by an engine that ignores hang-ups."""
    gate = _gate(cap=1)
    _gauge(gate, 0.0, 5)
    _arrive(gate, 1, 0.5)
    gate.handle(FirstToken(1), 0.6)
    gate.handle(ClientGone(1), 1.0)
    for second in range(2, 10):
        _gauge(gate, float(second), 5)
        gate.handle(Tick(), second + 0.5)
        assert _engine(gate, second + 0.5).departing == 1

    gate.handle(Tick(), 11.0)
    assert _engine(gate, 11.0).running == 0


def test_an_engine_that_did_not_let_go_within_three_lags_is_known_to_ignore_hangups() -> None:
    gate = _gate(cap=2)
    _arrive(gate, 1, 0.0)
    _gauge(gate, 0.5, 1)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 1.5, 1)
    assert not _engine(gate, 1.5).ignores_hangups
    _gauge(gate, 2.0, 1)
    assert _engine(gate, 2.0).ignores_hangups

    # Even when its gauge is lost, the next departure is given the time of its remaining tokens.
    gate.handle(Released(1), 2.0)
    _arrive(gate, 2, 10.0)
    gate.handle(ClientGone(2), 11.0)
    gate.handle(Tick(), 15.0)
    assert _engine(gate, 15.0).departing == 1


def test_an_engine_that_lets_go_again_is_believed_again() -> None:
    gate = _gate(cap=2)
    _arrive(gate, 1, 0.0)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 3.0, 1)
    assert _engine(gate, 3.0).ignores_hangups
    gate.handle(Released(1), 3.0)
    _arrive(gate, 2, 4.0)
    gate.handle(ClientGone(2), 5.0)
    _gauge(gate, 5.2, 0)

    assert not _engine(gate, 5.2).ignores_hangups


def test_an_engine_that_takes_long_to_let_go_is_believed() -> None:
    """SGLang aborts a stream 2 s after its client has left: far later than was expected, and far sooner than its answer ends."""
    gate = _gate()
    _arrive(gate, 1, 0.0)
    _gauge(gate, 0.9, 1)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 2.5, 1)
    assert _engine(gate, 2.5).ignores_hangups
    _gauge(gate, 3.5, 0)

    assert not _engine(gate, 3.5).ignores_hangups
    assert _engine(gate, 3.5).abort_lag_s > 1.0


def test_an_answer_that_has_run_to_its_end_was_not_let_go() -> None:
    gate = _gate()
    _arrive(gate, 1, 0.0)
    _gauge(gate, 0.9, 1)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 5.0, 1)
    _gauge(gate, 9.0, 0)

    assert _engine(gate, 9.0).ignores_hangups
    assert _engine(gate, 9.0).abort_lag_s == pytest.approx(0.3)


def test_the_abort_lag_is_learned_from_readings() -> None:
    gate = _gate()
    for attempt in range(40):
        start = attempt * 2.0
        _arrive(gate, attempt, start)
        gate.handle(ClientGone(attempt), start + 1.0)
        _gauge(gate, start + 1.1, 0)

    assert _engine(gate, 80.0).abort_lag_s == pytest.approx(0.1, abs=0.03)


def test_a_setting_that_says_no_is_not_overruled_by_the_gauge() -> None:
    gate = _gate(IgnoresHangups.NO)
    _arrive(gate, 1, 0.0)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 1.2, 1)
    gate.handle(Tick(), 1.4)

    assert _engine(gate, 1.4).running == 0
    assert not _engine(gate, 1.4).ignores_hangups


@pytest.mark.parametrize(("running", "waiting"), [(None, 0), (1, None), (None, None)])
def test_a_gauge_that_did_not_parse_changes_nothing(running: int | None, waiting: int | None) -> None:
    gate = _gate()
    _arrive(gate, 1, 0.0)
    gate.handle(ClientGone(1), 1.0)
    _gauge(gate, 1.2, running, waiting)

    assert _engine(gate, 1.2).departing == 1
    assert not _engine(gate, 1.2).ignores_hangups


def test_a_gauge_stamped_in_the_future_is_taken_as_read_now() -> None:
    gate = _gate()
    gate.handle(EngineSeen("engine", 1e9, 0, 0), 1.0)
    _arrive(gate, 1, 2.0)
    gate.handle(ClientGone(1), 3.0)

    assert _engine(gate, 10.0).seen_running is None
    gate.handle(Tick(), 100.0)
    assert _engine(gate, 100.0).running == 0


def test_hangups_under_load_never_admit_above_what_the_engine_still_runs() -> None:
    """An engine that takes 0.25 s to abort, read every 0.5 s: its own count never passes the cap."""
    gate, cap = _gate(cap=4), 4
    inside: dict[int, float] = {}
    attempt = most = 0
    for step in range(800):
        now = step * 0.05
        inside = {each: until for each, until in inside.items() if until > now}
        if step % 10 == 0:
            decisions = gate.handle(EngineSeen("engine", now, len(inside), 0), now)
        elif step % 3 == 0:
            attempt += 1
            decisions = gate.handle(Arrived(attempt, max_tokens=100), now)
        elif step % 7 == 0 and inside:
            leaver = max(inside, key=lambda each: (inside[each], each))
            inside[leaver] = min(inside[leaver], now + 0.25)
            decisions = gate.handle(ClientGone(leaver), now)
        else:
            decisions = gate.handle(Tick(), now)
        inside |= {each.attempt: now + 1e9 for each in decisions if isinstance(each, Admit)}
        most = max(most, len(inside))

    assert attempt > 200
    assert most == cap


@pytest.mark.parametrize(
    ("answers", "gone_at", "written"), [(1, 5.1, 50), (2, 5.1, 100), (1, 0.05, 0), (1, 60.0, 100)]
)
def test_a_client_that_leaves_before_a_whole_answer_has_used_what_its_engine_has_written(
    answers: int, gone_at: float, written: int
) -> None:
    """None of it is seen, so it cost nothing: with a short timeout a tenant had all of an engine for its prompts."""
    lane = LaneSettings("lane", ttft_slo_s=90.0, deadline_s=90.0)
    engine = EngineSettings("engine", 2, prior=steady_prior(10.0))
    rule = QuotaRule("day", QuotaLimit(QuotaKind.TPD, 1_000))
    gate = build_governor(Settings((lane,), (engine,), quotas=(rule,)), 0.0)
    gate.handle(Arrived(1, prompt_bytes=400, max_tokens=100, answers=answers, stream=False), 0.0)
    gone = gate.handle(ClientGone(1), gone_at)[0]

    assert isinstance(gone, Ended)
    assert gone.output_tokens == pytest.approx(written, abs=1)
    used = 1_000 * (1.0 - gate.snapshot(gone_at).quotas[0].left_share)
    assert used == pytest.approx(gone.prompt_tokens + written, abs=3)


def test_what_a_client_that_leaves_has_used_is_told_by_the_pace_of_an_engine_with_as_many_streams() -> None:
    """An engine writes ten times as fast for one as for sixteen: taken for full, it had written 60 tokens of 860."""
    lane, prior = LaneSettings("lane", ttft_slo_s=90.0, deadline_s=90.0), ServicePrior(0.1, 0.0, 0.001, 0.001)
    gate = build_governor(Settings((lane,), (EngineSettings("engine", 16, prior=prior),)), 0.0)
    for number in range(1, 41):
        began_at = 3.0 * number
        gate.handle(Arrived(number, prompt_bytes=400, max_tokens=2_000, stream=False), began_at)
        gate.handle(Finished(number, 100, 2_000), began_at + 2.1)
        gate.handle(Released(number), began_at + 2.1)
    gate.handle(Arrived(41, prompt_bytes=400, max_tokens=2_000, stream=False), 200.0)
    gone = gate.handle(ClientGone(41), 201.1)[0]

    assert isinstance(gone, Ended)
    assert gone.output_tokens == pytest.approx(1_000, rel=0.1)
