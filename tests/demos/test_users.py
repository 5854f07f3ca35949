"""How users with an SDK behave, against an endpoint that answers from a script."""

import asyncio
import random
from typing import cast

import pytest

from millgate.demos.connection import AttemptAnswer, Endpoint
from millgate.demos.users import (
    BACKOFF_JITTER,
    FIRST_BACKOFF_S,
    SdkUser,
    Story,
    UserEnding,
    Wish,
    open_loop,
)

HUNG_UP = AttemptAnswer(hung_up=True)
WHOLE = AttemptAnswer(status=200, first_token_at=1.0, whole=True)
BUSY = AttemptAnswer(status=503)
FAST = 1000.0
"""Engine seconds in a real one: no test waits for a back-off."""


class Script:
    """An endpoint that gives these answers in order, the last one for ever, and remembers when it was asked."""

    def __init__(self, *answers: AttemptAnswer, takes_s: float = 0.0) -> None:
        self.asked_at: list[float] = []
        self._takes_s = takes_s
        self.patience_s: list[float] = []
        self._answers = answers

    async def ask(self, body: bytes, patience_s: float) -> AttemptAnswer:
        assert body
        now = asyncio.get_running_loop().time()
        self.asked_at.append(now)
        self.patience_s.append(patience_s)
        await asyncio.sleep(self._takes_s)
        answer = self._answers[min(len(self.asked_at), len(self._answers)) - 1]
        return answer._replace(ended_at=now, first_token_at=now if answer.first_token_at else None)


def _lived(script: Script, time_scale: float = FAST) -> Story:
    return asyncio.run(_user(script, time_scale).live(b"{}"))


def _user(script: Script, time_scale: float = FAST) -> SdkUser:
    return SdkUser(cast("Endpoint", script), 10.0, 4, dice=random.Random(1), time_scale=time_scale)


@pytest.mark.parametrize("answer", [HUNG_UP, BUSY, AttemptAnswer(status=429), AttemptAnswer(status=0)])
def test_every_kind_of_failure_is_tried_three_times_more_in_all(answer: AttemptAnswer) -> None:
    assert _lived(Script(answer)).attempts == 4


def test_a_hang_up_is_one_of_the_tries() -> None:
    story = _lived(Script(HUNG_UP, BUSY, HUNG_UP, WHOLE))

    assert (story.ending, story.attempts, story.refreshes, story.reasons) == (
        UserEnding.WHOLE,
        4,
        2,
        ("503",),
    )


def test_every_try_has_the_whole_patience() -> None:
    script = Script(HUNG_UP, HUNG_UP, WHOLE)

    _lived(script)

    assert script.patience_s == [10.0, 10.0, 10.0]


def test_a_hint_is_obeyed_to_the_letter_in_real_time() -> None:
    script = Script(BUSY._replace(hint_s=0.05), WHOLE)

    _lived(script)

    assert script.asked_at[1] - script.asked_at[0] >= 0.05


def test_without_a_hint_the_back_off_is_scaled() -> None:
    script = Script(BUSY, WHOLE)

    _lived(script, time_scale=10.0)

    assert script.asked_at[1] - script.asked_at[0] >= FIRST_BACKOFF_S * (1.0 - BACKOFF_JITTER) / 10.0


@pytest.mark.parametrize(
    "answer", [BUSY._replace(retry=False, hint_s=0.01), AttemptAnswer(status=400), WHOLE]
)
def test_who_is_told_not_to_come_back_does_not(answer: AttemptAnswer) -> None:
    assert _lived(Script(answer)).attempts == 1


def test_the_time_to_the_first_token_counts_from_the_first_try() -> None:
    story = _lived(Script(BUSY._replace(hint_s=0.05), WHOLE))

    assert story.first_token_s is not None
    assert story.first_token_s >= 0.05


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        (AttemptAnswer(retry=False), UserEnding.FAILED),
        (AttemptAnswer(status=500, retry=False), UserEnding.FAILED),
        (AttemptAnswer(status=200, first_token_at=1.0), UserEnding.CUT),
    ],
)
def test_an_answer_that_is_no_answer_is_never_whole(answer: AttemptAnswer, ending: UserEnding) -> None:
    assert _lived(Script(answer)).ending is ending


def _encode(number: int, wish: Wish) -> bytes:
    return f"{number} {wish.output_tokens}".encode()


def _opened(script: Script, wishes: list[Wish], grace_s: float) -> tuple[list[Story], list[Story]]:
    heard: list[Story] = []
    stories = asyncio.run(
        open_loop(
            wishes,
            _encode,
            lambda body: _user(script).live(body),
            on_story=heard.append,
            grace_s=grace_s,
        )
    )
    return stories, heard


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Three arrivals 10 ms apart meet a server that takes 100 ms: with waiting the last would start at 200 ms."""
    stories, heard = _opened(Script(WHOLE, takes_s=0.1), [Wish(at * 0.01, 1, 1) for at in range(3)], 5.0)

    assert [story.ending for story in stories] == [UserEnding.WHOLE] * 3
    assert heard == stories


def test_whoever_outlasts_the_grace_is_told_as_unfinished() -> None:
    stories, heard = _opened(Script(WHOLE, takes_s=60.0), [Wish(0.0, 1, 1)], 0.05)

    assert [story.ending for story in stories] == [UserEnding.UNFINISHED]
    assert heard == []
