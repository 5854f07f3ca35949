"""Whose turn is it in the slots for adapters? Where more adapters are asked for than engines have slots, they take turns.

An adapter keeps its slot while its requests come, until another one waits. Its turn is over when it has lasted for as
long as a switch takes: the last answers, and the loading. So a slot takes new requests for half of its time at least.
Then its engine gets no new request for it, and the slot is kept for the one that waits until the running ones have
ended. The tenant whose adapters hold the fewest slots is next, and of its adapters the one that waits longest. So of w
adapters of one tenant that wait for s slots each has its turn after ceil(w / s) turns, each as long as that and its
last answer. What is not queued, but was told when to come back, keeps its turn a second longer than that.
"""

from collections.abc import Iterable

from millgate.core.routing.adapters import AdapterPlaces, Adapters
from millgate.core.state.attempt import Request
from millgate.core.state.engine import GAUGE_STALE_S, Engine
from millgate.core.tickets import SOONEST_RETURN_S, TOLERANCE_S

_Open = tuple[float, float, AdapterPlaces, str]
"""A slot that another adapter may have: when the turn is over, when it would be empty then, its engine's slots, and the adapter that has it."""


class _Claim:
    """An adapter that waits for a slot since then: of this tenant, and for one of these engines. Its requests are expected `due_until` then; `slots` is where one is kept for it."""

    def __init__(self, tenant: str, since: float) -> None:
        self.tenant, self.since = tenant, since
        self.engines: tuple[Engine, ...] = ()
        self.due_until = since
        self.slots: AdapterPlaces | None = None


