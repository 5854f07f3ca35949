"""One time that a job asks for a slot: from the decision about it to the end of the engine's answer."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from millgate.core.decisions import Admit, Cancel, Ended, Yield
from millgate.core.events import ClientGone, Failed, Finished, FirstToken, Released
from millgate.core.limits.breaker import restart_hint_s
from millgate.core.words import FailureKind, Outcome, Reason, Sent
from millgate.dialects import BY_PATH
from millgate.dialects.contract import Dialect, RequestFacts, Usage
from millgate.dialects.line import Fault, Need, OutcomeReason, plain_words
from millgate.dialects.refusals import FAILURES
from millgate.http1.client import AnswerHead, Call
from millgate.http1.client.contract import upstream_id
from millgate.runtime.driver import DecisionListener, Driver
from millgate.runtime.verdicts import (
    SAID_NOTHING,
    UNFIT,
    Said,
    is_for_the_operator,
    is_left_undone,
    told_instead,
)
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.connection import Hall, LineConnection
from millgate.servers.line.contract import ErrorWords, LineSettings
from millgate.servers.requests.fields import with_credential
from millgate.servers.requests.judgement import AnswerJudge, let_end
from millgate.servers.requests.routes import EngineRoute
from millgate.sockets.descriptors import Descriptors

BACKEND: Final = (Need.BACKEND_ERROR, Fault.BACKEND_ERROR, OutcomeReason.BACKEND_ERROR)
"""Of a job whose engine has failed, or whose payload is no request."""
_TOO_LARGE: Final = (Need.PAYLOAD_TOO_LARGE, Fault.QUOTA, OutcomeReason.QUOTA)
_NO_ROOM: Final = (
    "the answer does not fit into limits.byte_budget now; send fewer jobs at a time, or without want_result"
)


class LineDesk(Hall):
    """What an attempt asks of its door; `boot` begins the ids of attempts."""

    def __init__(
        self,
        driver: Driver,
        engines: Sequence[EngineRoute],
        settings: LineSettings,
        boot: str,
        descriptors: Descriptors,
    ) -> None:
        super().__init__(settings.limits, descriptors)
        self.driver = driver
        self.engines = {engine.name: engine for engine in engines}
        self.settings = settings
        self.path = settings.path.partition("?")[0].encode()
        self.dialect: Dialect = BY_PATH[self.path]
        self._boot = boot
        self.executed = 0
        """How many jobs have been sent to an engine."""
        self.yielded = 0
        """How many have been told to come back."""
        self.on_upstream_named: Callable[[int, bytes], None] = lambda _attempt, _upstream_id: None
        """Told the id that an engine gives its answer."""
        self.on_cause: Callable[[int, str], None] = lambda _attempt, _detail: None
        """Told in words why the connection to an attempt's engine failed."""
        self.on_refused: Callable[[str, FailureKind], None] = lambda _engine, _kind: None
        """Told of each engine that has no room or takes the gate's own key no longer, and how it said so."""
        self.on_unknown: Callable[[str], None] = lambda _engine: None
        """Told of each engine that knew no such model or path, where another one was asked."""

    def target(self, route: EngineRoute) -> bytes:
        """Return what to post to there."""
        return route.base_path + self.settings.path.encode()

    def request_id(self, attempt: int) -> str:
        """Return the id under which operators and engines know this attempt."""
        return f"{self._boot}-{attempt:x}"


