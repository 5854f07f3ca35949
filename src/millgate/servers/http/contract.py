"""What the pieces of the HTTP door ask of each other."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from millgate.core.decisions import Admit
from millgate.core.events import PrefixMarks
from millgate.core.limits.breaker import FIRST_PAUSE_S
from millgate.core.words import FailureKind, Sent
from millgate.dialects.contract import Dialect, RequestFacts, Usage
from millgate.http1.client import AnswerHead, Call
from millgate.http1.server.contract import Exchange
from millgate.runtime.driver import DecisionListener, Driver
from millgate.runtime.lag import LATE_S
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.runtime.prefix_marker import PrefixMarker
from millgate.runtime.verdicts import SAID_NOTHING, Said
from millgate.servers.http.asked_usage import AskedUsage
from millgate.servers.http.cross_origin import CrossOrigin
from millgate.servers.http.error_responses import ErrorResponses, unheard
from millgate.servers.http.keep_alive import KeptAlive
from millgate.servers.http.kept_answers import KeptAnswers
from millgate.servers.http.whole_bound import GivenUp
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.ongoing import Ongoing
from millgate.servers.requests.reading import DoorRequest
from millgate.servers.requests.routes import EngineRoute
from millgate.servers.requests.tickets import TicketDesk
from millgate.servers.requests.told_clients import ToldClients


@dataclass(frozen=True, slots=True)
class CoalescingSettings:
    """How long requests gather at most, and how many texts one call has at most."""

    window_s: float = 0.005
    most_inputs: int = 8


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the door may be told; `ask_usage` adds `stream_options` to streams that came without.

    `light_at_once` is how many requests that need no permit (the list of models) may be under way together.
    `first_event_s` bounds the time from admission to the first event beside the core's own deadline. While the loop
    is later than `loop_lag_s` new requests are refused. `keep_alive_s` names paths whose streaming clients get a sign
    of life every so many seconds before the first token; it settles their status (see `keep_alive`). `ticket_key` signs
    tickets; None makes one at the start. With `clips` the core is told which answers may be cut short. `models` are the
    only ones that any engine answers for; None passes every name on. `pages` are paths of an engine's pages about itself
    that clients may see, and `/healthz` where the door answers it. `cross_origin` lets pages of other sites ask. Requests for
    embeddings share calls in the lanes that `coalesce` names; `first_lane` takes what names none. With `hands_over` the core is told
    which requests may be read on one engine and answered on another.
    """

    light_at_once: int = 16
    ask_usage: bool = True
    first_event_s: float | None = None
    loop_lag_s: float = LATE_S
    keep_alive_s: Mapping[str, float] | None = None
    ticket_key: bytes | None = field(default=None, repr=False)
    clips: bool = False
    models: frozenset[str] | None = None
    pages: frozenset[bytes] = frozenset()
    cross_origin: CrossOrigin | None = None
    coalesce: Mapping[str, CoalescingSettings] = field(default_factory=dict)
    first_lane: str = ""
    hands_over: bool = False


Telling = Callable[[], None] | None
"""Tells a client what an engine has said that had nothing of its request."""


class AnswerOwner(Ongoing, Protocol):
    """Whose answer it is, with the call that it comes from: told once, by `finished` or `failed`, how it ended. What it hears beside is nothing to it by default."""

    exchange: Exchange
    request_id: bytes
    dialect: Dialect
    extra: Pairs
    """Headers of our own for the answer."""
    own_key: bool
    """Whether the engine was sent the gate's key instead of the client's."""
    is_work: ClassVar[bool] = False
    """Whether the answer is what an engine has worked for; one that is fetched may be of work that goes on."""
    _call: Call | None
    """Held from the time that the engine is asked."""

    @property
    def restart_hint_s(self) -> float:
        """When its client is to come back if there is no engine."""
        return FIRST_PAUSE_S

    def because(self, detail: str) -> None:
        """The failure that is told next has this cause, in the words of the connection."""
        del detail

    def unsent(self, kind: FailureKind, said: Said = SAID_NOTHING, tell: Telling = None) -> None:
        """The engine has nothing of it, so that another one may be tried; `tell`, else the kind, is for a client that gets no other answer."""

    def answered(self, head: AnswerHead) -> None:
        """The head of the answer has come."""
        del head

    def begun(self) -> None:
        """The first event of a stream has come, in time, or what is passed on as it comes: the request is not sent again."""

    def first_token(self) -> None:
        """The first event with content has come, or the first sound."""

    def finished(self, usage: Usage) -> None:
        """The client has the whole answer, and the engine has counted so much of it."""

    def failed(self, kind: FailureKind, sent: Sent, said: Said = SAID_NOTHING) -> None:
        """There is no whole answer; the client has been told."""

    def broken(self) -> None:
        """End as failed, wherever it stands: our own code has failed on the answer."""

    def stored(self, answer_id: str) -> None:
        """The engine keeps this answer under an id."""
        del answer_id

    def resend(self, complaint: bytes) -> bool:
        """Take back what we added to the request if that is what this 400 or 422 complains of; True if sent again."""
        del complaint
        return False

    def break_off(self) -> None:
        """Abort the call: the engine sees the hang-up now."""
        if self._call is not None:
            self._call.abort()

    def widen(self) -> None:
        """Let more of a long answer be under way."""
        if self._call is not None:
            self._call.widen()

    def slow(self, slow: bool) -> None:
        """Read from the engine only as fast as the client reads."""
        if self._call is not None:
            (self._call.pause if slow else self._call.resume)()


