"""Accounts of a run: judged from the user's side, in bounded memory."""

from millgate.core.settings import LaneSettings
from millgate.core.words import DeadlineFrom, Outcome
from millgate.sim.engines.contract import EngineTotals
from millgate.sim.records import Recorder

LANE = LaneSettings("interactive", ttft_slo_s=1.0, tpot_slo_s=0.1)


def answer(books: Recorder, first_at: float, first_token_at: float, end: float, tokens: int = 11) -> None:
    books.asked(first_at)
    books.tried(first_at)
    books.answered(None, first_at, first_at, first_token_at, end, 100, tokens)


def test_an_answer_is_good_when_first_token_and_pace_are_in_time() -> None:
    books = Recorder([LANE])
    answer(books, 0.0, 0.9, 1.8)
    answer(books, 0.0, 1.1, 2.0)
    answer(books, 0.0, 0.9, 2.1)

    assert books.outcomes == {"good": 1, "late": 2}


def test_a_deadline_from_the_first_attempt_counts_all_the_waiting() -> None:
    first, each = Recorder([LANE]), Recorder([LaneSettings("batch", 1.0, deadline_from=DeadlineFrom.ATTEMPT)])
    for books in (first, each):
        books.answered(None, 0.0, 5.0, 5.5, 6.0, 100, 11)

    assert (first.outcomes, each.outcomes) == ({"late": 1}, {"good": 1})


def test_the_warm_up_is_served_and_not_counted() -> None:
    books = Recorder([LANE], from_s=10.0)
    answer(books, 5.0, 5.5, 6.0)
    answer(books, 15.0, 15.5, 16.0)
    summary = books.summary(EngineTotals(200, 22, 0))

    assert (summary.requests, summary.outcomes, summary.ttft_s.count) == (1, {"good": 1}, 1)
    assert summary.waste == 0.0


def test_returns_of_requests_of_the_warm_up_are_not_counted() -> None:
    """A run told of 46 returns, all kept, of which none was of a request that it counted."""
    books = Recorder([LANE], from_s=10.0)
    for first_at, kept in ((5.0, True), (15.0, True), (15.0, False)):
        books.returned(first_at, kept=kept)
    summary = books.summary(EngineTotals(0, 0, 0))

    assert (summary.returns, summary.returns_kept) == (2, 0.5)


def test_requests_at_once_without_an_answer_have_no_rate() -> None:
    """One request that no engine can hold was a billion a second."""
    books = Recorder([LANE])
    books.asked(0.0)
    books.over(Outcome.YIELDED, 0.0)
    summary = books.summary(EngineTotals(0, 0, 0))

    assert (summary.requests, summary.asked_per_s, summary.goodput_per_s) == (1, 0.0, 0.0)


def test_tokens_for_anything_but_a_good_answer_are_waste() -> None:
    books = Recorder([LANE])
    answer(books, 0.0, 0.5, 1.0)
    books.over(Outcome.CLIENT_GONE, 0.0)

    assert books.summary(EngineTotals(400, 44, 0)).waste == 0.75
