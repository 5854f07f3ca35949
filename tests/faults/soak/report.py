"""What came of a soak: one record, its bounds, and how it is shown."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from faults.baseline import KEPT_BYTES, MOST_GROWTH
from faults.soak.watch import Course

MOST_FINDINGS = 20
"""Shown; the rest is counted."""


class Report(NamedTuple):
    """The accounts of one soak; `findings` are what must not be.

    `seen` counts pairs of what a user saw and the outcome that the gate wrote down. `executed` is what the engines
    were sent, `most_at_once` what each worked for at most, by their own count.
    """

    scene: str
    seed: int
    seconds: float
    sent: int
    unsure: int
    written: int
    outcomes: dict[str, int]
    seen: dict[tuple[str, str], int]
    executed: int
    cap: int
    most_at_once: tuple[int, ...]
    longest_above_cap_s: float
    above_cap_s: float
    memory_mb: Course
    descriptors: Course
    cpu_s: float
    faults: dict[str, int]
    behaviours: dict[str, int]
    findings: list[str]


def growth(memory_mb: Course, descriptors: Course, own_descriptors: int) -> Iterator[str]:
    """Yield what has grown when all is quiet: memory since the warm-up, descriptors since the start; under load both have what is under way."""
    most_mb = memory_mb.warm * (1 + MOST_GROWTH) + KEPT_BYTES / 1e6
    if memory_mb.quiet > most_mb:
        yield f"memory has grown from {memory_mb.warm:.1f} to {memory_mb.quiet:.1f} MB, {most_mb:.1f} at most"
    most = descriptors.start + own_descriptors
    if descriptors.quiet > most:
        yield f"{descriptors.quiet:.0f} descriptors when all was quiet, {most:.0f} at most"


def as_json(report: Report) -> str:
    """Return the report as one line."""
    seen = {f"{sight}, {outcome}": count for (sight, outcome), count in report.seen.items()}
    courses = {"memory_mb": report.memory_mb._asdict(), "descriptors": report.descriptors._asdict()}
    return json.dumps(report._asdict() | {"seen": seen} | courses)


def as_table(report: Report) -> str:
    """Return the report for a reader."""
    return "\n".join((*_accounts(report), "", *_courses(report), "", *_kinds(report), "", *_verdict(report)))


def _accounts(report: Report) -> Iterator[str]:
    yield f"{report.scene}: seed {report.seed}, {report.seconds:g} s, {report.cpu_s:.1f} s of CPU"
    yield f"{report.sent:>9} attempts sent, {report.unsure} of them perhaps not read by the gate"
    yield f"{report.written:>9} outcomes written, {sum(report.outcomes.values())} counted"
    yield f"{report.executed:>9} requests reached the engines"
    most = ", ".join(map(str, report.most_at_once))
    yield f"{most:>9} at once at most, by the engines' own count; the cap is {report.cap} each"
    yield f"{report.longest_above_cap_s:>9.3f} s above the cap at the longest, {report.above_cap_s:.3f} s in all"
    yield ""
    yield f"{'seen by the user':<18}{'written by the gate':<21}{'attempts':>9}"
    for (sight, outcome), count in sorted(report.seen.items()):
        yield f"{sight:<18}{outcome:<21}{count:>9}"


def _courses(report: Report) -> Iterator[str]:
    columns = ("start", "warm", "end", "quiet", "a minute")
    yield f"{'':<18}" + "".join(f"{column:>9}" for column in columns)
    for name, course in (("memory, MB", report.memory_mb), ("descriptors", report.descriptors)):
        yield f"{name:<18}" + "".join(f"{value:>9.1f}" for value in course)


def _kinds(report: Report) -> Iterator[str]:
    for title, counts in (("faults", report.faults), ("users", report.behaviours)):
        yield f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _verdict(report: Report) -> Iterator[str]:
    yield f"{len(report.findings)} findings"
    yield from report.findings[:MOST_FINDINGS]
