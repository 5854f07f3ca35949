"""Tests of a governor that read like scripts: at this time, this happens, and this is decided.

    book = Playbook(governor)
    book.send(Arrived(1)).expect(Admit(1, legs=ANY, waited_s=0.0, expected_ttft_s=ANY, first_event_by=ANY))
    book.send(Arrived(2)).expect(Queue(2, place=1, expected_wait_s=ANY))
    book.at(3.0).send(Released(1)).nothing()

`ANY` is `unittest.mock.ANY`. A step that goes otherwise fails with the whole play so far and a diff.
Prior art: mitmproxy's `Playbook` for its layers.
"""

import difflib
from typing import Protocol, Self

from millgate.core.decisions import Decision
from millgate.core.events import Event, Tick
from millgate.testing.clock import ManualClock


class Decides(Protocol):
    """What a playbook plays with: the two verbs of a governor that move it."""

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Take one event and return what is decided."""

    def next_wake(self) -> float | None:
        """Return when a Tick is due at the latest."""


class PlaybookError(AssertionError):
    """The play went otherwise: the message holds the transcript and a diff."""


class Playbook:
    """Plays events to a governor and holds its decisions against what the script expects."""

    def __init__(self, governor: Decides, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.decisions: tuple[Decision, ...] = ()
        self._governor = governor
        self._transcript: list[str] = []

    def at(self, now: float) -> Self:
        """Move time to `now`, with a Tick at every time that the governor asks for on the way."""
        while (wake := self._governor.next_wake()) is not None and self.clock.now() < wake <= now:
            self.clock.advance(wake - self.clock.now())
            self.send(Tick())
        self.clock.advance(now - self.clock.now())
        return self

    def send(self, event: Event) -> Self:
        """Hand one event to the governor; what it decides is for the next `expect`."""
        now = self.clock.now()
        self.decisions = self._governor.handle(event, now)
        self._transcript.append(f"{now:g}: {event!r}")
        self._transcript += [f"    {decision!r}" for decision in self.decisions]
        return self

    def expect(self, *decisions: Decision) -> Self:
        """Check that the last event was answered by exactly these decisions, in this order."""
        same = len(decisions) == len(self.decisions) and all(map(_agree, decisions, self.decisions))
        if not same:
            diff = difflib.ndiff([repr(each) for each in decisions], [repr(each) for each in self.decisions])
            lines = ["the play so far:", *self._transcript, "expected (-) and decided (+):", *diff]
            raise PlaybookError("\n".join(lines))
        return self

    def nothing(self) -> Self:
        """Check that the last event was answered by no decision."""
        return self.expect()


def _agree(expected: Decision, decided: Decision) -> bool:
    """Records of different kinds with equal fields are different decisions."""
    return type(expected) is type(decided) and expected == decided
