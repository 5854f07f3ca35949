"""INV-1, INV-2 and INV-3 over two legs: whatever happens to them, in whatever order, each ends once and nothing stays taken."""

from hypothesis import given, settings, strategies as st

from core.governor.test_two_legs import LEASE_S, PROMPT, arrival, engine
from millgate.core.decisions import Ended, Yield
from millgate.core.events import (
    ClientGone,
    EngineDown,
    EngineUp,
    Event,
    Failed,
    Finished,
    FirstToken,
    HandoffFailed,
    Prefilled,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings, Settings
from millgate.core.words import FailureKind, KvTransfer, Role, Sent
from millgate.wiring.governor import build_governor

_ATTEMPTS = 8
_WORDS = st.sampled_from(
    (
        Prefilled,
        HandoffFailed,
        FirstToken,
        Finished,
        "unsent",
        "failed",
        "declined",
        ClientGone,
        Released,
        "down",
        "up",
        "wait",
    )
)
_STEPS = st.lists(st.tuples(st.integers(1, _ATTEMPTS), _WORDS, st.floats(0.0, 5.0)), max_size=60)


def news(number: int, word: object) -> Event:
    if word is Prefilled:
        return Prefilled(number, PROMPT, 0)
    if word is HandoffFailed:
        return HandoffFailed(number, FailureKind.BROKEN)
    if word is Finished:
        return Finished(number, PROMPT, 20, 0)
    if word in {"unsent", "failed", "declined"}:
        sent = Sent.NONE if word == "unsent" else Sent.REQUEST
        return Failed(number, FailureKind.STATUS, sent, blames_request=word == "declined")
    if word in {"down", "up"}:
        return (EngineUp if word == "up" else EngineDown)("reads")
    assert isinstance(word, type)
    event: Event = word(number)
    return event


def gate(transfer: KvTransfer) -> Governor:
    engines = (
        engine("reads", Role.PREFILL, streams=3, transfer=transfer),
        engine("also reads", Role.PREFILL, streams=1, transfer=transfer),
        engine("writes", Role.DECODE, streams=2, transfer=transfer),
        engine("also writes", Role.DECODE, streams=2, transfer=transfer),
    )
    return build_governor(
        Settings((LaneSettings("interactive", ttft_slo_s=60.0, deadline_s=60.0),), engines), 0.0
    )


class Story:
    """A gate, the time, and how often each attempt has ended."""

    def __init__(self, transfer: KvTransfer) -> None:
        self.governor, self.now = gate(transfer), 0.0
        self.ends = dict.fromkeys(range(1, _ATTEMPTS + 1), 0)

    def ask(self, number: int, *, stream: bool) -> None:
        asked = arrival(number)._replace(stream=stream, bootstraps=True)
        (decision,) = self.governor.handle(asked, self.now)
        self.ends[number] += isinstance(decision, Yield)

    def post(self, event: Event) -> None:
        for decision in self.governor.handle(event, self.now):
            if isinstance(decision, Ended):
                self.ends[decision.attempt] += 1
        for seen in self.governor.snapshot(self.now).engines:
            assert 0 <= seen.running <= seen.limit
            assert min(seen.kv_tokens, seen.prefill_tokens) >= 0

    def end(self) -> None:
        """Let every client leave, and every lease end."""
        for number in self.ends:
            self.post(ClientGone(number))
            self.post(Released(number))
        for _ in range(8):
            self.now += LEASE_S
            self.post(Tick())


@settings(max_examples=300)
@given(_STEPS, st.booleans(), st.sampled_from(KvTransfer))
def test_whatever_happens_each_leg_ends_once(
    steps: list[tuple[int, object, float]], stream: bool, transfer: KvTransfer
) -> None:
    story = Story(transfer)
    for number in range(1, _ATTEMPTS + 1):
        story.ask(number, stream=stream)
    for number, word, later_s in steps:
        story.now += later_s
        story.post(Tick() if word == "wait" else news(number, word))
    story.end()
    assert set(story.ends.values()) == {1}
    for seen in story.governor.snapshot(story.now).engines:
        assert (seen.running, seen.departing, seen.kv_tokens, seen.prefill_tokens) == (0, 0, 0, 0)
