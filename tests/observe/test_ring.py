"""Why: what the core decided is kept, found under the id that the client saw, and retold with its numbers."""

from typing import Any

import pytest

from millgate.core.decisions import Admit, Cancel, Ended, Leg, Queue, Reshaped, Yield
from millgate.core.events import Arrived, Event, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import Counted, FailureKind, Outcome, Reason, Stage
from millgate.observe.explanation import ExplainedAttempt, numbers, retell, sentence
from millgate.observe.refusals import Refusals
from millgate.observe.ring import FEWEST_STEPS, MOST_ANSWERED, MOST_CAUSES, Kept, Ring, arrival_of, facts_of
from millgate.observe.step_accounting import StepAccounting
from millgate.observe.traffic import Traffic
from millgate.wiring.governor import build_governor


class Watched:
    """A real governor with one stream, watched."""

    def __init__(self, attempts: int = 100, **lane: Any) -> None:
        settings = Settings((LaneSettings("interactive", **lane),), (EngineSettings("gpu-0", 1),))
        self.core: Governor = build_governor(settings, 0.0)
        self.ring = Ring("b007", attempts)
        self.accounting = StepAccounting(self.ring, Traffic(), Refusals())

    def post(self, event: Event, now: float) -> None:
        self.accounting.on_step(event, self.core.handle(event, now), now)

    def told(self, wanted: str) -> list[ExplainedAttempt]:
        self.accounting.settle()
        return [retell(each) for each in self.ring.find(wanted)]

    def words(self, wanted: str) -> list[str]:
        (attempt,) = self.told(wanted)
        assert attempt.whole
        return [step.words for step in attempt.steps]


def test_an_attempt_that_waited_and_ran_is_retold_in_order() -> None:
    gate = Watched()
    gate.post(Arrived(1, prompt_bytes=400, max_tokens=64), 0.0)
    gate.post(Arrived(2, "acme", prompt_bytes=4000, max_tokens=64), 1.0)
    gate.post(Finished(1, 100, 64), 2.0)
    gate.post(Released(1), 2.0)
    gate.post(FirstToken(2), 2.5)
    gate.post(Finished(2, 1000, 64), 3.0)

    arrived, queued, admitted, ended = gate.words("2")
    assert arrived == "arrived of acme: 4,000 bytes of prompt, max_tokens 64, streaming"
    assert queued.startswith("queued at place 1, expected wait ")
    assert admitted.startswith("admitted after 1.0 s to gpu-0 (reserved ")
    assert ended == (
        "ended good on gpu-0: first token after 1.5 s, over after 2.0 s, 1,000 tokens read and 64 written"
    )
    assert [step.after_s for step in gate.told("2")[0].steps] == [0.0, 0.0, 1.0, 2.0]


def test_a_refusal_out_of_the_queue_says_how_long_it_waited_and_what_it_was_promised() -> None:
    gate = Watched(deadline_s=5.0)
    gate.post(Arrived(1, max_tokens=64), 0.0)
    gate.post(Arrived(2, max_tokens=10), 0.0)
    gate.post(Tick(), 6.0)

    _, _, refused, ended = gate.words("2")
    assert refused.startswith("refused expired: waited 6.0 s, deadline 5.0 s after it arrived; ")
    assert ended == "ended yielded (expired) after 6.0 s of waiting"


def test_what_was_refused_at_the_door_has_its_arrival_and_its_refusal() -> None:
    gate = Watched(max_queue=0)
    gate.post(Arrived(1), 0.0)
    gate.post(Arrived(2), 0.0)

    (told,) = gate.told("2")
    assert [step.kind for step in told.steps] == ["arrived", "yield"]
    assert told.steps[1].words.startswith("refused saturated: 1 of 1 streams are out; told to come back in ")
    assert told.steps[1].numbers["reason"] == Reason.SATURATED


def test_a_request_is_found_under_the_id_that_the_client_saw() -> None:
    gate = Watched()
    gate.accounting.named(17, b"req-of-a-client")
    gate.post(Arrived(17), 0.0)
    gate.post(Arrived(18), 0.0)

    assert [each.attempt for each in gate.told("req-of-a-client")] == [17]
    assert [each.attempt for each in gate.told("b007-12")] == [18]
    assert [each.attempt for each in gate.told("18")] == [18]
    for unknown in ("beef-12", "b007-", "19", "", "-1", "req", "\ud800", "9" * 30, "b007-" + "f" * 16):
        assert gate.told(unknown) == []


