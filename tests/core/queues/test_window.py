"""Work that waits for company: until the batch is full, its window ends, or its slack is used up."""

import pytest

from millgate.core.queues.window import BatchWindow, opens_at

FAR = 1e9


def _window(*entered: float, window_s: float = 2.0, start_by: float = FAR) -> BatchWindow:
    window = BatchWindow(window_s)
    for attempt, at in enumerate(entered):
        window.entered(attempt, at, start_by)
    return window


def test_nothing_waits_and_nothing_opens() -> None:
    assert _window().look_again_at(3) is None
    assert not _window().is_open(3, 100.0)


def test_a_full_batch_goes_at_once() -> None:
    assert not _window(10.0, 10.5).is_open(3, 11.0)
    assert _window(10.0, 10.5, 11.0).is_open(3, 11.0)


def test_the_window_ends_for_the_oldest_that_still_waits() -> None:
    window = _window(10.0, 11.0)
    assert window.look_again_at(3) == 12.0
    assert (window.is_open(3, 11.99), window.is_open(3, 12.0)) == (False, True)
    window.left(0, admitted=False)
    assert window.look_again_at(3) == 13.0


@pytest.mark.parametrize(
    ("start_by", "opens"), [(FAR, 12.0), (20.0, 12.0), (15.0, 11.0), (10.5, 10.1), (10.0, 10.0), (3.0, 10.0)]
)
def test_it_shrinks_with_the_slack_to_a_quarter_of_what_is_left(start_by: float, opens: float) -> None:
    at = opens_at(10.0, start_by, 2.0)
    assert at == pytest.approx(opens)
    assert 10.0 <= at <= max(10.0, start_by)


def test_once_open_the_rest_follows_until_nothing_waits() -> None:
    window = _window(10.0, 10.0, 10.0)
    window.left(0, admitted=True)
    assert window.is_open(3, 10.0)
    window.entered(7, 10.1, FAR)
    assert window.newcomer_goes_at(3, 10.1, FAR) == 10.1
    for attempt in (1, 2, 7):
        assert window.is_open(3, 10.1)
        window.left(attempt, admitted=True)

    window.entered(8, 10.2, FAR)
    assert window.look_again_at(3) == 12.2


def test_a_hang_up_does_not_open_it() -> None:
    window = _window(10.0, 10.0)
    window.left(0, admitted=False)
    assert not window.is_open(3, 11.0)


def test_a_hang_up_does_not_stop_a_batch_that_goes() -> None:
    window = _window(10.0, 10.0, 10.0)
    window.left(0, admitted=True)
    window.left(1, admitted=False)
    assert window.is_open(3, 10.0)


@pytest.mark.parametrize(("entered", "goes_at"), [((), 12.5), ((10.0,), 12.0), ((10.0, 10.0), 10.5)])
def test_a_newcomer_is_told_when_its_batch_goes(entered: tuple[float, ...], goes_at: float) -> None:
    assert _window(*entered).newcomer_goes_at(3, 10.5, FAR) == goes_at


def test_a_batch_is_full_when_it_takes_every_free_stream() -> None:
    window = _window(10.0, 10.0)
    assert [window.is_open(free, 10.0) for free in (1, 2, 3)] == [True, True, False]
