"""The line door: listens, sweeps, counts, and asks the same governor as every other door."""

import asyncio
import hmac
import os
import socket
import ssl as tls
from collections.abc import Callable, Sequence
from functools import partial
from json import detect_encoding
from typing import Final, cast

from millgate.core.events import Arrived, Withdrawn
from millgate.dialects import READERS
from millgate.dialects.bodies import no_such_model, not_yours
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.far_reading import Question
from millgate.dialects.line import Fault, Need, OutcomeReason, plain_words
from millgate.dialects.line_requests import Manifest
from millgate.http1.client.sweep import Sweep
from millgate.http1.server.budget import ByteBudget
from millgate.runtime.callers import session_of_model
from millgate.runtime.driver import Driver
from millgate.runtime.guesses import Guesses
from millgate.runtime.long_bodies import LONG_BYTES, LongBodies, Outcome, WaitingBody
from millgate.runtime.prefix_marker import PrefixMarker
from millgate.servers.line import replies
from millgate.servers.line.attempt import BACKEND, LineAttempt, LineDesk
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.connection import LineConnection
from millgate.servers.line.contract import Ask, ErrorWords, LineSettings, Readings, Withdraw
from millgate.servers.line.job import FULL_HINT_S
from millgate.servers.line.replies import To
from millgate.servers.line.session import Session
from millgate.servers.requests.routes import EngineRoute
from millgate.sockets.descriptors import Descriptors
from millgate.sockets.listening import Listeners, listening_socket

_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 10.0
"""As long as a head may take at the HTTP door."""
_DOOR: Final = "line door"
"""The holder of its bytes; no tenant's name has a blank. Uploads are booked on their address as on a tenant, on the door as
on a peer. Lines and answers have a share of their own: full of uploads, the door ends what it has begun."""
_MOST_KIND: Final = 128
"""Characters of a content type; registered ones are at most half as long."""
_TOO_MANY_GUESSES: Final = (Need.UNAUTHORIZED, Fault.QUOTA, OutcomeReason.QUOTA)
_NO_FACTS: Final = RequestFacts(model="", stream=False, max_tokens=None, answers=1, include_usage=None)
_OPENING_BYTES: Final = 1024
_DISGUISED: Final = BadInputError("body: JSON is UTF-8 without a byte order mark")
_STORED: Final = "previous_response_id or conversation: the line door keeps no answers to go on from; send the whole conversation"
_UNREAD: Final = "the gateway could not read this payload; send it again"


class Payloads:
    """Reads payloads as requests to the engines' `path`, one of `READERS`; what is no JSON object is the engine's to judge."""

    def __init__(self, path: bytes, bodies: LongBodies) -> None:
        self._path = path
        self._read = READERS[path]
        self._bodies = bodies

    def read(
        self, payload: Buffer, told: Callable[[Outcome], None], mark_seed: int | None = None
    ) -> WaitingBody | None:
        """Tell what this payload asks for: now, or in a later turn of the loop, for which something waits then.

        With a `mark_seed` the prefixes of a long one are marked.
        """
        if not _may_be_object(payload):
            told(_DISGUISED if _is_disguised(payload) else _NO_FACTS)
            return None
        body = bytes(payload.data)
        if len(body) > LONG_BYTES:
            return self._bodies.read(Question(self._path, b"", len(body), mark_seed), body, told)
        try:
            outcome: Outcome = self._read(body)
        except BadInputError as error:
            outcome = error
        told(outcome)
        return None


def why_refused(outcome: Outcome, models: frozenset[str] | None) -> str:
    """Say for the client why its payload is refused, empty where it is not; `models` None lets every name pass."""
    if not isinstance(outcome, RequestFacts):
        return outcome.message if isinstance(outcome, BadInputError) else _UNREAD
    if outcome.reserved:
        return not_yours(outcome.reserved).message
    if models is not None and outcome.model not in models:
        return no_such_model(outcome.model).message
    return _STORED if outcome.previous_id else ""


def _may_be_object(payload: Buffer) -> bool:
    """Look at how it begins; a megabyte of white space leaves that open."""
    opening = bytes(payload.data[:LONG_BYTES]).lstrip()[:1]
    return opening == b"{" or (not opening and len(payload) > LONG_BYTES)


