"""The legal lives of an attempt, as one table; what is not in it cannot happen to an attempt in that state.

An attempt is queued, prefilling or decoding until it ends with one outcome; if it had a permit it then departs
until the engine is done with it. Late news about an attempt that has moved on (a first token after a hang-up) is
normal on a network and is dropped: the table has no row for it.
"""

from enum import StrEnum

from millgate.core import events
from millgate.core.words import Stage


class State(StrEnum):
    """Where an attempt stands; the first three carry the words of `Stage`."""

    QUEUED = Stage.QUEUED
    PREFILL = Stage.PREFILL
    DECODE = Stage.DECODE
    DEPARTING = "departing"
    OVER = "over"


NEXT: dict[tuple[State, type], State] = {
    (State.QUEUED, events.ClientGone): State.OVER,
    (State.PREFILL, events.Prefilled): State.PREFILL,
    (State.PREFILL, events.HandoffFailed): State.PREFILL,
    (State.PREFILL, events.FirstToken): State.DECODE,
    (State.PREFILL, events.Finished): State.DEPARTING,
    (State.PREFILL, events.Failed): State.DEPARTING,
    (State.PREFILL, events.ClientGone): State.DEPARTING,
    (State.DECODE, events.HeldBack): State.DECODE,
    (State.DECODE, events.Finished): State.DEPARTING,
    (State.DECODE, events.Failed): State.DEPARTING,
    (State.DECODE, events.ClientGone): State.DEPARTING,
    (State.DEPARTING, events.Released): State.OVER,
}
"""State and event to the next state. Admission moves QUEUED to PREFILL and a yield moves QUEUED to OVER; both are the
governor's own decisions and not events. So is a second try after a failure (`governor/failover`), which moves PREFILL
back to QUEUED instead."""
