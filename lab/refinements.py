"""Every refinement of the core that can be switched off, with its plain rule; to add one, add its entry."""

from math import inf

from lab import plain
from lab.switches import Refinement

_HINTS = ("hints", "queued")
_SIZING = ("sizing", "hints", "correlated")
_SESSIONS = ("agents", "agents, few slots", "people")
_COLD = ("cold",)
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
        {"tickets.attendance:Attendance.likelihood": plain.one},
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
        "one prompt at a time after a silence",
        "a time-out teaches nothing",
        ("time-outs",),
        {"state.engine:Silence.let_run_out": plain.nothing},
        ("state.engine:Silence", "governor.endings:_is_unread"),
    ),
    Refinement(
        "pace: far moves",
        "what was learned of a pace holds for any number of streams",
        ("limits",),
        {"limits.pace:_FAR": inf},
    ),
    Refinement(
        "what turns wait for long prompts",
        "a prompt costs what it adds to its engine's load",
        _COLD,
        {"routing.encounters:Encounters.waits_s": plain.zero},
        ("routing.encounters:Encounters", "routing.encounters:_Seen", "governor.prices:Prices._waits_s"),
    ),
    Refinement(
        "a turn that waits counts more",
        "a turn that waits counts as a long prompt that does",
        _COLD,
        {"routing.encounters:_TURNS_COUNT": 1.0},
    ),
    Refinement(
        "first prompts are found out",
        "what began a session counts as a prompt of none",
        _COLD,
        {"routing.encounters:Encounters.read_of_session": plain.nothing},
        ("routing.working_set:LiveSession.read_alone",),
    ),
    Refinement(
        "long prompts are priced by themselves",
        "each goes where the usual request is cheapest",
        _COLD,
        {"governor.prices:Prices.depends": plain.never},
        ("governor.placement:Placement._cheapest_for_it",),
    ),
    Refinement(
        "waiting for the engine that reads long prompts",
        "a long prompt takes the room that there is",
        _COLD,
        {"governor.placement:_is_busy": plain.never},
    ),
    Refinement(
        "giants wait where people were refused for one",
        "a giant goes as soon as there is room",
        ("giants",),
        {"limits.prefill_pace:PromptPaces.waits_until": plain.zero},
    ),
    Refinement(
        "the cheapest in time",
        "the cheapest, in time or not",
        (*_COLD, *_SESSIONS),
        {"governor.placement:Placement._alone": plain.alone},
        ("governor.placement:_least_late",),
    ),
    Refinement(
        "waiting for a full holder",
        "a request takes the room that there is",
        _SESSIONS,
        {"governor.placement:_better_until": plain.zero},
    ),
    Refinement(
        "waiting for an engine in time",
        "a request that is late where there is room is refused",
        ("unlike engines", "unlike engines, overloaded"),
        {"governor.placement:_in_time_until": plain.zero},
    ),
    Refinement(
        "rereading",
        "a session is opened while all live contexts fit",
        _SESSIONS,
        {"routing.working_set:REREADING_SHARE": 0.0},
        ("routing.working_set:_LiveSet.rereading", "routing.working_set:LiveSession.counts"),
    ),
    Refinement(
        "which sessions return",
        "every resting session is believed to come back",
        _SESSIONS,
        {"routing.working_set:_Kind.return_share": property(plain.one)},
    ),
    Refinement(
        "kinds of sessions",
        "all sessions of a lane are of one kind",
        (*_SESSIONS, *_COLD),
        {"routing.working_set:WorkingSets._kind": plain.of_one_kind},
    ),
    Refinement(
        "leases by pauses",
        "every lease lasts two minutes",
        _SESSIONS,
        {"routing.working_set:_PAUSES": 1e9},
    ),
)