def _is_disguised(payload: Buffer) -> bool:
    """Whether an engine may read an object here all the same: Python's decoder, which most have, takes UTF-16 and more."""
    opening = bytes(payload.data[:_OPENING_BYTES])
    encoding = detect_encoding(opening)
    text = "" if encoding == "utf-8" else opening.decode(encoding, "ignore")
    return text != "" and text.lstrip()[:1] in {"{", ""}


class LineDoor(LineDesk):
    """Serves the line protocol; build it on the loop that runs it.

    `engines` are the routes to the engines that the core knows, by the same names. `budget` is the process's one
    bound over bytes being received and kept; the door has a share of it, and so has each of its peers. `boot` begins the
    ids of its attempts, `marker` marks prefixes and `session_number` numbers sessions at every door. `models` names those that any
    engine answers for, None where every name is passed on. `descriptors` is the process's one account of clients, `long_bodies` reads long payloads.
    """

    def __init__(
        self,
        driver: Driver,
        engines: Sequence[EngineRoute],
        settings: LineSettings,
        budget: ByteBudget,
        *,
        boot: str,
        long_bodies: LongBodies,
        marker: PrefixMarker,
        session_number: Callable[[bytes], int],
        models: Callable[[], frozenset[str] | None],
        descriptors: Descriptors | None = None,
    ) -> None:
        super().__init__(driver, engines, settings, boot, descriptors or Descriptors())
        self.refused_connections = 0
        self._conversation = self.dialect.conversations.get(self.path)
        self._marker, self._session_number, self._models = marker, session_number, models
        self._payloads = Payloads(self.path, long_bodies)
        self._budget = budget
        self._guesses = Guesses()
        self.listeners = Listeners(
            lambda: cast("asyncio.Protocol", LineConnection(self)),
            self,
            handshake_s=_HANDSHAKE_S,
            backlog=_BACKLOG,
        )
        self._sweep = Sweep(self._watchlist.check)
        self._draining = False

    # ---- the owner's side

    async def listen(self, host: str, port: int, *, ssl: tls.SSLContext | None = None) -> int:
        """Accept connections on this address and return its port; OSError if it is taken."""
        return await self.accept_on(await listening_socket(host, port, _BACKLOG), ssl)

    async def accept_on(self, sock: socket.socket, ssl: tls.SSLContext | None = None) -> int:
        """Accept connections on a bound socket, which is the door's from now on, and return its port."""
        port = await self.listeners.accept(sock, ssl)
        self._sweep.start()
        return port

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def ongoing(self) -> int:
        """How many connections have a job that waits or works, or a result on its way."""
        return sum([connection.busy for connection in self._connections])

    def drain(self) -> None:
        """Close every connection as soon as no job of it is left."""
        self._draining = True
        for connection in tuple(self._connections):
            connection.drain()

    async def close(self) -> None:
        """Stop listening and cut every connection; their clients count as gone."""
        self.listeners.close()
        await self.listeners.wait_closed()
        for connection in tuple(self._connections):
            connection.abort()
        while self._connections:
            self._emptied.clear()
            await self._emptied.wait()
        self._sweep.stop()

    # ---- what connections ask

    def meet(self) -> asyncio.Protocol | None:
        """Count a client that begins a TLS handshake; None closes its connection at once."""
        if self._clients.crowded:
            self.refused_connections += 1
            return None
        connection = LineConnection(self)
        self._clients.enter(connection)
        return cast("asyncio.Protocol", connection)

    def met(self, protocol: object) -> None:
        """Count a client no more whose handshake has failed."""
        if protocol not in self._connections:
            self._clients.leave(protocol)

    def welcome(self, connection: LineConnection, peer: str) -> Session | bytes:
        """Take a new connection in, or return the line that refuses it: there are too many, or too many guesses."""
        self._clients.enter(connection)
        self._connections.add(connection)
        trusts = partial(self._trusts, peer) if self.settings.token else None
        if trusts is not None and self._guesses.wait_s(peer, self.now()) > 0.0:
            self.refused_connections += 1
            return replies.aborted(To(), [], *_TOO_MANY_GUESSES)
        if self._clients.overdrawn or self._draining:
            self.refused_connections += 1
            core = replies.core_receipts(self.readings(), 0) if trusts is None else []
            return replies.yielded(To(), core, FULL_HINT_S)
        lines, uploads = self._budget.share(_DOOR, peer), self._budget.share(f"{_DOOR} {peer}", _DOOR)
        return Session(self.limits, self.readings, lines, uploads, _new_mark, self.now(), trusts)

    def ask(self, connection: LineConnection, wish: Ask) -> None:
        """Begin an attempt for a whole upload, or end a job whose payload is no request for the engines."""
        number = self.driver.next_attempt()
        seed = self._marker.long_seed(len(self.engines))
        waiting = self._payloads.read(wish.payload, partial(self._take, connection, wish, number), seed)
        if waiting is not None:
            connection.begin(wish.job, waiting)

    def _take(self, connection: LineConnection, wish: Ask, number: int, outcome: Outcome) -> None:
        """Begin an attempt for a payload that has been read, or end its job."""
        why = why_refused(outcome, self._models())
        if isinstance(outcome, RequestFacts) and not why:
            self._accept(connection, wish, number, outcome)
        else:
            connection.on_failed(wish.job, *BACKEND, ErrorWords(plain_words(why), self.request_id(number)))

    def _accept(self, connection: LineConnection, wish: Ask, number: int, facts: RequestFacts) -> None:
        attempt = LineAttempt(
            self, connection, wish.job, number, facts, wish.payload, _kind_of(wish.manifest, facts)
        )
        if wish.manifest.want_result:
            attempt.result = Buffer(self._budget.share(_DOOR, ""))
        connection.begin(wish.job, attempt)
        self.driver.arrive(self._arrival(number, facts, wish), attempt)

    def withdraw(self, wish: Withdraw) -> None:
        """End the appointments of jobs whose peer has left."""
        self.driver.post(Withdrawn(wish.marks))

    # ---- numbers

    def readings(self) -> Readings:
        """Return the numbers that every reply carries."""
        running, limit = self.driver.capacity()
        return Readings(running, limit, self.executed, self.yielded)

    # ---- jobs

    def _arrival(self, number: int, facts: RequestFacts, wish: Ask) -> Arrived:
        """Ask for a slot now: a request that cannot have one is refused (`max_wait_s` 0).

        The mark is the job's own, so that its return is recognised whatever else carries the same bytes.
        """
        session = wish.manifest.session.encode(errors="replace")
        return Arrived(
            number,
            lane=self.settings.lane,
            model=facts.model,
            prompt_bytes=len(wish.payload) if facts.text_bytes is None else facts.text_bytes,
            body_bytes=len(wish.payload),
            max_tokens=facts.max_tokens,
            answers=facts.answers,
            stream=facts.stream,
            first_seen=wish.first_asked_at,
            max_wait_s=0.0,
            fingerprint=lambda: wish.mark,
            marks=partial(self._marker.marks, self._conversation, facts, wish.payload.data),
            caps_sleep=True,
            min_tokens=facts.min_tokens,
            fixed_tokens=facts.fixed_tokens,
            prompt_shape=facts.shape,
            session=session_of_model(self._session_number(session), facts.model) if session else None,
        )

    def _trusts(self, peer: str, token: str) -> bool:
        """Whether this token is the right one; after too many wrong ones of a peer none is looked at for a while."""
        assert self.settings.token is not None
        now = self.now()
        if self._guesses.wait_s(peer, now) > 0.0:
            return False
        if hmac.compare_digest(token.encode(errors="replace"), self.settings.token.encode()):
            return True
        self._guesses.failed(peer, now)
        return False


def _new_mark() -> int:
    return int.from_bytes(os.urandom(8), "big")


def _kind_of(manifest: Manifest, facts: RequestFacts) -> bytes:
    """Return the content type for the engine: a payload that was read as a request is JSON, whatever it says."""
    kind = manifest.content_type
    if facts.model:
        return b"application/json"
    usable = 0 < len(kind) <= _MOST_KIND and kind.isascii() and kind.isprintable()
    return kind.encode() if usable else b"application/octet-stream"
