"""Every refinement of the core that can be switched off, with its plain rule; to add one, add its entry."""

from math import inf

from lab import plain
from lab.switches import Refinement

_HINTS = ("hints", "queued")
_SIZING = ("sizing", "hints", "correlated")
_ABSENT = ("hints", "absent tenants", "waves")

REFINEMENTS: tuple[Refinement, ...] = (
    Refinement(
        "overtaking share",
        "waits of several tenants are not stretched",
        (*_HINTS, "minutes"),
        {"state.pool:Overtaking._move": plain.nothing},
        ("state.pool:Overtaking", "state.pool:_GAIN", "state.pool:_BROKEN_SHARE"),
    ),
    Refinement(
        "shorter work to come",
        "a wait is that of the line, whatever comes",
        (*_HINTS, "lanes"),
        {"governor.promises:_behind_shorter": plain.wait_alone},
        (
            "state.pool:OfferedWork",
            "state.pool:_CLASSES",
            "state.pool:_PER_DOUBLING",
            "state.pool:_SHORTEST_S",
            "state.pool:_MEMORY_S",
            "governor.promises:_PASSING_SHARE",
            "governor.promises:_LINE_SHARE",
        ),
    ),
    Refinement(
        "aim at nine in ten, lead",
        "a client is asked back when its permit is expected",
        _HINTS,
        {"governor.promises:_aim_s": plain.aim_at_the_mean},
    ),
    Refinement(
        "surer where newcomers queue", "nine in ten there too", _HINTS, {"governor.promises:_SURER": 1.0}
    ),
    Refinement(
        "permit times",
        "a permit lasts as long as foreseen",
        _HINTS,
        {"sizing.service_demand:PermitTimes.share_at": plain.one},
        ("sizing.service_demand:PermitTimes",),
    ),
    Refinement(
        "attendance by tenant",
        "every tenant's clients return as their kind does",
        _ABSENT,
        {"tickets.appointment:Attendance.likelihood": plain.one},
    ),
    Refinement(
        "attendance: returned",
        "a client that has returned is believed as one that was told for the first time",
        _ABSENT,
        {"governor.commit:_kind": plain.told_first},
    ),
    Refinement(
        "attendance: latest",
        "an appointment counts until it lapses",
        (*_ABSENT, "absent users"),
        {"tickets.appointments:Appointments.was_late": plain.nothing},
    ),
    Refinement(
        "first answers",
        "a mean is that of ended answers",
        _SIZING,
        {"sizing.output_length:FirstAnswers.look": plain.nothing},
        ("sizing.output_length:FirstAnswers", "sizing.output_length:_MOST_STRETCH"),
    ),
    Refinement(
        "prompt trend",
        "answers do not go with prompts",
        _SIZING,
        {"sizing.output_length:PromptTrend._beyond_chance": plain.zero},
        (
            "sizing.output_length:PromptTrend",
            "sizing.output_length:Centre",
            "sizing.output_length:_DEVIATIONS",
            "sizing.output_length:_SLOPE_ANSWERS",
        ),
    ),
    Refinement(
        "reading: doubt",
        "first tokens come when predicted",
        ("overload", "sizing", "storm", "bursts"),
        {"sizing.service_demand:PromptReading.upper_share": 0.0},
        ("sizing.service_demand:_LARGEST_ERROR",),
    ),
    Refinement(
        "reading: goes on",
        "a prompt is unread until its first token",
        ("overload", "sizing"),
        {"sizing.service_demand:PromptReading.unread": plain.given},
    ),
    Refinement(
        "pace: far moves",
        "what was learned of a pace holds for any number of streams",
        ("limits",),
        {"limits.pace:_FAR": inf},
    ),
)
