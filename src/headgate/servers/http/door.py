"""The HTTP door: bytes of a request become facts, facts an arrival, and decisions answers."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from headgate.core.events import Arrived
from headgate.core.words import Reason
from headgate.dialects.clip import may_clip
from headgate.dialects.contract import BadInputError, Dialect, RequestFacts
from headgate.runtime.callers import Callers
from headgate.runtime.driver import Driver
from headgate.runtime.lag import LoopLag
from headgate.runtime.upstream import Call
from headgate.runtime.upstream.fields import REQUEST_RESERVED, Lines, header_lines
from headgate.servers.http.attempt import Attempt
from headgate.servers.http.complaints import Complaints
from headgate.servers.http.contract import DoorSettings, EngineRoute, Ongoing
from headgate.servers.http.entry import Entry
from headgate.servers.http.fields import (
    for_engine,
    with_credential,
    with_id,
)
from headgate.servers.http.fingerprint import fingerprint
from headgate.servers.http.keep_alive import KeptAlive
from headgate.servers.http.kept_answers import Keeper, KeptAnswers
from headgate.servers.http.light import LightRequest
from headgate.servers.http.paths import kept_answer, methods, wants_stream
from headgate.servers.http.progress import Progress
from headgate.servers.http.reading import Reading, kept_reading
from headgate.servers.http.tickets import TicketDesk
from headgate.servers.http.unsent import FirstStream, FirstWhole
from headgate.servers.http1.contract import Exchange, Head, Refusal

_LIGHT_TIMEOUT_S: Final = 10.0
_LIGHT_RETRY_S: Final = 1.0


class HttpDoor:
    """The application behind the gateway's HTTP server: one object for all connections.

    `engines` are the routes to the engines that the core knows, by the same names; light requests go to the first.
    """

    def __init__(
        self,
        driver: Driver,
        engines: Sequence[EngineRoute],
        settings: DoorSettings | None = None,
        callers: Callers | None = None,
    ) -> None:
        self.driver = driver
        self.entry = Entry(callers)
        self.engines: Mapping[str, EngineRoute] = {engine.name: engine for engine in engines}
        self.settings = settings or DoorSettings()
        self.kept_answers = KeptAnswers()
        self.tickets = TicketDesk(asyncio.get_running_loop().time, self.settings.ticket_key)
        self._ongoing: dict[Exchange, Ongoing] = {}
        self._light = 0
        self._no_usage: set[str] = set()
        self._secret = os.urandom(32)
        self._boot = os.urandom(4).hex().encode()
        self._progress = Progress(driver, self._ongoing)
        self.lag = LoopLag(asyncio.get_running_loop(), self.settings.loop_lag_s)
        self.complaints = Complaints(self._boot)
        self.shed = 0
        """How many requests were refused because this process itself was too slow."""

    # ---- what the server asks (see `Application`)

    def on_head(self, head: Head) -> Refusal | None:
        """Refuse unknown paths and wrong methods, and everything while this process lags, before the body is read."""
        if self.lag.overloaded:
            self.shed += 1
            return self.complaints.overloaded(head)
        if kept_reading(head, self.entry.callers) is not None:
            return None
        allowed = methods(head.path)
        if head.method in allowed:
            return self.entry.refusal(head, partial(self.complaints.early, head))
        if allowed:
            return self.complaints.wrong_method(head, allowed)
        return self.complaints.early(head, 404, "unknown_path", "this path is not served here")

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Ask the core about one request, or answer what needs no asking."""
        reading = kept_reading(exchange.head, self.entry.callers) or self._read_head(exchange)
        if reading is None:
            return
        number = self.driver.next_attempt()
        request_id = reading.given_id or b"%b-%x" % (self._boot, number)
        try:
            if reading.complaint is not None:
                raise reading.complaint
            if reading.read is None:
                self._pass_light(exchange, reading, request_id, body)
                return
            facts = reading.read(body)
        except BadInputError as error:
            self.complaints.reject(exchange, reading.dialect, request_id, error)
            return
        attempt = self._attempt(exchange, number, request_id, reading.dialect, facts, body)
        self._ongoing[exchange] = attempt
        arrival = _arrival(self._secret, number, reading, facts, body)
        if self.settings.clips:
            arrival = arrival._replace(may_clip=may_clip(body))
        if reading.ticket is not None:
            attempt.ticket_tenant = reading.caller.tenant
            arrival = self._with_ticket(arrival, reading.ticket)
        if facts.previous_id:
            arrival = self._back_to_keeper(arrival, facts.previous_id)
        self.driver.arrive(arrival, attempt)

    def _back_to_keeper(self, arrival: Arrived, answer_id: str) -> Arrived:
        """Send what builds on a kept answer to the engine that keeps it, if it is this tenant's."""
        keeper = self.kept_answers.find(answer_id)
        if keeper is None or keeper.tenant != arrival.tenant:
            return arrival
        return arrival._replace(engine=keeper.engine)

    def _with_ticket(self, arrival: Arrived, value: bytes) -> Arrived:
        """Give an arrival the age that its ticket proves; what is no good ticket changes nothing."""
        ticket = self.tickets.redeem(value, arrival.tenant)
        if ticket is None:
            return arrival
        return arrival._replace(first_seen=ticket.first_seen, due_at=ticket.due_at)

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

    def bad_request(self, status: int, code: str, message: str, head: Head | None = None) -> Refusal:
        """Dress a complaint of the server in the dialect of whoever is speaking."""
        self.complaints.rejected += 1
        return self.complaints.early(head, status, code, message)

    # ---- what attempts ask

    def forget(self, exchange: Exchange) -> None:
        """Drop an exchange that is over."""
        if isinstance(exchange, KeptAlive):
            exchange = exchange.release()
        self._ongoing.pop(exchange, None)

    def stored(self, exchange: Exchange, answer_id: str, engine: str) -> None:
        """Remember that this engine keeps the answer of this exchange under an id."""
        reading = kept_reading(exchange.head, self.entry.callers)
        caller = reading.caller if reading is not None else self.entry.caller(exchange.head)
        self.kept_answers.add(answer_id, Keeper(engine, caller.tenant if caller is not None else ""))

    def onward(self, head: Head, engine: EngineRoute, request_id: bytes) -> Lines:
        """Return the header lines of a request as this engine gets them; those of a head that repeats are kept."""
        reading = kept_reading(head, self.entry.callers)
        kept = reading.onward.get(engine.name) if reading is not None else None
        if kept is not None and kept[0] is engine:
            return with_id(kept[1], request_id)
        fields = for_engine(head.headers, head.header(b"connection"))
        fields = with_credential(self.entry.onward(fields), engine.credential)
        lines = header_lines(fields, REQUEST_RESERVED)
        if reading is not None:
            reading.onward[engine.name] = engine, lines
        return with_id(lines, request_id)

    def first_event_by(self, decided: float) -> float:
        """Return when the engine must have begun to answer: as decided, or sooner by the door's own bound."""
        bound_s = self.settings.first_event_s
        return decided if bound_s is None else min(decided, asyncio.get_running_loop().time() + bound_s)

    def asks_usage(self, engine: str, facts: RequestFacts, body: bytes) -> bool:
        """Whether to ask this engine for the usage of a stream that came without `stream_options`."""
        return (
            self.settings.ask_usage
            and facts.include_usage is None
            and engine not in self._no_usage
            and b'"stream_options"' not in body
        )

    def refuses_usage(self, engine: str) -> None:
        """Never ask this engine again: it answered 400 to `stream_options`."""
        self._no_usage.add(engine)

    @property
    def rejected(self) -> int:
        """How many requests had something wrong in them."""
        return self.complaints.rejected

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

    def _read_head(self, exchange: Exchange) -> Reading | None:
        """Conclude from a head what its repeats need not be asked again; None when it has been refused."""
        head, entry = exchange.head, self.entry
        caller = entry.caller(head)
        if caller is None:
            refusal = entry.refusal(head, partial(self.complaints.early, head))
            refusal = refusal or self.complaints.overloaded(head)
            exchange.respond(refusal.status, refusal.headers, refusal.body, close=True)
            return None
        reading = Reading(head, entry.callers, caller)
        reading.keep(head)
        return reading

    def _attempt(
        self,
        exchange: Exchange,
        number: int,
        request_id: bytes,
        dialect: Dialect,
        facts: RequestFacts,
        body: bytes,
    ) -> Attempt:
        wanted = self.settings.keep_alive_s
        every_s = wanted.get(exchange.head.path.decode("latin-1")) if wanted and facts.stream else None
        if every_s is None:
            return Attempt(self, exchange, number, request_id, dialect, facts, body)
        kept_alive = KeptAlive(exchange, dialect, request_id, every_s)
        attempt = Attempt(self, kept_alive, number, request_id, dialect, facts, body)
        kept_alive.until(lambda: attempt.stream is not None and attempt.stream.events > 0)
        return attempt

    def _pass_light(self, exchange: Exchange, reading: Reading, request_id: bytes, body: bytes) -> None:
        """Relay a light request to the engine that it is for, or refuse it when too many are under way."""
        head, dialect = exchange.head, reading.dialect
        if self._light >= self.settings.light_at_once:
            answer = dialect.refuser.refuse(
                Reason.SATURATED, _LIGHT_RETRY_S, retry=True, request_id=request_id
            )
            exchange.respond(answer.status, answer.headers, answer.body)
            return
        engines = self._light_engines(head.path, reading.caller.tenant)
        if not engines:
            unknown = BadInputError("no answer is kept under this id", status=404, code="not_found")
            self.complaints.reject(exchange, dialect, request_id, unknown)
            return
        self._light += 1
        send = partial(self._send_light, head, request_id, body)
        request = LightRequest(
            exchange, request_id, dialect, partial(self._light_done, exchange), send, engines
        )
        self._ongoing[exchange] = request
        request.begin()

    def _send_light(
        self, head: Head, request_id: bytes, body: bytes, engine: EngineRoute, request: LightRequest
    ) -> Call:
        streams = kept_answer(head.path) is not None and wants_stream(head.target)
        receiver = FirstStream(request, strip_usage=False) if streams else FirstWhole(request)
        headers = self.onward(head, engine, request_id)
        call = engine.upstream.request(head.method, engine.base_path + head.target, headers, body, receiver)
        call.expire_at(asyncio.get_running_loop().time() + _LIGHT_TIMEOUT_S)
        return call

    def _light_engines(self, path: bytes, tenant: str) -> list[EngineRoute]:
        """Return the engine that keeps what is asked for; none when none of several does, or it is another tenant's.

        What every engine knows is asked of those that are up, and of one that is down rather than of none.
        """
        answer_id = kept_answer(path)
        keeper = self.kept_answers.find(answer_id) if answer_id is not None else None
        if keeper is not None:
            kept_at = self.engines.get(keeper.engine)
            return [kept_at] if kept_at is not None and keeper.tenant == tenant else []
        engines = list(self.engines.values())
        if len(engines) == 1:
            return engines
        if answer_id is not None:
            return []
        up = {engine.name for engine in self.driver.snapshot().engines if engine.up}
        return [engine for engine in engines if engine.name in up] or engines[:1]

    def _light_done(self, exchange: Exchange) -> None:
        self._light -= 1
        self.forget(exchange)


def _arrival(secret: bytes, number: int, reading: Reading, facts: RequestFacts, body: bytes) -> Arrived:
    size = len(body)
    tenant, lane = reading.caller
    first_seen, max_wait_s = None, None
    # By position: keywords make this record three times dearer, and it is built for every request.
    return Arrived(
        number,
        tenant,
        lane,
        facts.model,
        size if facts.text_bytes is None else facts.text_bytes,
        size,
        facts.max_tokens,
        facts.answers,
        facts.stream,
        reading.allowed_s,
        reading.retries,
        first_seen,
        max_wait_s,
        partial(fingerprint, secret, tenant, body),
        None,
        False,
        facts.min_tokens,
        facts.fixed_tokens,
    )
