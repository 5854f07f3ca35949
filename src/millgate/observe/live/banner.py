"""One sentence that answers: is it overloaded, where, since when, and what does the gate do about it?

Pure: the same situation gives the same sentence. The worst thing that is true is said first, with the numbers that
make it so; a rule that refuses a client (a quota) is no overload and only follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from millgate.core.words import Reason
from millgate.observe.refusals import OVERLOAD_REASONS

REFUSED_BECAUSE: Final[Mapping[Reason, str]] = {
    Reason.SATURATED: "no engine had room",
    Reason.QUEUE_FULL: "the queue was full",
    Reason.DISPLACED: "returning clients were due",
    Reason.TOO_LATE: "it would have been late",
    Reason.EXPIRED: "it waited too long",
    Reason.QUOTA: "a quota was used up",
    Reason.TENANT_LIMIT: "the tenant was at its limit",
    Reason.RETRY_BUDGET: "it was retried too often",
    Reason.NO_ENGINE: "no engine was up",
    Reason.NO_LEASE: "the replica had no lease",
    Reason.DRAINING: "the gate was draining",
    Reason.TOO_LARGE: "it was too large",
    Reason.OVERLOADED_GATE: "the gate itself was too slow",
}
"""What follows "refused because"; `page/words.js` has the same."""


def seconds(value: float) -> str:
    """Return a time as people read it: 40 ms, 1.2 s, 42 s, 3 min, 2 h."""
    if value < 0.0005:
        return "0 s"
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7170 else f"{value / 3600:.0f} h"


def percent(share: float) -> str:
    """Return a share as whole per cent, and never "0 %" for something that is there."""
    return "under 1 %" if 0.0 < share < 0.005 else f"{100 * share:.0f} %"


FAILED_SHARE: Final = 0.05
"""Of the attempts of the last seconds; the alert `MillgateEngineFailures` has the same bound."""


class Level(StrEnum):
    """How bad it is, from calm to down; the page shows each by its own colour and its own shape."""

    CALM = "calm"
    BUSY = "busy"
    WARNED = "warned"
    OVERLOADED = "overloaded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class LaneWait:
    """What a newcomer to this lane would wait, against the lane's deadline; `queued` attempts wait already."""

    lane: str
    queued: int
    wait_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the sentence is made of.

    `arrived` and `refused` count attempts of the last seconds. `now`, `refusing_since` and `warned_since` are seconds
    since the epoch; the first is None while no client is refused for want of capacity, the second while no alarm is
    raised (`warning` is its evidence in words). `hints_s` are the shortest and longest hint handed out. `cluster`,
    `failing` and `paused` say in words what is wrong with the cluster, which engines fail requests, and which get none
    because their provider has refused; `failed` counts the attempts of the last seconds that engines failed.
    `engines_silent` are up, and have let a prompt wait until its time ran out. `memory_full`: what waits finds no room in any engine's KV memory. `shedding`: the gate itself is too slow, and its doors
    refuse what they do not count in `arrived`.
    """

    now: float
    lanes: tuple[LaneWait, ...]
    engines_up: int
    engines: int
    running: int
    limit: int
    arrived: int
    engines_silent: int = 0
    refused: Mapping[Reason, int] = field(default_factory=dict)
    refusing_since: float | None = None
    hints_s: tuple[float, float] | None = None
    warning: str = ""
    warned_since: float | None = None
    draining: bool = False
    cluster: str = ""
    failing: str = ""
    failed: int = 0
    paused: str = ""
    memory_full: bool = False
    shedding: bool = False


@dataclass(frozen=True, slots=True)
class Banner:
    """The sentence and how bad it is."""

    level: Level
    text: str


def banner(situation: Situation) -> Banner:
    """Return the sentence for this situation."""
    if situation.draining:
        running = situation.running
        still = "1 request still runs" if running == 1 else f"{running} requests still run"
        return Banner(Level.DOWN, f"Draining: {still}, nothing new is let in")
    if not situation.engines_up:
        return Banner(Level.DOWN, "Down: no engine takes work, every request is refused")
    if situation.refusing_since is not None:
        return Banner(Level.OVERLOADED, _overloaded(situation, situation.refusing_since))
    if situation.warned_since is not None:
        since = _since(situation.warned_since, situation.now)
        return Banner(Level.WARNED, f"Overload is coming, seen {since}: {situation.warning}")
    text = _busy(situation)
    fails = situation.failing or _failed(situation)
    level = Level.WARNED if situation.cluster or fails else Level.BUSY if text else Level.CALM
    head = "Engines fail requests" if fails else "Calm"
    parts = [text or head, *_rules(situation), *_down(situation)]
    return Banner(level, "; ".join(parts))


def with_workers(gate: Banner, troubles: Sequence[str], *, is_down: bool) -> Banner:
    """Return a gate's sentence with what is wrong with its workers, first where nothing else is wrong; down where none serves."""
    said = "; ".join(troubles)
    if is_down:
        return Banner(Level.DOWN, f"Down: {said}")
    if gate.level is Level.CALM:
        return Banner(Level.WARNED, f"{said[0].upper()}{said[1:]}{gate.text.removeprefix('Calm')}")
    return Banner(Level.WARNED if gate.level is Level.BUSY else gate.level, f"{gate.text}; {said}")