def test_an_attempt_is_found_under_the_id_that_its_engine_gave_and_tells_it() -> None:
    gate = Watched()
    gate.post(Arrived(17), 0.0)
    for name in (b"req_first", b"req_second"):
        gate.accounting.upstream_named(17, name)

    for wanted in ("req_first", "req_second", "b007-11"):
        (told,) = gate.told(wanted)
        assert (told.attempt, told.upstream_ids) == (17, ("req_first", "req_second"))


def test_every_try_under_one_id_is_found_the_newest_first() -> None:
    gate = Watched()
    for attempt in range(1, 2 * MOST_ANSWERED):
        gate.accounting.named(attempt, b"again")
        gate.post(Arrived(attempt), 0.0)

    found = [each.attempt for each in gate.told("again")]
    assert found == list(range(2 * MOST_ANSWERED - 1, MOST_ANSWERED - 1, -1))


def test_the_attempts_of_a_trace_are_found_the_newest_first_and_know_it_until_their_steps_are_forgotten() -> (
    None
):
    ring = Ring("b007", 1)
    for number in range(1, 21):
        trace = "ab" * 16 if number % 2 else "cd" * 16
        steps: list[Kept] = [
            (0.0, facts_of(Arrived(number)), (Yield(number, Reason.QUOTA, 1.0, retry=True),))
        ]
        ring.extend(steps, f"{number} {trace}")

    found = ring.find("ab" * 16)
    assert [(each.attempt, each.trace) for each in found] == [
        (number, "ab" * 16) for number in range(19, 0, -2)
    ]
    assert ring.find("ab" * 15) == []
    assert ring.find("") == []
    assert ring.find("2")[0].trace == "cd" * 16
    for number in range(21, 22 + FEWEST_STEPS):
        ring.extend([(0.0, None, (Yield(number, Reason.QUOTA, 1.0, retry=True),))])
    assert ring.find("ab" * 16) == []


def test_the_ring_forgets_the_oldest_and_says_where_a_story_is_cut() -> None:
    gate = Watched(attempts=2, max_queue=0)
    gate.post(Arrived(1), 0.0)
    last = 2 * FEWEST_STEPS
    for attempt in range(2, last + 1):
        gate.post(Arrived(attempt), 0.0)
    gate.post(Finished(1, 10, 10), 1.0)

    assert not gate.told("1")[0].whole
    assert gate.told("3") == []
    assert gate.told(str(last - FEWEST_STEPS + 10))[0].whole
    assert gate.told(str(last))[0].whole


def refusals(numbers: range, model: str = "m") -> list[Kept]:
    """Return one step for each of these attempts, all at the same time."""
    return [
        (1.0, facts_of(Arrived(number, model=model)), (Yield(number, Reason.SATURATED, 1.0, retry=True),))
        for number in numbers
    ]


def test_at_least_so_many_steps_are_kept_and_at_most_one_batch_more() -> None:
    ring, batch = Ring(attempts=FEWEST_STEPS), 100
    bound = 3 * FEWEST_STEPS
    for first in range(0, 2 * bound, batch):
        ring.extend(refusals(range(first, first + batch)))
        ring.extend([])

    kept = [step[1][0] for _, step in ring.newest(10**9) if step[1] is not None]
    last = first + batch
    assert kept == list(range(last - 1, last - 1 - len(kept), -1))
    assert bound <= len(kept) < bound + batch


def test_what_is_large_is_kept_for_a_shorter_time() -> None:
    ring = Ring(attempts=0)
    batches = 40
    for number in range(batches):
        ring.extend(refusals(range(number, number + 1), model="m" * 100_000))

    kept = [number for number, _ in ring.newest(10**9)]
    assert kept[0] == batches
    assert 100_000 * len(kept) <= 256 * FEWEST_STEPS


def test_the_newest_batch_stays_however_large_it_is() -> None:
    ring = Ring()
    ring.extend(refusals(range(1), model="m" * 10_000_000))

    assert [recorded.whole for recorded in ring.find("0")] == [True]


