"""What does one request add on an engine? The price of its work, what turns of sessions and long prompts wait for each other, its adapter."""

from millgate.core.routing.adapters import Adapters
from millgate.core.routing.encounters import LONG_TOKENS, SESSION_TURNS
from millgate.core.routing.least_work import marginal_cost
from millgate.core.routing.working_set import LiveSession, WorkingSets
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine


class Prices:
    """What a request costs on an engine that may hold a part of it, in seconds of waiting; it learns what meets what there."""

    def __init__(self, working_sets: WorkingSets, adapters: Adapters) -> None:
        self._working_sets = working_sets
        self.adapters = adapters

    def of(
        self, engine: Engine, request: Request, unread_tokens: int, session: LiveSession | None, now: float
    ) -> float:
        """Return what this request, which continues the `session`, costs on this engine, which has to read so many tokens of its prompt."""
        gate, service = engine.gate, engine.service
        streams, kv_tokens, output_tokens = gate.streams, gate.kv_limit, request.output_tokens
        tpot_s, reading_s = service.tpot_s(streams + 1), service.reading_s(unread_tokens)
        slower_s, unread_s = tpot_s - service.tpot_s(streams), service.reading_s(gate.unread_tokens)
        encounters = self._working_sets.encounters
        live_share = encounters.context_tokens(engine.number) / kv_tokens if kv_tokens else 0.0
        # Else it is read so soon that no turn waits for it, and nothing shows that it is of a session.
        if session is not None or is_long(request):
            unread_s += self._waits_s(engine, request, reading_s, session, now)
        cost_s = marginal_cost(streams, unread_s, reading_s, tpot_s, slower_s, output_tokens, live_share)
        adapters = self.adapters
        if not adapters.names or request.arrival.model not in adapters.names:
            return cost_s
        service_s = engine.expected_service_s()
        return cost_s + adapters.cost_s(engine.number, request.arrival.model, service_s, now)

    def depends(self, request: Request) -> bool:
        """Return whether engines that hold none of it differ in more than their load: it is long, or asks for an adapter."""
        return is_long(request) or request.arrival.model in self.adapters.names

    def session_of(self, request: Request) -> LiveSession | None:
        """Return the session that this request continues, live or over, None where it is none, or would open one."""
        if not request.marks:
            return None
        return self._working_sets.continued(request.arrival.session, request.marks)

    def _waits_s(
        self, engine: Engine, request: Request, reading_s: float, session: LiveSession | None, now: float
    ) -> float:
        """Return how long turns there wait for it, and for others the turns of its session that are expected after it."""
        turns = 0 if session is None and request.arrival.session is None else SESSION_TURNS
        encounters = self._working_sets.encounters
        if session is None or session.engine != engine.number:
            return encounters.waits_s(engine.number, reading_s, turns, now)
        return encounters.waits_s(engine.number, reading_s, turns, now, session.alone_s, session.alone_at)

    def learn(
        self, request: Request, session: LiveSession | None, engine: Engine, cached_tokens: int, now: float
    ) -> float:
        """Take note of a prompt that this engine is about to read, all but what it has cached; it continues this session.

        Return the seconds of reading of one that seems to belong to none, 0.0 for others.
        """
        encounters = self._working_sets.encounters
        key = request.arrival.session if session is None else session.key
        if key is not None:
            if session is not None and session.alone_s:
                encounters.read_of_session(session.engine, session.alone_s, session.alone_at, now)
                session.read_alone(0.0, now)
            encounters.turn(engine.number, key, request.prompt_tokens, now)
            return 0.0
        reading_s = engine.service.reading_s(request.prompt_tokens - cached_tokens)
        encounters.reads(engine.number, reading_s, now)
        return reading_s


def is_long(request: Request) -> bool:
    """Return whether so much of it is unread wherever it goes that turns of sessions may wait for it."""
    return bool(request.marks) and request.unread_tokens > LONG_TOKENS