def _overloaded(situation: Situation, since: float) -> str:
    shed = f"new requests refused because {REFUSED_BECAUSE[Reason.OVERLOADED_GATE]}"
    refused = [_refused(situation), shed if situation.shedding else ""]
    parts = [part for part in refused if part] or ["refusals have just stopped"]
    full = situation.running >= situation.limit
    parts.append("engines full" if full else f"{situation.running} of {situation.limit} streams in use")
    if situation.memory_full and not full:
        parts.append("KV memory has no room for what waits")
    parts += _waits(situation)
    if situation.hints_s is not None:
        parts.append(_hints(*situation.hints_s))
    parts += [*_rules(situation), *_down(situation)]
    return f"Overloaded since {_since(since, situation.now)}: {'; '.join(parts)}"


def _refused(situation: Situation) -> str:
    """Say the share refused for want of capacity, by its two most frequent reasons."""
    counts = [(reason, count) for reason, count in situation.refused.items() if count]
    overload = sorted(
        ((reason, count) for reason, count in counts if reason in OVERLOAD_REASONS), key=lambda each: -each[1]
    )
    # Refused out of the queue may have arrived before these seconds: never say more than all.
    arrived = max(situation.arrived, sum(count for _, count in overload))
    return ", ".join([_because(reason, count / arrived) for reason, count in overload[:2]])


def _because(reason: Reason, share: float) -> str:
    return f"{percent(share)} refused because {REFUSED_BECAUSE[reason]}"


def _busy(situation: Situation) -> str:
    if waits := _waits(situation):
        return f"Busy: {waits[0]}"
    return "Busy: engines full, nothing waits" if 0 < situation.limit <= situation.running else ""


def _waits(situation: Situation) -> list[str]:
    """Name the lane that is nearest to its deadline, if anything waits."""
    waiting = [lane for lane in situation.lanes if lane.queued]
    if not waiting:
        return []
    worst = max(waiting, key=lambda lane: lane.wait_s / lane.deadline_s if lane.deadline_s > 0.0 else 0.0)
    return [f"{worst.lane} waits {seconds(worst.wait_s)} of {seconds(worst.deadline_s)}"]


def _rules(situation: Situation) -> list[str]:
    """Say what was refused by a rule and not for want of capacity."""
    arrived = max(situation.arrived, 1)
    return [
        _because(reason, min(1.0, count / arrived))
        for reason, count in situation.refused.items()
        if count and reason not in OVERLOAD_REASONS
    ]


def _down(situation: Situation) -> list[str]:
    """Say what is broken: engines that are down, hang or fail, and the cluster."""
    down = situation.engines - situation.engines_up
    counts = (down, "down"), (situation.engines_silent, "silent")
    said = [f"{count} of {situation.engines} engines {how}" for count, how in counts if count]
    parts = (*said, situation.paused, _failed(situation), situation.failing, situation.cluster)
    return [part for part in parts if part]


def _failed(situation: Situation) -> str:
    """Say which share engines have failed, if that is more than one fails by chance."""
    share = situation.failed / max(situation.arrived, situation.failed, 1)
    return f"{percent(share)} failed on engines" if share > FAILED_SHARE else ""


def _hints(shortest_s: float, longest_s: float) -> str:
    shortest, longest = seconds(shortest_s), seconds(longest_s)
    if shortest == longest:
        return f"hints {longest}"
    same_unit = shortest.split()[1] == longest.split()[1]
    return f"hints {shortest.split()[0] if same_unit else shortest}-{longest}"


def _since(at: float, now: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC ({seconds(max(0.0, now - at))})"
