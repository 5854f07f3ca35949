"""Attempts behind Envoy, from the decision about each to what Envoy tells of its end, and what they share."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from millgate.core.decisions import Admit, Cancel, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    Failed,
    Finished,
    FirstToken,
    Growth,
    PrefixMarks,
    Released,
)
from millgate.core.words import FailureKind, Sent
from millgate.dialects.clip import clipped
from millgate.dialects.contract import Dialect, RequestFacts, Usage
from millgate.dialects.refusals import RefusalAnswer
from millgate.http1.client import Ear
from millgate.http1.client.connection import COMPLAINING, FAULTY
from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.contract import Application, Exchange, RequestHead
from millgate.http1.wire.fields import HOP_BY_HOP, Lines
from millgate.runtime.driver import DecisionListener, Driver
from millgate.runtime.prefix_marker import PrefixMarker
from millgate.runtime.verdicts import UNFIT, Said, event_verdict
from millgate.servers.extproc.call import Destination, EnvoyExchange
from millgate.servers.extproc.extension import allowed, in_own_terms
from millgate.servers.extproc.messages import Forward
from millgate.servers.extproc.running import LoggedRequest, RunningRequests, read_error
from millgate.servers.extproc.settings import CONTROL_HEADERS, DESTINATION, ExtprocSettings
from millgate.servers.requests.fields import Pairs, for_engine, with_credential, without_credentials
from millgate.servers.requests.ongoing import Ongoing, tell_growth
from millgate.servers.requests.reading import DoorRequest, HeadReading
from millgate.servers.requests.response_headers import refusal, response_headers
from millgate.servers.requests.routes import EngineRoute
from millgate.servers.requests.tickets import KeptBody, TicketDesk
from millgate.servers.requests.told_clients import ToldClients


class HeardRequest:
    """One request that goes to an engine now, whose `ear` hears what follows; None hears nothing."""

    def __init__(self, ear: Ear | None) -> None:
        self._ear = ear
        self._heard_before = 0 if ear is None else ear.heard
        self._is_trial = ear is not None and ear.anxious and ear.tries()

    def answered(self, *, is_whole: bool = True) -> None:
        """Its answer has begun, which is enough for the one that is tried, or is whole."""
        if self._ear is not None:
            self._ear.heard += 1
            if self._ear.anxious and (is_whole or self._is_trial):
                self._ear.succeeded()

    def failed(self, kind: FailureKind, status: int | None) -> None:
        """It has failed; `status` is as in `FailedAnswer`."""
        ear = self._ear
        if ear is None or status is None:
            return
        if status == 0:
            ear.failed(kind, self._heard_before, "behind Envoy")
        elif status >= FAULTY or (status < COMPLAINING and kind in UNFIT):
            ear.complained(status, "" if status >= FAULTY else ", and not what was asked for")
        elif status < COMPLAINING:
            self.answered()
        else:
            ear.heard += 1
            if self._is_trial:
                ear.undecided()


class EnvoyAttempt(Ongoing, DecisionListener):
    """Listens to the driver for one exchange; Envoy carries the request and its answer.

    It waits in silence, and Envoy holds the stream and the engine back. It is `over` once its client has been answered or has left, as far as Envoy tells: then nothing is reported.
    """

    def __init__(
        self,
        desk: "ExtprocDesk",
        door: "DecidingDoor",
        exchange: EnvoyExchange,
        request: DoorRequest,
        facts: RequestFacts,
    ) -> None:
        self._desk = desk
        self._door = door
        self._exchange = exchange
        self._request_id = request.request_id
        self._reading = request.reading
        self._facts = facts
        self._body = KeptBody(request.body)
        self._engine: Destination | None = None
        self._asked_at = desk.running.now()
        self._has_begun, self._first_event_by = False, 0.0
        self._engine_name = ""
        self._body_bytes, self._usage = 0, Usage(None, None)
        self._heard = HeardRequest(None)
        self.number = request.number
        self.name = f"{door.boot}-{request.number:x}"
        """What Envoy calls it in its access log."""
        self.over = False
        self.dialect: Dialect = request.reading.dialect
        self.extra: Pairs = []

    def fingerprint(self) -> int:
        """Return what the request is recognised by when it comes back."""
        return self._body.fingerprint(self._door.secret, self._reading.caller.tenant)

    def marks(self) -> PrefixMarks:
        """Return the marks of its conversation's prefixes."""
        return self._door.marker.marks(self._reading.conversation, self._facts, self._body.data)

    # ---- what the core says

    def on_admit(self, decision: Admit) -> None:
        """Let Envoy send it to its engine, unless its client has left in this very moment."""
        if self.over:
            return
        try:
            self._run(decision)
        except Exception:
            self.failed(FailureKind.BROKEN, Said(), None)
            raise

    def _run(self, decision: Admit) -> None:
        desk, head = self._desk, self._exchange.head
        self._engine_name, self._first_event_by = decision.legs[0].engine, decision.first_event_by
        self._engine = engine = desk.destinations[self._engine_name]
        body, reshaped = self._body.data, decision.reshaped
        if decision.quota or reshaped is not None:
            self.extra = response_headers(decision, self.dialect.family)
        is_clipped = reshaped is not None and reshaped.max_tokens is not None
        if reshaped is not None and reshaped.max_tokens is not None:
            body = clipped(body, reshaped.max_tokens, path=head.path)
        fields, without = desk.fields_of(head, self._reading, engine.route)
        desk.running.add(self.name, self, decision.first_event_by + desk.settings.lease_s)
        self._heard = HeardRequest(engine.route.ear)
        told = b"" if (refusal := self.key_refusal) is None else refusal.body
        forward = Forward(engine.address, self.name, self._request_id, fields, without, told)
        self._exchange.forward(forward, body, self, is_changed=is_clipped)
        self._body.drop()

    def on_yield(self, decision: Yield) -> None:
        """Refuse it."""
        if not self._close():
            return
        status, lines, body, close = refusal(self.dialect, decision, self._request_id)
        if decision.retry and self._reading.ticket is not None:
            lines += self._door.tickets.line(self._reading.caller.tenant, decision)
        elif decision.retry and self._door.told_clients is not None:
            self._door.told_clients.refused(self._reading.caller.tenant, self._body, decision)
        self._exchange.respond(status, Lines(lines), body, close=close)

    def on_cancel(self, decision: Cancel) -> None:
        """Give its slot up: Envoy has it, and ends it by its own drain."""
        del decision
        if self._close():
            self._door.driver.post(Released(self.number))

    # ---- what Envoy says

    @property
    def key_refusal(self) -> RefusalAnswer | None:
        """What the client is told where the engine refuses our own key, or none: its own is good. None where that was sent."""
        if self._engine is None or not self._reading.is_own_key(self._engine.route):
            return None
        return self.dialect.refuser.failed(FailureKind.STATUS, self._request_id)

    def first_token(self, ago_s: float = 0.0) -> None:
        """Report the first content, once."""
        if not self.over and not self._has_begun and self._facts.stream:
            self._has_begun = True
            self._heard.answered(is_whole=False)
            self._door.driver.post(FirstToken(self.number, ago_s))

    def logged(self, entry: LoggedRequest) -> None:
        """Take what the access log tells: the first bytes, how many there are, or the end."""
        self._body_bytes, self._usage = entry.body_bytes, entry.usage
        if entry.failure is None and entry.first_body_s is not None:
            self.first_token(max(0.0, self._desk.running.now() - self._asked_at - entry.first_body_s))
        elif entry.goes_on and entry.body_bytes:
            self.first_token()
        if entry.goes_on:
            return
        error = read_error(entry.error, self.dialect)
        if error is not None:  # its client may have left on it
            self.failed(*event_verdict(error), 200)
        elif entry.left:
            self.left()
        elif entry.failure is not None:
            self.failed(*entry.failure)
        else:
            sizes, facts = self._desk.running.sizes, self._facts
            self.whole(sizes.complete(entry.usage, entry.body_bytes, facts.max_tokens, streamed=facts.stream))

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine, and what is known by the last entry: tokens that were told, or that the bytes make which have passed."""
        if not self._has_begun:
            return None
        prompt, output, cached = self._usage
        tokens = output or self._desk.running.sizes.tokens(self._body_bytes, streamed=True)
        known = Growth(self.number, tokens, prompt, cached)
        return (self._engine_name, known) if tokens or prompt else None

    def whole(self, usage: Usage) -> None:
        """Report a whole answer; the engine is done with it."""
        if self._close():
            self._heard.answered()
            told = Finished(self.number, usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            self._door.driver.post(told, Released(self.number))

    def failed(self, kind: FailureKind, said: Said, status: int | None) -> None:
        """Report a failure: Envoy has told the client, so no other engine may be tried."""
        if self._close():
            self._heard.failed(kind, status)
            tell_growth(self._door.driver, self.growth())
            if self.key_refusal is not None and (said.blames_key or kind is FailureKind.NO_CREDIT):
                self._door.on_refused(self._engine_name, kind)
            self._door.driver.post(Failed(self.number, kind, Sent.REQUEST, *said), Released(self.number))

    def lost(self) -> None:
        """No entry has come: the engine's own gauge shows whether it still runs."""
        self.left()

    # ---- what the client does

    def left(self) -> None:
        """The client has gone: the core ends the permit when the engine has let go."""
        if self._close():
            if not self._has_begun and self._desk.running.now() > self._first_event_by:
                self._heard.failed(FailureKind.TIMEOUT, 0)
            tell_growth(self._door.driver, self.growth())
            self._door.driver.post(ClientGone(self.number))
            if self._engine is not None and self._engine.route.on_hangup is not None:
                self._engine.route.on_hangup()

    def gone(self) -> None:
        """The stream of a held request has ended."""
        self.left()

    def _close(self) -> bool:
        """Leave every book; return False when that has happened before."""
        if self.over:
            return False
        self.over = True
        self._desk.running.drop(self.name)
        self._door.forget(self._exchange)
        return True


