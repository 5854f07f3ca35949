"""One attempt at the door: from the decision about it to the end of its answer."""

from functools import partial
from typing import ClassVar, Final

from millgate.core.decisions import Admit, Cancel, Ended, Yield
from millgate.core.events import (
    ClientGone,
    Failed,
    Finished,
    FirstToken,
    Growth,
    HeldBack,
    PrefixMarks,
    Released,
)
from millgate.core.limits.breaker import restart_hint_s
from millgate.core.words import FailureKind, Outcome, Sent
from millgate.dialects.clip import clipped
from millgate.dialects.contract import Dialect, RequestFacts, Usage
from millgate.http1.client import AnswerHead, Call
from millgate.http1.client.contract import upstream_id
from millgate.http1.server.contract import Exchange
from millgate.http1.wire.fields import Lines
from millgate.runtime.driver import DecisionListener
from millgate.runtime.verdicts import SAID_NOTHING, UNFIT, Said, is_for_the_operator
from millgate.servers.http.answers import WholeAnswer, tell_broken, tell_failure
from millgate.servers.http.contract import AnswerOwner, HttpDesk, Telling
from millgate.servers.http.handoff import over_two
from millgate.servers.http.kept_answers import Keeper
from millgate.servers.http.streams import StreamAnswer, cut_off
from millgate.servers.http.whole_bound import WholeBound
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.judgement import let_end
from millgate.servers.requests.ongoing import tell_growth
from millgate.servers.requests.reading import DoorRequest, HeadReading
from millgate.servers.requests.response_headers import refusal, response_headers
from millgate.servers.requests.routes import EngineRoute
from millgate.servers.requests.tickets import KeptBody

_SAYS_USAGE = (b"json",)
"""The kinds of answers of a dialect in which each says its tokens; sounds and subtitles do not."""
_UNANSWERED: Final = (Outcome.ENGINE_FAILED, Outcome.BAD_REQUEST)
_NO_PAIRS: Final[Pairs] = []
"""Shared by all attempts whose answers get nothing of ours: most do not."""


def _note_upstream_id(attempt: "HttpAttempt", desk: HttpDesk, head: AnswerHead) -> None:
    """Tell the id that the engine gave, unless it is ours; a head that repeats the one before it has none."""
    given = upstream_id(head.headers) if head.notes is None else None
    if given is not None and given != attempt.request_id:
        desk.on_upstream_named(attempt.number, given)


def _note_refusal(attempt: "HttpAttempt", desk: HttpDesk, kind: FailureKind, said: Said) -> None:
    if is_for_the_operator(kind, said, own_key=attempt.own_key):
        desk.on_refused(attempt.engine, kind)
    elif said.blames_key:
        desk.on_client_refused(attempt.engine)


def _onward(attempt: "HttpAttempt", desk: HttpDesk, reading: HeadReading, engine: EngineRoute) -> Lines:
    """Return the header lines of a request for this engine, in its trace where there is one."""
    lines = reading.onward(attempt.exchange.head, engine, attempt.request_id)
    return lines if desk.traced is None else Lines(desk.traced(attempt.number, lines))


def _way(
    attempt: "HttpAttempt", desk: HttpDesk, reading: HeadReading, decision: Admit, *, stream: bool
) -> EngineRoute:
    """Return the way to its engine, by way of the one that reads its prompt where that is another."""
    engine = desk.route(decision, reading.caller.lane)
    if len(decision.legs) == 1:
        return engine
    return over_two(desk, engine, decision, partial(_onward, attempt, desk, reading), stream=stream)


def _adorn(attempt: "HttpAttempt", body: KeptBody, decision: Admit) -> None:
    """Cut the answer if that is how it may run, and tell the client of it and of its quotas."""
    reshaped = decision.reshaped
    if decision.quota or reshaped is not None:
        attempt.extra = response_headers(decision, attempt.dialect.family)
    if reshaped is not None and reshaped.max_tokens is not None:
        body.data = clipped(body.data, reshaped.max_tokens, path=attempt.exchange.head.path)


def _owes_usage(dialect: Dialect, facts: RequestFacts, asked: bool) -> bool:
    """Whether an answer should say its tokens: not a sound, and no stream whose client did not ask for them."""
    asks = not facts.stream or asked or facts.include_usage is True
    return asks and dialect.answer_kinds == _SAYS_USAGE