class AdapterTurns:
    """The adapters that wait for a slot, first come first; at most as many as engines have names for."""

    def __init__(self) -> None:
        self.adapters = Adapters()
        self._claims: dict[str, _Claim] = {}
        self._queued: dict[str, int] = {}
        self._next_at = 0.0

    def able(self, request: Request, engines: tuple[Engine, ...]) -> tuple[Engine, ...]:
        """Return those of these engines that have its adapter in use, or a slot for it."""
        model = request.arrival.model
        if model not in self.adapters.names:
            return engines
        able = [
            each for each in engines if (slots := self.adapters.of(each.number)) is None or slots.takes(model)
        ]
        return engines if len(able) == len(engines) else tuple(able)

    def is_out(self, request: Request) -> bool:
        """Return whether every engine that is up has its slots in use by other adapters than this request's."""
        up = request.route.up
        return bool(self.adapters.names) and bool(up) and not self.able(request, up)

    def started(self, request: Request, engine: Engine, now: float) -> None:
        """A request has its engine, and with it its adapter a slot there."""
        model, slots = request.arrival.model, self.adapters.of(engine.number)
        if slots is None or model not in slots.names:
            return
        is_new = model not in slots.users
        slots.use(model, request.tenant, request.attempt, now)
        if is_new:
            if (claim := self._claims.pop(model, None)) is not None:
                self._gives_up(model, claim)
            self._next_at = 0.0

    def ended(self, request: Request, engine: Engine, now: float) -> None:
        """A request has left its engine."""
        slots = self.adapters.of(engine.number)
        if slots is not None and slots.done(request.arrival.model, request.attempt, now):
            self._next_at = 0.0

    def waits(self, model: str) -> None:
        """A request begins to wait in a queue."""
        if model in self.adapters.names:
            self._queued[model] = self._queued.get(model, 0) + 1

    def waits_no_more(self, model: str) -> None:
        """A request has left its queue."""
        queued = self._queued.get(model, 0)
        if queued > 1:
            self._queued[model] = queued - 1
        elif queued:
            del self._queued[model]

    def wants(self, request: Request, told_s: float, now: float) -> None:
        """A request was kept out for want of a slot; it comes back in so long, or another one within a turn."""
        model = request.arrival.model
        claim = self._claims.get(model)
        if claim is None:
            claim = self._claims[model] = _Claim(request.tenant, now)
            self._next_at = 0.0
        claim.engines = request.route.up
        claim.due_until = max(claim.due_until, now + max(told_s, _turn_s(request.route.up[0])) + TOLERANCE_S)
        self.turn(now)

    def turn(self, now: float) -> None:
        """End the turns that are over, as far as others wait, and let go of slots that are waited for no more."""
        if not self._claims or now < self._next_at:
            return
        self._next_at = now + TOLERANCE_S
        for slots in self.adapters.every():
            slots.forgets_elsewhere(now - GAUGE_STALE_S)
        for model, claim in list(self._claims.items()):
            self._lapse(model, claim, now)
        waiting = [each for each in self._claims.items() if each[1].slots is None]
        if not waiting:
            return
        held, open_in = self._held(), self._open_in()
        while waiting:
            ranks = [(held.get(claim.tenant, 0), claim.since, at) for at, (_, claim) in enumerate(waiting)]
            model, claim = waiting.pop(min(ranks)[2])
            found = self._open(claim.engines, model, now)
            over = [
                ((open_in[each[3]] < 2, each[0], each[1]), at)
                for at, each in enumerate(found)
                if each[0] <= now
            ]
            if over:
                _, _, slots, victim = found[min(over)[1]]
                slots.keep(model, victim)
                claim.slots = slots
                open_in[victim] -= 1
                held[claim.tenant] = held.get(claim.tenant, 0) + 1

    def _lapse(self, model: str, claim: _Claim, now: float) -> None:
        """Let go of a slot that is kept on an engine that is down or gone, or stands empty while none of those that wait for it is there; forget those that none waits for."""
        slots = claim.slots
        if slots is not None and all(
            self.adapters.of(each.number) is not slots for each in claim.engines if each.up
        ):
            self._gives_up(model, claim)
            slots = None
        if model in self._queued:
            return
        if slots is not None:
            victim = slots.kept.get(model)
            empty_at = now if victim in slots.users else slots.empty_since.get(victim or "", now)
            if victim is None or now >= empty_at + TOLERANCE_S:
                self._gives_up(model, claim)
        if now > claim.due_until:
            self._gives_up(model, claim)
            del self._claims[model]

    def _gives_up(self, model: str, claim: _Claim) -> None:
        if claim.slots is not None:
            claim.slots.let_go(model)
            claim.slots = None

    def _held(self) -> dict[str, int]:
        """Return how many slots adapters of each tenant hold."""
        held: dict[str, int] = {}
        for slots in self.adapters.every():
            for tenant in slots.owners.values():
                held[tenant] = held.get(tenant, 0) + 1
        return held

    def _open_in(self) -> dict[str, int]:
        """Return how many engines take new requests for each adapter that is in use."""
        open_in: dict[str, int] = {}
        for slots in self.adapters.every():
            closing = slots.kept.values()
            for name in slots.users:
                open_in[name] = open_in.get(name, 0) + (name not in closing)
        return open_in

    def _open(self, engines: Iterable[Engine], model: str, now: float) -> list[_Open]:
        """Return the slots that this one may have: when each turn is over, when it would be empty then, and whose it is."""
        found = []
        for engine in engines:
            slots = self.adapters.of(engine.number)
            if slots is None or model not in slots.names:
                continue
            service_s, turn_s, closing = engine.expected_service_s(), _turn_s(engine), slots.kept.values()
            for name, since in slots.since.items():
                if name in closing:
                    continue
                over_at = since + turn_s
                empty_at = _empty_at(engine, slots, name, now) if over_at <= now else over_at + service_s
                found.append((over_at, empty_at, slots, name))
        return found

    def wait_s(self, request: Request, now: float) -> float:
        """Return how long it is expected to wait for a slot; 0 where its adapter has one."""
        model = request.arrival.model
        claim = self._claims.get(model)
        if claim is not None and claim.slots is not None:
            return max(0.0, self._kept_at(claim.engines, model, now) - now)
        ahead = [
            each
            for each in self._claims.values()
            if each.slots is None and (claim is None or each.since < claim.since)
        ]
        empty = sorted([each[1] for each in self._open(request.route.up, model, now)])
        if not empty:
            return 0.0
        laps, index = divmod(len(ahead), len(empty))
        usual = request.route.up[0]
        return max(0.0, empty[index] - now) + laps * (_turn_s(usual) + usual.expected_service_s())

    def _kept_at(self, engines: Iterable[Engine], model: str, now: float) -> float:
        for engine in engines:
            slots = self.adapters.of(engine.number)
            if slots is not None and model in slots.kept:
                return _empty_at(engine, slots, slots.kept[model], now)
        return now


def _turn_s(engine: Engine) -> float:
    """Return how long a turn lasts at least on this engine: as long as a switch.

    24 adapters for 16 slots in the lab: .86 to .92 are good. With half or one and a half times as long no more are.
    With three times as long, or where no turn ends, .79; where all end at once .41.
    """
    return engine.expected_service_s() + engine.settings.adapter_load_s


def _empty_at(engine: Engine, slots: AdapterPlaces, name: str, now: float) -> float:
    """Return when the requests for this adapter that run there are expected to have ended, if it gets no more."""
    latest = now
    for attempt in slots.users.get(name, ()):
        permit = engine.permits.get(attempt)
        if permit is not None:
            end = engine.expected_end(permit)
            # One that outlives its expectation is expected to take as long again as it is late.
            latest = max(latest, end if end > now else now + (now - end) + SOONEST_RETURN_S)
    return latest