class HttpDesk:
    """What attempts and other requests ask of their door. Compiled, a class is asked twice as fast as a protocol.

    `engines` are the routes to the engines that the core knows, by the same names; light requests go to the first.
    """

    def __init__(self, driver: Driver, engines: Sequence[EngineRoute], settings: DoorSettings) -> None:
        clock = asyncio.get_running_loop().time
        self.driver = driver
        self.engines: Mapping[str, EngineRoute] = {engine.name: engine for engine in engines}
        self.settings = settings
        self._ongoing: dict[Exchange, Ongoing] = {}
        self._boot = os.urandom(4).hex().encode()
        self.error_responses = ErrorResponses(self._boot)
        self.tickets = TicketDesk(clock, settings.ticket_key)
        self.kept_answers = KeptAnswers()
        self.asked_usage = AskedUsage(clock)
        self.secret = os.urandom(32)
        """The key of the fingerprints."""
        self.told_clients: ToldClients | None = None
        """Those of other workers and replicas, where there are any."""
        self.marker = PrefixMarker(settings.ticket_key or self.secret)
        self.on_given_up: Callable[[GivenUp], None] = unheard
        """Told of each whole answer that did not come within its bound."""
        self.on_refused: Callable[[str, FailureKind], None] = unheard
        """Told of each answer of an engine that has no room, refuses the gate's own key, or says that its account has no credit left."""
        self.on_client_refused: Callable[[str], None] = unheard
        """Told of each engine that refuses a client's own key."""
        self.on_unknown: Callable[[str], None] = unheard
        """Told of each engine that knew no such model or path, where another one was asked."""
        self.on_upstream_named: Callable[[int, bytes], None] = unheard
        """Told of each attempt whose engine gave its answer an id of its own."""
        self.on_cause: Callable[[int, str], None] = unheard
        """Told in words why the connection to an attempt's engine failed."""
        self.traced: Callable[[int, bytes], bytes] | None = None
        """Puts an attempt's trace into its header lines for its engine, where traces are made."""
        self.unusable_usage = 0
        self.on_unusable_usage: Callable[[str], None] = unheard
        """Told the engine of each whole answer that says nothing usable of its tokens; `unusable_usage` counts them."""

    def route(self, decision: Admit, lane: str | None) -> EngineRoute:
        """Return how to reach the engine of an attempt that named this lane, or none."""
        raise NotImplementedError

    def accept(self, request: DoorRequest, facts: RequestFacts) -> None:
        """Ask the core about a request whose body has been read; raises BadInputError."""

    def forget(self, exchange: Exchange) -> None:
        """Drop an exchange that is over."""
        if isinstance(exchange, KeptAlive):
            exchange = exchange.release()
        self._ongoing.pop(exchange, None)

    def first_event_by(self, decided: float) -> float:
        """Return when the engine must have begun to answer: as decided, or sooner by the door's own bound."""
        bound_s = self.settings.first_event_s
        return decided if bound_s is None else min(decided, asyncio.get_running_loop().time() + bound_s)

    def asks_usage(self, engine: str, facts: RequestFacts, body: bytes) -> bool:
        """Whether to ask this engine for the usage of a stream that came without `stream_options`."""
        return (
            self.settings.ask_usage
            and facts.include_usage is None
            and self.asked_usage.may_ask(engine)
            # Of a long body its reader has looked.
            and (len(body) > LONG_BYTES or body.find(b'"stream_options"') < 0)
        )

    def misses_usage(self, engine: str) -> None:
        """Count an answer whose usage is missing, negative or absurd; the estimate stands."""
        self.unusable_usage += 1
        self.on_unusable_usage(engine)


class AskedAttempt(DecisionListener, Ongoing, Protocol):
    """One attempt as its door sees it: it listens to the driver, and hears of its client."""

    number: int
    over: bool
    """Whether its client has been answered or has left: it is no longer the door's."""

    def fingerprint(self) -> int:
        """Return what the request is recognised by when it comes back."""

    def marks(self) -> PrefixMarks:
        """Return the marks of its conversation's prefixes."""


AttemptMaker = Callable[[DoorRequest, RequestFacts], AskedAttempt]
"""Makes the attempt of a request, whose body says this."""
