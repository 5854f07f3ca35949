"""The HTTP door: bytes of a request become facts, facts an arrival, and decisions answers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from millgate.core.decisions import Admit
from millgate.core.events import Arrived, EngineProgress, Growth
from millgate.dialects.bodies import no_such_model, not_yours
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead
from millgate.runtime.callers import Callers
from millgate.runtime.driver import Driver
from millgate.runtime.lag import LoopLag
from millgate.runtime.long_bodies import LONG_BYTES, LongBodies
from millgate.servers.http.arrivals import (
    arrival_of,
    as_told_elsewhere,
    back_to_keeper,
    with_licences,
    with_ticket,
)
from millgate.servers.http.attempt import HttpAttempt
from millgate.servers.http.coalescing import SharedRoutes
from millgate.servers.http.contract import AttemptMaker, DoorSettings, HttpDesk
from millgate.servers.http.entry import Authentication
from millgate.servers.http.error_responses import Shedding, unheard
from millgate.servers.http.keep_alive import KeptAlive
from millgate.servers.http.kept_answers import NOT_KEPT, not_kept
from millgate.servers.http.long_requests import LongDesk
from millgate.servers.http.passthrough import Passthrough
from millgate.servers.http.paths import HEALTH, HEALTHZ, meant, methods
from millgate.servers.requests.ongoing import Ongoing
from millgate.servers.requests.reading import DoorRequest, HeadReading, kept_reading
from millgate.servers.requests.routes import EngineRoute
from millgate.servers.requests.tickets import KeptBody

_LOOKS: Final = 2
_LOOK_S: Final = 0.005
"""An answer that is not known is looked for again so often and after so long, where another process may just tell of it."""
_GET_OR_POST: Final = (b"GET", b"POST")


def _answer_at_once(door: "HttpDoor", head: RequestHead) -> RefusedRequest | None:
    """Say that the process lives where `/healthz` is open, lagging or not; refuse anything else while it lags.

    Every caller hears at `/health`, as from engines, whether work should come here: 200 or 503 without a body. No key
    has been shown, so a body that follows is not received.
    """
    if head.path == HEALTHZ and head.method == b"GET" and HEALTHZ in door.settings.pages:
        return RefusedRequest(200, [(b"content-type", b"text/plain; charset=utf-8")], b"ok\n")
    if door.lag.overloaded:
        return door.shedding.refuse(head, door.lag.lag_s)
    if head.path == HEALTH and head.method in methods(HEALTH):
        return RefusedRequest(200 if door.is_ready() else 503, [], b"")
    return None


_PROGRESS_S: Final = 1.0
_AT_ONCE: Final = 500
"""Looked at in one turn of the loop, in half a millisecond: five thousand would make every stream stutter."""


class Progress:
    """Reports on the streams among `ongoing`, between `start` and `stop`."""

    def __init__(self, driver: Driver, ongoing: Mapping[Exchange, Ongoing]) -> None:
        self._driver = driver
        self._ongoing = ongoing
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin to report."""
        self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._report)

    def stop(self) -> None:
        """Stop reporting."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        self._timer = self._turn = None

    def _report(self) -> None:
        self.start()
        self._gather(list(self._ongoing.values()), {})

    def _gather(self, unseen: list[Ongoing], grown: dict[str, list[Growth]]) -> None:
        """Look at some of those that are left, and report when all have been looked at."""
        for ongoing in unseen[-_AT_ONCE:]:
            if found := ongoing.growth():
                engine, growth = found
                grown.setdefault(engine, []).append(growth)
        del unseen[-_AT_ONCE:]
        if unseen:
            self._turn = asyncio.get_running_loop().call_soon(self._gather, unseen, grown)
            return
        for name, streams in grown.items():
            self._driver.post(EngineProgress(name, tuple(streams)))


class HttpDoor(HttpDesk):
    """The application behind the gateway's HTTP server: one object for all connections."""

    def __init__(
        self,
        driver: Driver,
        engines: Sequence[EngineRoute],
        settings: DoorSettings | None = None,
        callers: Callers | None = None,
    ) -> None:
        super().__init__(driver, engines, settings or DoorSettings())
        self.entry, self.shared = Authentication(callers), SharedRoutes()
        self._light = Passthrough(self, self._ongoing)
        self.long_bodies = LongBodies()
        """Reads the long ones of every door; its owner closes it last."""
        self._long = LongDesk(self, self._ongoing, self.long_bodies)
        self.make_attempt: AttemptMaker = partial(_attempt, self)
        self.adjust: Callable[[Exchange, Arrived], Arrived] | None = None
        """Says more of an arrival than its head and its body have said."""
        self._progress = Progress(driver, self._ongoing)
        self.lag = LoopLag(asyncio.get_running_loop(), self.settings.loop_lag_s)
        self.shedding = Shedding(driver, self.entry, self.error_responses, self._boot)
        self.steered = 0
        """Fields that were dropped because they would steer another gateway or an engine."""
        self.is_ready: Callable[[], bool] = lambda: True
        """Says whether work should come here, as the readiness page does."""
        self.on_bad_request: Callable[[str], None] = unheard
        """Told the code of each complaint of the server: what came was no request, too much, or too slow."""
        self.on_named: Callable[[int, bytes | None], None] = unheard
        """Told the id that a client gives an attempt, before it arrives."""
        self.on_begun: Callable[[int, bytes | None], None] | None = None
        """Told the `traceparent` of an attempt, before it arrives, where traces are made; see `traced`."""

    # ---- what the server asks (see `Application`)

    def on_head(self, head: RequestHead) -> RefusedRequest | None:
        """Refuse unknown paths and wrong methods, and everything while this process lags, before the body is read.

        `/health` and OPTIONS are answered here too; only pages of configured origins may read what the gate answers.
        """
        cross_origin = self.settings.cross_origin
        if cross_origin is None:
            return self._refuse_head(head)
        if head.method == b"OPTIONS":
            # On a path that is not served the request itself is refused: only then can a page read why.
            allowed = methods(head.path, self.settings.pages) or _GET_OR_POST
            if (answer := cross_origin.preflight(head, allowed)) is not None:
                return answer
        refusal = self._refuse_head(head)
        return None if refusal is None else cross_origin.beside(refusal, head)

    def _refuse_head(self, head: RequestHead) -> RefusedRequest | None:
        if (at_once := _answer_at_once(self, head)) is not None:
            return at_once
        if kept_reading(head, self.entry.callers) is not None:
            return None
        allowed = methods(head.path, self.settings.pages)
        if head.method in allowed:
            return self.entry.refusal(head, partial(self.error_responses.early, head))
        if allowed and head.method == b"OPTIONS":
            return RefusedRequest(200, [(b"allow", b", ".join((*allowed, b"OPTIONS")))], b"")
        if allowed:
            return self.error_responses.wrong_method(head, allowed)
        near = meant(head.path).decode()
        message = "this path is not served here" + (f"; {near} is" if near else "")
        return self.error_responses.early(head, 404, "unknown_path", message)

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Ask the core about one request, or answer what needs no asking."""
        if self.settings.cross_origin is not None:
            self.settings.cross_origin.adorn(exchange)
        reading = kept_reading(exchange.head, self.entry.callers) or self.read_head(exchange)
        if reading is None:
            return
        self.steered += reading.steering
        number = self.driver.next_attempt()
        request_id = reading.given_id or b"%b-%x" % (self._boot, number)
        self.take(DoorRequest(exchange, number, request_id, reading, body))

    def take(self, request: DoorRequest, looks: int = _LOOKS) -> None:
        """Go on with a request; one that names no answer that is known looks again, where another process may just tell of it."""
        reading, body = request.reading, request.body
        try:
            if reading.complaint is not None:
                raise reading.complaint
            if reading.read is None:
                self._light.pass_on(request.exchange, reading, request.request_id, body)
            elif len(body) > LONG_BYTES:
                self._long.read(request)
            else:
                self.accept(request, reading.read(body))
        except BadInputError as error:
            if error.code == NOT_KEPT and looks and self.kept_answers.on_new is not None:
                asyncio.get_running_loop().call_later(_LOOK_S, _take_again, self, request, looks - 1)
                return
            self.error_responses.reject(request.exchange, reading.dialect, request.request_id, error)

    def accept(self, request: DoorRequest, facts: RequestFacts) -> None:
        """Ask the core about a request whose body has been read.

        BadInputError for what its caller may not ask for.
        """
        settings, exchange, reading, body = self.settings, request.exchange, request.reading, request.body
        _check(self, reading, facts)
        attempt = self.make_attempt(request, facts)
        arrival = arrival_of(attempt, reading, facts, len(body))
        if settings.clips or settings.hands_over:
            arrival = with_licences(arrival, settings, exchange.head.path, facts, body)
        if reading.ticket is not None:
            arrival = with_ticket(arrival, self.tickets, reading.ticket)
        elif self.told_clients:
            told = self.told_clients.back(arrival.tenant, KeptBody(body), arrival.retry_count)
            arrival = as_told_elsewhere(arrival, told)
        if facts.previous_id:
            arrival = back_to_keeper(arrival, self.kept_answers, facts.previous_id)
        if self.adjust is not None:
            arrival = self.adjust(exchange, arrival)
        if reading.given_id is not None:
            self.on_named(request.number, reading.given_id)
        if self.on_begun is not None:
            self.on_begun(request.number, exchange.head.header(b"traceparent"))
        self.driver.arrive(arrival, attempt)
        if not attempt.over:
            self._ongoing[exchange] = attempt

    def on_gone(self, exchange: Exchange) -> None:
        """End what the client was waiting for."""
        ongoing = self._ongoing.get(exchange)
        if ongoing is not None:
            ongoing.gone()

    def on_slow(self, exchange: Exchange, slow: bool) -> None:
        """Pass the client's pace on to the engine."""
        ongoing = self._ongoing.get(exchange)
        if ongoing is not None:
            ongoing.slow(slow)

    def bad_request(
        self, status: int, code: str, message: str, head: RequestHead | None = None
    ) -> RefusedRequest:
        """Write the server's error response in its client's dialect."""
        if head is not None or status != 503:  # else for the connections over the cap, counted by themselves
            self.error_responses.rejected += 1
            self.on_bad_request(code)
        refusal = self.error_responses.early(head, status, code, message)
        cross_origin = self.settings.cross_origin
        return refusal if head is None or cross_origin is None else cross_origin.beside(refusal, head)

    # ---- what attempts ask

    def route(self, decision: Admit, lane: str | None) -> EngineRoute:
        """Return how to reach the engine of an attempt that named this lane, or none; in some lanes calls are shared."""
        return self.shared.route(self.engines[decision.legs[0].engine], decision, lane, self.settings)

    @property
    def boot(self) -> str:
        """What the ids begin with that this door makes; the attempt's number follows in hexadecimal digits."""
        return self._boot.decode()

    @property
    def rejected(self) -> int:
        """How many requests had something wrong in them."""
        return self.error_responses.rejected

    # ---- progress

    @property
    def ongoing(self) -> int:
        """How many exchanges are not over."""
        return len(self._ongoing)

    def adopt(self, settings: DoorSettings) -> None:
        """Take new settings, for requests that come from now on."""
        self.settings = settings
        self.lag.late_s = settings.loop_lag_s

    def start(self) -> None:
        """Begin to report the progress of streams, once a second, and to watch the loop's lag."""
        self.lag.start()
        self._progress.start()

    def stop(self) -> None:
        """Stop reporting and watching."""
        self.lag.stop()
        self._progress.stop()

    # ---- requests

    def read_head(self, exchange: Exchange) -> HeadReading | None:
        """Conclude from a head what its repeats need not be asked again; None when it has been answered."""
        head, entry = exchange.head, self.entry
        caller = entry.caller(head)
        if caller is None:
            refusal = entry.refusal(head, partial(self.error_responses.early, head))
            refusal = refusal or self.error_responses.overloaded(head)
            exchange.respond(refusal.status, refusal.headers, refusal.body, close=True)
            return None
        reading = HeadReading(head, entry.callers, caller)
        reading.keep(head)
        return reading


