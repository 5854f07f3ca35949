"""The engine that is chosen, and what it costs, are those of the plain formula over all engines, to the last digit."""

from typing import Any, NamedTuple
from zlib import crc32

from hypothesis import given, strategies as st

from core.world import governor
from millgate.core.decisions import Admit
from millgate.core.events import Arrived, Finished, FirstToken, PrefixMarks, Released
from millgate.core.governor import Governor
from millgate.core.governor.assess import assess
from millgate.core.governor.placement import Placement, has_room
from millgate.core.governor.prices import is_long
from millgate.core.routing.encounters import SESSION_TURNS, Encounters
from millgate.core.routing.prefix_index import Held
from millgate.core.routing.working_set import LiveSession
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine

ADAPTERS = ("law", "tax")


class Step(NamedTuple):
    """A request of one of some conversations, and how many of those that run are answered after it."""

    conversation: int
    messages: int
    is_named: bool
    model: str
    after_s: float
    first_tokens: int
    answers: int


STEPS = st.builds(
    Step,
    st.integers(0, 5),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from(("base", "base", "base", *ADAPTERS)),
    st.sampled_from((0.0, 0.0, 0.5, 20.0, 400.0)),
    st.integers(0, 2),
    st.integers(0, 2),
)
ENGINES = st.builds(
    lambda per_token_s, streams, kv_tokens, adapters: (per_token_s, streams, kv_tokens, adapters),
    st.sampled_from((0.0001, 0.0001, 0.0003, 0.0)),
    st.integers(1, 6),
    st.sampled_from((None, 60_000, 400_000, 400_000)),
    st.sampled_from(((), ADAPTERS)),
)


def settings_of(name: str, drawn: tuple[float, int, int | None, tuple[str, ...]]) -> EngineSettings:
    per_token_s, streams, kv_tokens, adapters = drawn
    prior = ServicePrior(0.01, per_token_s, 0.01, 0.0005)
    more: dict[str, Any] = {"adapters": adapters, "adapter_slots": 1} if adapters else {}
    return EngineSettings(name, streams, kv_tokens, prior=prior, models=("base",), **more)


def marks_of(step: Step) -> PrefixMarks:
    """Return the marks of a conversation of messages of 2,000 tokens, of which every second one begins as all of these do."""
    begin = "shared" if step.conversation % 2 else f"own {step.conversation}"
    names = [begin, *(f"{step.conversation} {message}" for message in range(1, step.messages))]
    return tuple((crc32(name.encode()), 8_000 * at) for at, name in enumerate(names, 1))


def met_there_s(
    encounters: Encounters,
    engine: Engine,
    request: Request,
    reading_s: float,
    session: LiveSession | None,
    now: float,
) -> float:
    if session is None:
        turns = SESSION_TURNS if request.arrival.session is not None else 0
        return encounters.waits_s(engine.number, reading_s, turns, now) if is_long(request) else 0.0
    if session.engine != engine.number:
        return encounters.waits_s(engine.number, reading_s, SESSION_TURNS, now)
    return encounters.waits_s(engine.number, reading_s, SESSION_TURNS, now, session.alone_s, session.alone_at)


def plain_cost(
    placement: Placement,
    engine: Engine,
    request: Request,
    unread: int,
    session: LiveSession | None,
    now: float,
) -> float:
    gate, service, sets = engine.gate, engine.service, placement._working_sets
    streams, reading_s, tpot_s = (
        gate.streams,
        service.reading_s(unread),
        service.tpot_s(engine.gate.streams + 1),
    )
    met_s = met_there_s(sets.encounters, engine, request, reading_s, session, now)
    live_share = sets.encounters.context_tokens(engine.number) / gate.kv_limit if gate.kv_limit else 0.0
    waits_s = 4.0 * (service.reading_s(gate.prefill_tokens) + met_s)
    waits_s += (1.0 + streams + (4.0 + 12.0 * live_share)) * reading_s
    cost_s = waits_s + request.output_tokens * (tpot_s + streams * (tpot_s - service.tpot_s(streams)))
    adapters, model = placement.adapter_turns.adapters, request.arrival.model
    if model not in adapters.names:
        return cost_s
    return cost_s + adapters.cost_s(engine.number, model, engine.expected_service_s(), now)


