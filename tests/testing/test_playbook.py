"""Playbooks check what a governor decides, and show the whole play when it decides otherwise."""

from unittest.mock import ANY

import pytest

from millgate.core.decisions import Admit, Queue
from millgate.core.events import Arrived, Finished, Released
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import Outcome, Reason
from millgate.testing import ManualClock, Playbook, PlaybookError
from millgate.wiring.governor import build_governor


def play() -> Playbook:
    settings = Settings((LaneSettings("interactive"),), (EngineSettings("engine", 1),))
    return Playbook(build_governor(settings, 0.0))


ADMITTED = Admit(1, legs=ANY, waited_s=0.0, expected_ttft_s=ANY, first_event_by=ANY)


def test_a_play_that_goes_as_written_passes() -> None:
    book = play()
    book.send(Arrived(1)).expect(ADMITTED)
    book.send(Arrived(2)).expect(Queue(2, place=1, expected_wait_s=ANY))
    book.at(0.5).send(Finished(1, 5, 5))
    assert book.decisions[0].attempt == 1
    book.send(Released(1))
    assert isinstance(book.decisions[0], Admit)


def test_another_decision_shows_the_transcript_and_a_diff() -> None:
    book = play().send(Arrived(1))
    with pytest.raises(PlaybookError) as raised:
        book.expect(Queue(1, 1, 0.0))
    told = str(raised.value)
    assert "0: Arrived(attempt=1" in told
    assert "- Queue(attempt=1" in told
    assert "+ Admit(attempt=1" in told


def test_equal_fields_of_another_kind_are_another_decision() -> None:
    with pytest.raises(PlaybookError):
        play().send(Arrived(1)).expect(Queue(ANY, ANY, ANY))


def test_nothing_means_nothing() -> None:
    with pytest.raises(PlaybookError):
        play().send(Arrived(1)).nothing()


def test_time_moves_through_the_wakes_that_the_governor_asks_for() -> None:
    book = play()
    book.send(Arrived(1)).send(Arrived(2, max_tokens=5, time_allowed_s=30.0))
    book.at(40.0)
    told = "\n".join(book._transcript)
    assert "Tick()" in told
    assert str(Reason.EXPIRED) in told or str(Outcome.YIELDED) in told


def test_a_manual_clock_moves_only_forward() -> None:
    clock = ManualClock(5.0)
    assert clock.advance(1.5) == clock.now() == 6.5
    with pytest.raises(ValueError, match="backward"):
        clock.advance(-1)