def test_what_is_kept_of_an_arrival_is_everything_but_its_body() -> None:
    arrival = Arrived(1, "acme", "batch", "m", 5, 6, 7, 2, stream=False, fingerprint=lambda: 1)
    kept = facts_of(arrival)

    assert not any(callable(each) for each in kept)
    assert arrival_of(kept) == arrival._replace(fingerprint=None)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Queue(1, 7, 1.9), "queued at place 7, expected wait 1.9 s"),
        (
            Yield(1, Reason.TOO_LATE, 14.2, retry=True, value=12.1, bound=9.8),
            (
                "refused too_late: its first token would come within 12.1 s (nine times in ten), which is later than its "
                "deadline in 9.8 s; told to come back in 14.2 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.TOO_LATE, 48.0, retry=True, value=179.0, bound=60.0, counted=Counted.PACE),
            (
                "refused too_late: the prompts of its lane are spaced out for others: its first token would come within 179.0 s (nine "
                "times in ten), which is later than its deadline in 60.0 s; told to come back in 48.0 s, when its appointment is due"
            ),
        ),
        (
            Queue(1, 1, 42.0, counted=Counted.PACE),
            "queued at place 1, expected wait 42.0 s; the prompts of its lane are spaced out for others",
        ),
        (
            Yield(1, Reason.RETRY_BUDGET, 1.0, retry=False, value=3, bound=2.4),
            "refused retry_budget: 3 retries were charged within 10 s, the budget is 2.4; coming back would be useless",
        ),
        (
            Yield(1, Reason.SATURATED, 0.04, retry=True, value=2.5, bound=1.0, counted=Counted.WAIT),
            (
                "refused saturated: a wait of 2.5 s, where it may be 1.0 s; "
                "told to come back in 40 ms, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.SATURATED, 12.0, retry=True, value=12.0, bound=9.0, counted=Counted.SESSIONS),
            (
                "refused saturated: it would open a session, and every engine is full of live ones: none is over within 12.0 s; "
                "told to come back in 12.0 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.SATURATED, 2.0, retry=True, value=5_120, bound=2_000, counted=Counted.MEMORY),
            (
                "refused saturated: streams are free, but it needs 5,120 tokens of KV memory, and 2,000 are free; "
                "told to come back in 2.0 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.SATURATED, 2.0, retry=True, value=100, bound=9_000, counted=Counted.PROMPTS),
            (
                "refused saturated: streams are free, but its 100 prompt tokens come after 9,000 that are still to be read; "
                "told to come back in 2.0 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.SATURATED, 2.0, retry=True, value=2.5, bound=0.0, counted=Counted.ACCOUNT),
            (
                "refused saturated: streams are free, but its provider's account has room for it in 2.5 s; "
                "told to come back in 2.0 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.TOO_LATE, 2.5, retry=True, value=2.7, bound=2.0, counted=Counted.ADAPTERS),
            (
                "refused too_late: its adapter is in no slot of an engine, and other adapters use them all: its first token would come "
                "within 2.7 s, where it may be 2.0 s; told to come back in 2.5 s, when its appointment is due"
            ),
        ),
        (
            Yield(1, Reason.QUOTA, 3.0, retry=True, value=1.0, bound=0.4),
            "refused quota: it needs 1, 0 are left; told to come back in 3.0 s",
        ),
        (
            Yield(1, Reason.QUOTA, 3.0, retry=True, value=1.0, bound=1.2, promised=3.2),
            (
                "refused quota: it needs 1, 1 are left, 3 are promised to clients that were told to come before it; "
                "told to come back in 3.0 s, when its quota has enough for them and for it"
            ),
        ),
        (
            Yield(1, Reason.TENANT_LIMIT, 3.0, retry=True, value=5, bound=5, promised=2.0),
            (
                "refused tenant_limit: 5 of its tenant's 5 streams are in; told to come back in 3.0 s, "
                "when streams have ended for 2 that were told to come before it, and for it"
            ),
        ),
        (Cancel(1, Reason.DRAINING, 1.0), "cancelled draining; told to come back in 1.0 s"),
        (
            Admit(1, (Leg("gpu-0", 1, 1300, 1000),), 0.0, 0.5, 20.0, would=Reason.SATURATED),
            (
                "admitted at once to gpu-0 (reserved 1,300 tokens, 1,000 of them to read): first token expected in "
                "0.5 s, the engine has 10.0 s to begin; a protecting gate would have refused saturated"
            ),
        ),
        (
            Admit(1, (Leg("gpu-0", 1, 1300, 1000),), 0.0, 0.5, 20.0, reshaped=Reshaped("relaxed", 512)),
            (
                "admitted at once to gpu-0 (reserved 1,300 tokens, 1,000 of them to read): first token expected in "
                "0.5 s, the engine has 10.0 s to begin; cut to 512 output tokens; in lane relaxed instead"
            ),
        ),
        (
            Yield(1, Reason.TOO_LARGE, 0.0, retry=False, value=1001, bound=1000),
            (
                "refused too_large: it needs 1,001 tokens, no more than 1,000 ever fit (engine, quota or account); "
                "coming back would be useless"
            ),
        ),
        (
            Ended(1, Outcome.CLIENT_GONE, "i", "gpu-0", 0.0, 3.0, 0.2, 10, 20, Stage.DECODE),
            (
                "ended client_gone (while it was answered) on gpu-0: first token after 0.2 s, over after 3.0 s, "
                "10 tokens read and 20 written"
            ),
        ),
        (
            Ended(1, Outcome.ENGINE_FAILED, "i", "gpu-0", 0.0, 3.0, None, 10, 0, FailureKind.TIMEOUT),
            "ended engine_failed (timeout) on gpu-0: over after 3.0 s, 10 tokens read and 0 written",
        ),
    ],
)
def test_each_decision_is_one_sentence_with_its_numbers(decision: Any, words: str) -> None:
    assert sentence(decision, 10.0) == words


def test_whoever_sees_beside_it_what_was_decided_reads_the_numbers_alone() -> None:
    back = Admit(1, (Leg("gpu-0", 1, 1300, 1000),), 0.6, 0.5, 20.0, due_at=9.2, window_s=0.04)
    gone = Ended(1, Outcome.CLIENT_GONE, "i", None, 3.0, 3.0, None, 10, 0, Stage.QUEUED)
    good = Ended(1, Outcome.GOOD, "i", "gpu-0", 0.0, 3.0, 0.2, 1000, 20, None, cached_tokens=800)

    assert numbers(back, 10.0) == (
        "after 0.6 s, 40 ms of them for company, 1,300 tokens reserved; first token expected in 0.5 s, "
        "the engine has 10.0 s to begin; it was back 0.2 s after its hint"
    )
    assert numbers(Queue(1, 7, 1.9), 10.0) == "at place 7, expected wait 1.9 s"
    assert numbers(Yield(1, Reason.QUEUE_FULL, 3.0, retry=True, value=64, bound=64), 10.0) == (
        "the queue holds 64, where 64 may wait (attempts, tokens or bytes); "
        "told to come back in 3.0 s, when its appointment is due"
    )
    assert numbers(gone, 10.0) == "while it waited; after 3.0 s of waiting"
    assert numbers(good, 10.0) == (
        "first token after 0.2 s, over after 3.0 s, 1,000 tokens read (800 of them from its cache) and 20 written"
    )


@pytest.mark.parametrize("was_queued", [False, True])
@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason: Reason, was_queued: bool) -> None:
    said = sentence(Yield(1, reason, 1.0, retry=True, value=2.0, bound=1.0), 0.0, was_queued=was_queued)

    says_wait = was_queued and reason is not Reason.TENANT_LIMIT
    assert ("waited 2.0 s, deadline 1.0 s after it arrived" in said) == says_wait

    assert said.startswith(f"refused {reason.value}: ")
    assert "{" not in said


def test_the_causes_of_failures_are_bounded() -> None:
    ring = Ring()
    for attempt in range(MOST_CAUSES + 5):
        ring.note_cause(attempt, "x" * 1000)

    assert len(ring._causes) == MOST_CAUSES
    assert min(ring._causes) == 5
    assert {len(cause) for cause in ring._causes.values()} == {200}