_CONTROL: Final = frozenset(name.encode() for name in CONTROL_HEADERS)
_OURS: Final = (b"x-request-id", DESTINATION.encode())
_ENVOYS_OWN: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect", *_OURS}
"""Headers that Envoy writes anew, or that we set."""


class DecidingDoor(Application, Protocol):
    """The door that reads requests and asks the core: the same as behind our own HTTP server."""

    driver: Driver
    tickets: TicketDesk
    told_clients: ToldClients | None
    secret: bytes
    marker: PrefixMarker
    on_refused: Callable[[str, FailureKind], None]

    @property
    def boot(self) -> str:
        """What the names of its attempts begin with."""

    def forget(self, exchange: Exchange) -> None:
        """Drop an exchange that is over."""


class ExtprocDesk:
    """One for all streams; `destinations` are the engines that the core knows, by the same names."""

    def __init__(
        self,
        door: DecidingDoor,
        settings: ExtprocSettings,
        destinations: Mapping[str, Destination],
        budget: ByteBudget,
        tenant_of: Callable[[RequestHead], str],
        ask_by_head: Callable[[Exchange], None],
        now: Callable[[], float],
    ) -> None:
        self.application = door
        self.ask_by_head = ask_by_head
        self.door = door
        self.settings = settings
        self.destinations = destinations
        self.running = RunningRequests(now)
        self._budget = budget
        self._tenant_of = tenant_of

    @property
    def body_bytes(self) -> int:
        """The longest body."""
        return self.settings.body_bytes

    def make_attempt(self, request: DoorRequest, facts: RequestFacts) -> EnvoyAttempt:
        """Return the attempt of a request that came through Envoy."""
        exchange = request.exchange
        assert isinstance(exchange, EnvoyExchange)
        return EnvoyAttempt(self, self.door, exchange, request, facts)

    def share_of(self, head: RequestHead) -> Share:
        """Return where the bytes of this request's body are booked: on its tenant; its peer is one Envoy for all."""
        return self._budget.share(self._tenant_of(head), "")

    def arrange(self, head: RequestHead) -> RequestHead:
        """Return the head with what the Inference Extension's headers say in our own."""
        return in_own_terms(head, self.settings.objective_lanes)

    def fields_of(
        self, head: RequestHead, reading: HeadReading, route: EngineRoute
    ) -> tuple[Pairs, list[str]]:
        """Return what is set on a request for this engine, and which of its headers stay here."""
        onward = for_engine(head.headers, trusted=reading.trusted)
        if reading.callers.guarded:  # a key of ours
            onward = without_credentials(onward)
        fields: Pairs = []
        if route.credential is not None:
            speaks = [pair for pair in onward if pair[0] == b"anthropic-version"]
            fields = with_credential(speaks, route.credential, reading.dialect.family)[len(speaks) :]
            onward = without_credentials(onward)
        if route.base_path:
            fields.append((b":path", route.base_path + head.target))
        goes = ({name for name, _ in onward} - _CONTROL) | {name for name, _ in fields}
        stays = {name for name, _ in head.headers if name not in goes and name not in _ENVOYS_OWN}
        return fields, [name.decode("latin-1") for name in sorted(stays)]

    def adjust(self, exchange: Exchange, arrival: Arrived) -> Arrived:
        """Return the arrival with what only Envoy says: the one engine that it may go to, and how its answer is seen."""
        assert isinstance(exchange, EnvoyExchange)
        return arrival._replace(
            engine=exchange.confined_to or arrival.engine, seen_late=not exchange.sees_answer
        )

    def engine_of(self, subset: tuple[str, ...]) -> str | None:
        """Return the engine to which a request is confined that may go to these endpoints alone, empty for any.

        None where there is no such engine. Of several it is the one with the most room now: the core knows one engine
        for a request, or all.
        """
        names = allowed({name: each.address for name, each in self.destinations.items()}, subset)
        if not names:
            return None
        return "" if len(names) == len(self.destinations) else min(names, key=self._fullness().__getitem__)

    def _fullness(self) -> dict[str, float]:
        """Return how full each engine is, of those that are down: full."""
        engines = self.door.driver.snapshot().engines
        return {each.name: each.running / max(1, each.limit) if each.up else 1e9 for each in engines}