class LineAttempt(DecisionListener):
    """Listens to the driver for one job and receives the engine's answer.

    It is queued only for a client that returns on time, for a second at most. After `_over` nothing is sent to an engine
    and nothing is reported (INV-4).
    """

    def __init__(
        self,
        desk: LineDesk,
        owner: LineConnection,
        job: int,
        number: int,
        facts: RequestFacts,
        payload: Buffer,
        kind: bytes,
    ) -> None:
        self._desk = desk
        self._owner: LineConnection | None = owner
        self._job = job
        self.number = number
        self._facts = facts
        self._payload = payload
        self._kind = kind
        self.result: Buffer | None = None
        """Where the answer goes, when it is wanted."""
        self._answer_kind = ""
        self._begun = self._is_answer = False
        self._sent_at = 0.0
        self._call: Call | None = None
        self._untold: Callable[[], None] | None = None  # how an engine failed that had nothing of it
        self._route: EngineRoute | None = None

    # ---- what the core says

    def on_admit(self, decision: Admit) -> None:
        """Post the payload to the engine."""
        if self._owner is None:
            return
        try:
            self._send(decision)
        except Exception:
            self._give_up(FailureKind.BROKEN)
            raise

    def _send(self, decision: Admit) -> None:
        desk = self._desk
        desk.executed += 1
        self._route = route = desk.engines[decision.legs[0].engine]
        self._judge = AnswerJudge(desk.dialect, may_stream=self._facts.stream)
        self._sent_at = monotonic()
        headers = [(b"content-type", self._kind), (b"accept", b"*/*")]
        headers.append((b"x-request-id", desk.request_id(self.number).encode()))
        headers = with_credential(headers, route.credential, desk.dialect.family)
        body, may_retry = bytes(self._payload.data), self._facts.may_retry
        self._call = call = route.upstream.request(
            b"POST", desk.target(route), headers, body, self, may_retry=may_retry
        )
        call.expire_at(decision.first_event_by)

    def on_yield(self, decision: Yield) -> None:
        """Refuse it."""
        owner = self._close()
        if owner is None:
            return
        self._desk.yielded += 1
        if decision.reason is Reason.TOO_LARGE:
            owner.on_failed(self._job, *_TOO_LARGE, self._words(""))
        else:
            owner.on_yielded(self._job, decision.retry_after_s)

    def on_cancel(self, decision: Cancel) -> None:
        """Take it away from its engine; the job may come back elsewhere."""
        owner = self._close()
        if owner is None:
            return
        self._desk.driver.post(Released(self.number))
        self._abort()
        owner.on_yielded(self._job, decision.retry_after_s)

    def on_ended(self, decision: Ended) -> None:
        """Tell the client of a job that no engine has had, as over HTTP; else the cause of the end has told it."""
        if self._untold is not None and decision.outcome in (Outcome.ENGINE_FAILED, Outcome.BAD_REQUEST):
            self._untold()

    # ---- what the engine says

    def on_head(self, head: AnswerHead) -> None:
        """Note what kind of answer it is, and whether a client could use it."""
        self._is_answer = head.status < 300
        for name, value in head.headers:
            if name == b"content-type":
                self._answer_kind = value.decode("latin-1")
        given = upstream_id(head.headers)
        if given is not None and given != self._desk.request_id(self.number).encode():
            self._desk.on_upstream_named(self.number, given)
        self._judge.take_head(head)
        self._settle()

    def on_data(self, data: bytes) -> None:
        """Keep what is wanted, up to the terminal event of a stream."""
        if self._owner is None:
            return
        if self._is_answer and self.result is not None and not self.result.append(data):
            owner = self._owner
            self.gone()  # its engine is not at fault
            owner.on_failed(self._job, *_TOO_LARGE, self._words(_NO_ROOM))
            return
        judge = self._judge
        judge.take(data)
        if judge.heard and self._call is not None:
            self._call.expire_at(None)  # by silence alone; a whole answer has its time for all of it
        if judge.events and not self._begun:
            self._begun = True
            self._desk.driver.post(FirstToken(self.number))
        self._settle()

    def on_end(self, *, delimited: bool) -> None:
        """Let the judge have it, unless its terminal event was the end."""
        self._judge.end(delimited=delimited)
        self._settle()

    def _settle(self) -> None:
        """Report what the judge says, once the answer is over: what is broken never looks whole (INV-10)."""
        judge = self._judge
        if not judge.is_over:
            return
        if judge.failure is None:
            let_end(self._call)
            self._finish(judge.usage)
        else:
            said = judge.complaint
            route, kind, engine_said = self._route, judge.failure, judge.said
            own_key = route is not None and route.credential is not None
            told = None if said is None else told_instead(kind, said.status, own_key=own_key)
            words = "" if said is None or told is not None else words_of(said.status, said.body)
            tell = partial(self._give_up, kind, message=words, said=engine_said)
            if route is not None and is_for_the_operator(kind, engine_said, own_key=own_key):
                self._desk.on_refused(route.name, kind)
            if judge.heard or not is_left_undone(kind, engine_said, own_key=own_key):
                tell()
                return
            self._leave(kind, engine_said, tell)
            if route is not None and engine_said.blames_name and self._owner is not None:
                self._desk.on_unknown(route.name)

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        """There is no whole answer; of what was never sent the core says whether another engine is tried."""
        self._desk.on_cause(self.number, detail)
        if sent is Sent.NONE:
            self._leave(kind, SAID_NOTHING, partial(self._give_up, FailureKind.CONNECT, sent))
        else:
            self._give_up(kind, sent)

    def _leave(self, kind: FailureKind, said: Said, tell: Callable[[], None]) -> None:
        """Report a failure that another engine may make good: the core says what follows, and where nothing does its client is told."""
        if self._owner is not None:
            self._abort()  # a stream that began with a refusal may go on
            self._untold, self._call, self._route = tell, None, None
            if self.result is not None:
                self.result.wipe()  # a refusal may come with status 200
            self._desk.driver.post(Failed(self.number, kind, Sent.NONE, *said))

    def on_raised(self) -> None:
        """Give it up: our own code has failed on the answer."""
        self._give_up(FailureKind.BROKEN)

    # ---- what the client does

    def gone(self) -> None:
        """Its client has left: abort everything; the core ends the permit when the engine has let go."""
        if self._close() is None:
            return
        self._abort()
        self._desk.driver.post(ClientGone(self.number))
        if self._route is not None and self._route.on_hangup is not None:
            self._route.on_hangup()

    # ---- endings

    def _finish(self, usage: Usage) -> None:
        result, self.result = self.result, None
        owner = self._close()
        if owner is None:
            return
        # First the frame, then the release: inside it the job still counts itself, as the published daemon's does.
        try:
            backend_ms = round((monotonic() - self._sent_at) * 1000)
            owner.on_done(self._job, backend_ms, result, self._answer_kind)
        finally:
            self._desk.driver.post(Finished(self.number, *usage), Released(self.number))

    def _give_up(
        self, kind: FailureKind, sent: Sent = Sent.REQUEST, message: str = "", said: Said = SAID_NOTHING
    ) -> None:
        """Report a failure; an engine that is full itself, or out of reach, is a yield too: the job may come back."""
        owner = self._close()
        if owner is None:
            return
        if self._call is not None and kind in UNFIT and sent is Sent.REQUEST:
            self._call.unfit()
        self._abort()
        words = FAILURES[kind]
        try:
            if kind in (FailureKind.REFUSED, FailureKind.CONNECT):
                self._desk.yielded += 1
                hint_s = (
                    restart_hint_s(self.number, None) if kind is FailureKind.CONNECT else words.retry_after_s
                )
                owner.on_yielded(self._job, said.hint_s or hint_s or 1.0)
            else:
                owner.on_failed(self._job, *BACKEND, self._words(message or words.message))
        finally:
            self._desk.driver.post(Failed(self.number, kind, sent, *said), Released(self.number))

    def _words(self, message: str) -> ErrorWords:
        return ErrorWords(message, self._desk.request_id(self.number))

    def _abort(self) -> None:
        if self._call is not None:
            self._call.abort()

    def _close(self) -> LineConnection | None:
        """End it and return its owner, once; what is kept of the answer is wiped."""
        owner, self._owner = self._owner, None
        if self.result is not None:
            self.result.wipe()
            self.result = None
        return owner


_MOST_READ_BYTES: Final = 16 * 1024
"""Complaints are short; of a longer one its beginning is shown as it is."""


def words_of(status: int, body: bytes) -> str:
    """Return the status and the engine's own words, as one bounded line of printable characters."""
    said = body[:_MOST_READ_BYTES].decode(errors="replace")
    words = plain_words(_message(said) or said)
    return plain_words(f"the engine answered {status}" + (f": {words}" if words else ""))


def _message(said: str) -> str:
    """Return the message within a complaint as engines write it, empty where there is none."""
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        return ""
    if isinstance(found, dict):
        found = found.get("error", found)
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail")
    return found if isinstance(found, str) else ""
