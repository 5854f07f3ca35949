"""The HTTP door: bytes of a request become facts, facts an arrival, and decisions answers."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from headgate.core.events import Arrived, EngineProgress, Growth
from headgate.core.words import Reason
from headgate.dialects import DIALECTS
from headgate.dialects.contract import BadInputError, Dialect, RequestFacts
from headgate.dialects.refusals import Refuser
from headgate.runtime.callers import Callers
from headgate.runtime.driver import Driver
from headgate.runtime.lag import LoopLag
from headgate.runtime.upstream.fields import REQUEST_RESERVED, Lines, header_lines
from headgate.servers.http.answers import WholeAnswer
from headgate.servers.http.attempt import Attempt
from headgate.servers.http.contract import DoorSettings, EngineRoute, Ongoing
from headgate.servers.http.entry import Entry
from headgate.servers.http.fields import (
    for_engine,
    with_credential,
    with_id,
)
from headgate.servers.http.fingerprint import fingerprint
from headgate.servers.http.light import LightRequest
from headgate.servers.http.reading import Reading, kept_reading
from headgate.servers.http1.contract import Exchange, Head, Refusal

_JSON: Final = (b"content-type", b"application/json")
_MODELS: Final = b"/v1/models"
_ONE_MODEL: Final = re.compile(
    rb"/v1/models/[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*(?:(?:/|%2F)[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*)*\Z"
)
_LIGHT_TIMEOUT_S: Final = 10.0
_LIGHT_RETRY_S: Final = 1.0
_PROGRESS_S: Final = 1.0
_OWN_LAG_RETRY_S: Final = 1.0


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
        self.dialect: Dialect = DIALECTS["openai"]
        self.refuser = Refuser("openai")
        self.rejected = 0
        self.settings = settings or DoorSettings()
        self._readers = self.dialect.readers
        self._ongoing: dict[Exchange, Ongoing] = {}
        self._light = 0
        self._no_usage: set[str] = set()
        self._secret = os.urandom(32)
        self._boot = os.urandom(4).hex().encode()
        self._timer: asyncio.TimerHandle | None = None
        self.lag = LoopLag(asyncio.get_running_loop(), self.settings.loop_lag_s)
        self._overloaded = Refusal(
            *self.refuser.refuse(Reason.SATURATED, _OWN_LAG_RETRY_S, True, self._boot)[:3]
        )
        self.shed = 0
        """How many requests were refused because this process itself was too slow."""

    # ---- what the server asks (see `Application`)

    def on_head(self, head: Head) -> Refusal | None:
        """Refuse unknown paths and wrong methods, and everything while this process lags, before the body is read."""
        path, method = head.path, head.method
        if self.lag.overloaded:
            self.shed += 1
            return self._overloaded
        if kept_reading(head, self.entry.callers) is not None:
            return None
        if path in self._readers:
            return self.entry.refusal(head, self._bad) if method == b"POST" else self._wrong_method(b"POST")
        if path == _MODELS or _ONE_MODEL.match(path):
            return self.entry.refusal(head, self._bad) if method == b"GET" else self._wrong_method(b"GET")
        return self._bad(404, "unknown_path", "this path is not served here")

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Ask the core about one request, or answer what needs no asking."""
        reading = kept_reading(exchange.head, self.entry.callers) or self._read_head(exchange)
        if reading is None:
            return
        number = self.driver.next_attempt()
        request_id = reading.given_id or b"%b-%x" % (self._boot, number)
        read = reading.read
        if read is None:
            self._pass_light(exchange, request_id)
            return
        try:
            if reading.complaint is not None:
                raise reading.complaint
            facts = read(body)
        except BadInputError as error:
            self._reject(exchange, request_id, error)
            return
        attempt = Attempt(self, exchange, number, request_id, facts, body)
        self._ongoing[exchange] = attempt
        self.driver.arrive(self._arrival(number, reading, facts, body), attempt)

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

    def bad_request(self, status: int, code: str, message: str) -> Refusal:
        """Dress a complaint of the server in this door's dialect."""
        self.rejected += 1
        return self._bad(status, code, message)

    # ---- what attempts ask

    def forget(self, exchange: Exchange) -> None:
        """Drop an exchange that is over."""
        self._ongoing.pop(exchange, None)

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
        self._schedule_report()

    def stop(self) -> None:
        """Stop reporting and watching."""
        self.lag.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_report(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._report)

    def _report(self) -> None:
        self._schedule_report()
        grown: dict[str, list[Growth]] = {}
        for ongoing in self._ongoing.values():
            if isinstance(ongoing, Attempt) and ongoing.stream is not None and ongoing.stream.events:
                grown.setdefault(ongoing.engine, []).append(Growth(ongoing.number, ongoing.stream.events))
        for engine, streams in grown.items():
            self.driver.post(EngineProgress(engine, tuple(streams)))

    # ---- requests

    def _read_head(self, exchange: Exchange) -> Reading | None:
        """Conclude from a head what its repeats need not be asked again; None when it has been refused."""
        head, entry = exchange.head, self.entry
        caller = entry.caller(head)
        if caller is None:
            refusal = entry.refusal(head, self._bad) or self._overloaded
            exchange.respond(refusal.status, refusal.headers, refusal.body, close=True)
            return None
        reading = Reading(head, entry.callers, caller, self._readers)
        reading.keep(head)
        return reading

    def _arrival(self, number: int, reading: Reading, facts: RequestFacts, body: bytes) -> Arrived:
        size = len(body)
        tenant, lane = reading.caller
        first_seen, max_wait_s = None, None
        # By position: keywords make this record three times dearer, and it is built for every request.
        return Arrived(
            number,
            tenant,
            lane,
            facts.model,
            size,
            size,
            facts.max_tokens,
            facts.answers,
            facts.stream,
            reading.allowed_s,
            reading.retries,
            first_seen,
            max_wait_s,
            partial(fingerprint, self._secret, tenant, body),
        )

    def _pass_light(self, exchange: Exchange, request_id: bytes) -> None:
        """Relay a light request to the first engine, or refuse it when too many are under way."""
        if self._light >= self.settings.light_at_once:
            answer = self.refuser.refuse(Reason.SATURATED, _LIGHT_RETRY_S, retry=True, request_id=request_id)
            exchange.respond(answer.status, answer.headers, answer.body)
            return
        self._light += 1
        engine = next(iter(self.engines.values()))
        request = LightRequest(
            exchange, request_id, self.dialect, self.refuser, partial(self._light_done, exchange)
        )
        self._ongoing[exchange] = request
        target = engine.base_path + exchange.head.target
        headers = self.onward(exchange.head, engine, request_id)
        call = engine.upstream.request(b"GET", target, headers, b"", WholeAnswer(request))
        call.expire_at(asyncio.get_running_loop().time() + _LIGHT_TIMEOUT_S)
        request.began(call)

    def _light_done(self, exchange: Exchange) -> None:
        self._light -= 1
        self.forget(exchange)

    # ---- refusals of the door's own

    def _reject(self, exchange: Exchange, request_id: bytes, error: BadInputError) -> None:
        self.rejected += 1
        body = self.dialect.error("invalid_request_error", error.code, error.message, error.field)
        headers = [_JSON, (b"x-request-id", request_id), (b"request-id", request_id), _NO_RETRY]
        exchange.respond(error.status, headers, body)

    def _wrong_method(self, allowed: bytes) -> Refusal:
        refusal = self._bad(405, "method_not_allowed", f"this path takes {allowed.decode()}")
        return refusal._replace(headers=[*refusal.headers, (b"allow", allowed)])

    def _bad(self, status: int, code: str, message: str) -> Refusal:
        kind = "invalid_request_error" if status < 500 else "server_error"
        headers = [_JSON, _NO_RETRY] if status < 500 and status != 408 else [_JSON]
        return Refusal(status, headers, self.dialect.error(kind, code, message))


_NO_RETRY: Final = (b"x-should-retry", b"false")