def usual_cost(placement: Placement, engine: Engine) -> float:
    prompt_tokens, output_tokens = placement._priced_for
    gate, service = engine.gate, engine.service
    if not gate.has_room(1, 1):
        return float("inf")
    ttft_s = service.ttft_s(prompt_tokens + gate.prefill_tokens)
    return (gate.streams + 1) * (ttft_s + output_tokens * service.tpot_s(gate.streams + 1))


def unread_of(engine: Engine, request: Request, held: Held) -> int:
    return max(1, request.prompt_tokens - held.get(engine.number, 0))


def plainly_chosen(
    placement: Placement, request: Request, held: Held, session: LiveSession | None, now: float
) -> Engine | None:
    roomy = [
        each
        for each in request.route.up
        if each.gate.fits(request.prompt_tokens) and has_room(each, request, held, now)
    ]
    if not placement.prices.depends(request):
        return min(roomy, key=lambda each: usual_cost(placement, each), default=None)
    return min(
        roomy,
        key=lambda each: plain_cost(placement, each, request, unread_of(each, request, held), session, now),
        default=None,
    )


def check(gate: Governor, arrival: Arrived, now: float) -> None:
    """Compare what is chosen for this arrival, and the prices that are told, with the plain formula."""
    request = assess(gate._knowledge, arrival, now).request
    placement = gate._knowledge.engines.placement
    session = placement.prices.session_of(request)
    held = placement.held(request.marks, request.prompt_tokens)
    engines = request.route.up
    chosen = placement._chosen(request, engines, held, session, now)
    assert chosen is plainly_chosen(placement, request, held, session, now)
    for engine, told in placement._compared(engines[0], request, engines, held, session, now):
        unread = told.prompt_tokens - told.cached_tokens
        assert told.cost_s == plain_cost(placement, engine, request, max(1, unread), session, now)


class Running:
    """Attempts that run, oldest first, and those of them that write."""

    def __init__(self) -> None:
        self.reading: list[int] = []
        self.writing: list[int] = []

    def go_on(self, gate: Governor, step: Step, now: float) -> None:
        for _ in range(min(step.first_tokens, len(self.reading))):
            gate.handle(FirstToken(self.reading[0]), now)
            self.writing.append(self.reading.pop(0))
        for _ in range(min(step.answers, len(self.writing))):
            attempt = self.writing.pop(0)
            found = gate.handle(Finished(attempt, None, 100, 0), now) + gate.handle(Released(attempt), now)
            self.reading += [each.attempt for each in found if isinstance(each, Admit)]


@given(st.lists(ENGINES, min_size=1, max_size=6), st.lists(STEPS, max_size=40))
def test_the_engine_and_its_price_are_those_of_the_plain_formula(
    engines: list[tuple[float, int, int | None, tuple[str, ...]]], steps: list[Step]
) -> None:
    fleet = tuple(settings_of(f"{number}", drawn) for number, drawn in enumerate(engines))
    gate, now, running = governor(LaneSettings("lane", deadline_s=600.0), engines=fleet), 0.0, Running()
    for attempt, step in enumerate(steps):
        now += step.after_s
        marks = marks_of(step)
        arrival = Arrived(
            attempt,
            model=step.model,
            prompt_bytes=marks[-1][1],
            max_tokens=100,
            marks=lambda marks=marks: marks,  # type: ignore[misc]
            session=step.conversation if step.is_named else None,
        )
        check(gate, arrival, now)
        found = gate.handle(arrival, now)
        running.reading += [each.attempt for each in found if isinstance(each, Admit)]
        for _ in range(2):
            sessions = gate._knowledge.engines.working_sets
            assert sessions.continued(arrival.session, marks) is sessions._find(arrival.session, marks)
            running.go_on(gate, step, now)


def test_of_engines_that_hold_as_much_and_cost_the_same_the_first_named_is_chosen() -> None:
    alike = tuple(settings_of(f"{number}", (0.0001, 4, None, ())) for number in range(3))
    gate = governor(LaneSettings("lane", deadline_s=600.0), engines=alike)
    marks = marks_of(Step(0, 12, False, "base", 0.0, 0, 0))
    for number in (2, 1):
        gate._knowledge.engines.prefixes.placed(number, marks[:4], 8_000)
    arrival = Arrived(1, model="base", prompt_bytes=marks[-1][1], max_tokens=100, marks=lambda: marks)
    check(gate, arrival, 0.0)