class HttpAttempt(AnswerOwner, DecisionListener):
    """Listens to the driver for one exchange and owns its answer.

    It waits in silence: a status sent while it is queued could not become a refusal later. It is `over` once its client has been answered or has left: then nothing is sent to an engine and nothing reported (INV-4).
    """

    is_work: ClassVar[bool] = True

    def __init__(
        self,
        desk: HttpDesk,
        request: DoorRequest,
        facts: RequestFacts,
        exchange: Exchange,
    ) -> None:
        self._desk = desk
        self._reading = request.reading
        self._facts = facts
        self._body = KeptBody(request.body)
        self._call: Call | None = None
        self._expires_at = 0.0
        self._asked_usage: bool | None = None  # False once it has been sent again without
        self.over = self.own_key = False
        self._engine: EngineRoute | None = None
        self._untold: Telling = None  # the answer of an engine that had nothing of it
        self.exchange = exchange
        self.number = request.number
        self.request_id = request.request_id
        self.dialect: Dialect = request.reading.dialect
        self.stream: StreamAnswer | None = None
        self.extra = _NO_PAIRS

    def fingerprint(self) -> int:
        """Return what the request is recognised by when it comes back."""
        return self._body.fingerprint(self._desk.secret, self._reading.caller.tenant)

    def marks(self) -> PrefixMarks:
        """Return the marks of its conversation's prefixes."""
        return self._desk.marker.marks(self._reading.conversation, self._facts, self._body.data)

    @property
    def restart_hint_s(self) -> float:
        """When its client is to come back if there is no engine, as the core says it of an attempt that it refuses for that."""
        return restart_hint_s(self.number, self._reading.retries)

    @property
    def engine(self) -> str:
        """The engine that it runs on, empty before it is admitted."""
        return self._engine.name if self._engine is not None else ""

    # ---- what the core says

    def on_admit(self, decision: Admit) -> None:
        """Send it to its engine, unless its client has left in this very moment."""
        if not self.over:
            try:
                self._run(decision)
            except Exception:
                self.broken()
                raise

    def _run(self, decision: Admit) -> None:
        self._engine = engine = _way(self, self._desk, self._reading, decision, stream=self._facts.stream)
        self.own_key = self._reading.is_own_key(engine)
        self._expires_at = self._desk.first_event_by(decision.first_event_by)
        _adorn(self, self._body, decision)
        if self._facts.stream:
            self._asked_usage = self._desk.asks_usage(engine.name, self._facts, self._body.data) or None
            self._send_streaming(engine)
        else:
            desk, expires_at, allowed_s = self._desk, self._expires_at, self._reading.allowed_s
            bound = WholeBound(
                desk.on_given_up, decision, desk.driver.now, expires_at, allowed_s, self._facts
            )
            self._send(engine, self._body.data, WholeAnswer(self, bound))

    def _send_streaming(self, engine: EngineRoute) -> None:
        """Send it; the body is kept only as long as it may have to be sent again."""
        body, asked = self._body.data, self._asked_usage is True
        self.stream = StreamAnswer(self, strip_usage=asked, alone=self._facts.answers == 1)
        self._send(engine, self.dialect.with_usage(body) if asked else body, self.stream)

    def _send(self, engine: EngineRoute, body: bytes, receiver: StreamAnswer | WholeAnswer) -> None:
        headers = _onward(self, self._desk, self._reading, engine)
        target = engine.base_path + self.exchange.head.target
        self._call = call = engine.upstream.request(
            b"POST", target, headers, body, receiver, may_retry=self._facts.may_retry
        )
        call.expire_at(self._expires_at)
        if body is self._body.data and self._untold is not None:
            self._body.drop()  # no third engine is tried, and nothing was added that may be taken back

    def on_yield(self, decision: Yield) -> None:
        """Refuse it."""
        if self._close():
            self._refuse(decision)

    def on_cancel(self, decision: Cancel) -> None:
        """Take it away from its engine and from its client; of why only a stream of events has room to tell."""
        is_events = self.stream is not None and self.stream.is_events
        if self._close():
            self._desk.driver.post(Released(self.number))
            self.break_off()
            if not self.exchange.started:
                self._refuse(Yield(self.number, decision.reason, decision.retry_after_s, retry=True))
            elif is_events:
                cut_off(self, decision.reason)
            else:
                self.exchange.abort()

    def on_ended(self, decision: Ended) -> None:
        """Tell a client whose request no engine has had; else the cause of the end has told it."""
        tell = self._untold
        if tell is not None and decision.outcome in _UNANSWERED and self._close():
            self._desk.driver.post(Released(self.number))
            tell()

    def _refuse(self, decision: Yield) -> None:
        """Refuse it, or close the connection of a client that cannot be told: its waiting has no other end."""
        try:
            status, lines, body, close = refusal(self.dialect, decision, self.request_id)
            if decision.retry and self._reading.ticket is not None:
                lines += self._desk.tickets.line(self._reading.caller.tenant, decision)
            elif decision.retry and self._desk.told_clients is not None:
                self._desk.told_clients.refused(self._reading.caller.tenant, self._body, decision)
            self.exchange.respond(status, Lines(lines), body, close=close)
        except Exception:
            self.exchange.abort()
            raise

    # ---- what the answer says

    def answered(self, head: AnswerHead) -> None:
        """Note what the head says beside the answer; an error may still follow it, and have another engine asked."""
        _note_upstream_id(self, self._desk, head)
        if self._asked_usage is not None and head.status < 300:
            self._desk.asked_usage.note(self.engine, takes=self._asked_usage)

    def begun(self) -> None:
        """The first event, or the first sound, has met its deadline; from here on only silence can expire it.

        Of the body stays what the request is recognised by; what the engine has not read yet still counts.
        """
        if self._body.drop() and self._call is not None and self._call.written:
            self.exchange.release_body()
        if self._call is not None:
            self._call.expire_at(None)

    def first_token(self) -> None:
        """Report the first content."""
        self._desk.driver.post(FirstToken(self.number))

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine that it runs on and the tokens that are known of its stream so far; None before there are any."""
        stream = self.stream
        return None if stream is None or not stream.has_begun else (self.engine, stream.growth(self.number))

    def finished(self, usage: Usage) -> None:
        """Report a whole answer; the engine is done with it, but for the end of a stream's framing."""
        to_end = None if self.stream is None else self._call
        if self._close():
            self._body.drop()
            let_end(to_end)
            self._desk.driver.post(Finished(self.number, *usage, released=True))
            if usage.prompt_tokens is None and _owes_usage(
                self.dialect, self._facts, self._asked_usage is True
            ):
                self._desk.misses_usage(self.engine)

    def because(self, detail: str) -> None:
        """Hand on the cause of a failure, for operators who ask why."""
        self._desk.on_cause(self.number, detail)

    def unsent(self, kind: FailureKind, said: Said = SAID_NOTHING, tell: Telling = None) -> None:
        """Report a failure that another engine may make good: the core says what follows, here nothing is over."""
        if self.over:
            return
        engine = self.engine
        _note_refusal(self, self._desk, kind, said)
        self._untold = tell or partial(tell_failure, self, kind)
        self._call = self._engine = self.stream = None
        self._desk.driver.post(Failed(self.number, kind, Sent.NONE, *said))
        if said.blames_name and not self.over:
            self._desk.on_unknown(engine)

    def failed(self, kind: FailureKind, sent: Sent, said: Said = SAID_NOTHING) -> None:
        """Report a failure; the engine is done with it."""
        tell_growth(self._desk.driver, self.growth())
        if self._close():
            _note_refusal(self, self._desk, kind, said)
            if self._call is not None and kind in UNFIT and sent is Sent.REQUEST:
                self._call.unfit()
            self._desk.driver.post(Failed(self.number, kind, sent, *said), Released(self.number))

    def broken(self) -> None:
        """End as failed: whatever our own fault is, the client must not wait and the permit must come back."""
        if not self.over:
            try:
                tell_broken(self)
            finally:
                self.failed(FailureKind.BROKEN, Sent.BYTES)

    def stored(self, answer_id: str) -> None:
        """Let the door remember where the answer is kept."""
        if self._engine is not None:
            self._desk.kept_answers.add(answer_id, Keeper(self._engine.name, self._reading.caller.tenant))

    def resend(self, complaint: bytes) -> bool:
        """Send the request as it came if the engine may not know the `stream_options` that we put in."""
        engine, shown = self._engine, self._desk.asked_usage
        is_ours = self._asked_usage and shown.may_be_meant(self.engine, complaint, self._body.data)
        if self.over or engine is None or not is_ours:
            return False
        self._asked_usage = False
        self._send_streaming(engine)
        return True

    # ---- what the client does

    def slow(self, slow: bool) -> None:
        """Read from the engine only as fast as the client reads; a stream that has begun says no more of its engine's pace."""
        super().slow(slow)
        if slow and self.stream is not None and self.stream.has_begun:
            self._desk.driver.post(HeldBack(self.number))

    def gone(self) -> None:
        """Abort everything; the core ends the permit when the engine has let go."""
        tell_growth(self._desk.driver, self.growth())
        if self._close():
            self.break_off()
            self._desk.driver.post(ClientGone(self.number))
            if self._engine is not None and self._engine.on_hangup is not None:
                self._engine.on_hangup()

    def _close(self) -> bool:
        """Leave the door's books; return False when that has happened before."""
        if self.over:
            return False
        self.over = True
        self.stream = None  # the stream knows this object too: a cycle would wait for the collector
        self._desk.forget(self.exchange)
        return True
