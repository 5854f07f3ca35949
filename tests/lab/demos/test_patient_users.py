"""How users behave, against an endpoint that answers from a script."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest
from lab.demos.closed_loop import batched_answer_s, closed_loop
from lab.demos.patient_users import PatientUser, UserManners

from millgate.demos.connection import AttemptAnswer, Endpoint
from millgate.demos.processes import ChildError
from millgate.demos.stage import EngineSetup
from millgate.demos.users import Story, UserEnding, Wish

MANNERS = UserManners(patience_s=5.0, refreshes=2, returns=3)
HUNG_UP = AttemptAnswer(hung_up=True)


class Script:
    """An endpoint that gives these answers in order, the last one for ever, and remembers the patience of each."""

    def __init__(self, *answers: AttemptAnswer, takes_s: float = 0.0) -> None:
        self.asked: list[float] = []
        self._answers = answers
        self._takes_s = takes_s

    async def ask(self, body: bytes, patience_s: float) -> AttemptAnswer:
        assert body
        self.asked.append(patience_s)
        await asyncio.sleep(self._takes_s)
        now = asyncio.get_running_loop().time()
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        first = None if answer.first_token_at is None else now
        return answer._replace(ended_at=now, first_token_at=first)


WHOLE = AttemptAnswer(status=200, first_token_at=1.0, whole=True)


def _refusal(hint_s: float | None, *, retry: bool = True) -> AttemptAnswer:
    return AttemptAnswer(status=503, hint_s=hint_s, retry=retry, reason="saturated")


def _lived(script: Script) -> Story:
    return asyncio.run(PatientUser(cast("Endpoint", script), MANNERS).live(b"{}"))


def test_an_answered_user_asks_once() -> None:
    story = _lived(Script(WHOLE))

    assert (story.ending, story.attempts) == (UserEnding.WHOLE, 1)
    assert story.first_token_s is not None


def test_a_user_refreshes_at_once_and_only_so_often() -> None:
    story = _lived(Script(HUNG_UP))

    assert (story.ending, story.attempts, story.refreshes) == (UserEnding.GONE, 3, 2)


def test_a_user_comes_back_when_told_and_not_before() -> None:
    story = _lived(Script(_refusal(0.02), _refusal(0.03), WHOLE))

    assert (story.ending, story.attempts, story.reasons) == (UserEnding.WHOLE, 3, ("saturated", "saturated"))
    assert story.first_token_s is not None
    assert story.first_token_s >= 0.05


def test_patience_goes_on_while_a_hint_is_obeyed() -> None:
    script = Script(_refusal(0.05), WHOLE)

    _lived(script)

    assert script.asked[0] == pytest.approx(5.0, abs=0.01)
    assert script.asked[1] <= 4.95


@pytest.mark.parametrize("refusal", [_refusal(0.01, retry=False), _refusal(None), _refusal(6.0)])
def test_a_user_told_to_go_or_to_come_back_too_late_goes(refusal: AttemptAnswer) -> None:
    story = _lived(Script(refusal))

    assert (story.ending, story.attempts, story.reasons) == (UserEnding.REFUSED, 1, ("saturated",))


def test_hints_are_obeyed_only_so_often() -> None:
    assert _lived(Script(_refusal(0.001))).attempts == 4


def _encode(number: int, wish: Wish) -> bytes:
    return f"{number} {wish.output_tokens}".encode()


def _endless() -> Iterator[Wish]:
    while True:
        yield Wish(0.0, 1, 1)


def _capacity(script: Script) -> float:
    return asyncio.run(
        closed_loop(
            cast("Endpoint", script),
            _endless(),
            _encode,
            users=4,
            warmup_s=0.05,
            measured_s=0.2,
            on_story=lambda _: None,
        )
    )


def test_a_closed_loop_counts_whole_answers_a_second() -> None:
    """Four users and 20 ms an answer cannot exceed 200 a second."""
    assert 0 < _capacity(Script(WHOLE, takes_s=0.02)) <= 200


def test_a_closed_loop_in_which_no_answer_ends_is_no_capacity_of_0() -> None:
    with pytest.raises(ChildError, match=r"the engine alone ended no answer in 0\.2 s"):
        _capacity(Script(WHOLE, takes_s=1.0))


def test_an_answer_of_a_full_batch_takes_about_what_the_measured_capacity_says() -> None:
    """docs/results.md: 16 streams end 5.7 answers a second."""
    setup = EngineSetup("llama3-70b_h100_tp4", time_scale=5.0, max_num_seqs=16)
    assert 5.0 * batched_answer_s(setup, 600.0, 150.0) == pytest.approx(16 / 5.7, rel=0.2)


def test_a_closed_loop_refuses_to_measure_a_broken_engine() -> None:
    with pytest.raises(ChildError, match="did not answer whole"):
        _capacity(Script(AttemptAnswer(status=500)))