def _check(door: HttpDoor, reading: HeadReading, facts: RequestFacts) -> None:
    """Raise BadInputError for what is not for this caller: a model, a stored answer, a reserved field."""
    if facts.reserved and not reading.trusted:
        raise not_yours(facts.reserved)
    models = door.settings.models
    if models is not None and facts.model not in models:
        raise no_such_model(facts.model)
    if facts.previous_id and not door.kept_answers.may_ask(
        facts.previous_id, reading.caller.tenant, separates=reading.callers.separates
    ):
        raise not_kept("previous_response_id or conversation")


def _take_again(door: HttpDoor, request: DoorRequest, looks: int) -> None:
    """Go on with a request that has waited, unless its client has left; a fault of our own ends it."""
    try:
        if not request.exchange.gone:
            door.take(request, looks)
    except Exception:
        request.exchange.abort()
        raise


def ask_by_head(door: HttpDoor, exchange: Exchange) -> None:
    """Ask the core about a request whose body will not be seen here: its announced length is all that is known."""
    reading = kept_reading(exchange.head, door.entry.callers) or door.read_head(exchange)
    if reading is None:
        return
    number, length = door.driver.next_attempt(), exchange.head.content_length or 0
    request_id = reading.given_id or f"{door.boot}-{number:x}".encode()
    facts = RequestFacts("", stream=True, max_tokens=None, answers=1, include_usage=None, text_bytes=length)
    try:
        if reading.complaint is not None:
            raise reading.complaint
        door.accept(DoorRequest(exchange, number, request_id, reading, b""), facts)
    except BadInputError as error:
        door.error_responses.reject(exchange, reading.dialect, request_id, error)


def _attempt(door: HttpDoor, request: DoorRequest, facts: RequestFacts) -> HttpAttempt:
    """Return an attempt, whose streaming client gets signs of life if they are wanted on its path."""
    wanted, exchange = door.settings.keep_alive_s, request.exchange
    every_s = None
    if wanted is not None and facts.stream:
        every_s = wanted.get(exchange.head.path.decode("latin-1"))
    if every_s is None:
        return HttpAttempt(door, request, facts, exchange)
    kept_alive = KeptAlive(exchange, request.reading.dialect, request.request_id, every_s)
    attempt = HttpAttempt(door, request, facts, kept_alive)
    kept_alive.until(lambda: attempt.stream is not None and attempt.stream.events > 0)
    return attempt
