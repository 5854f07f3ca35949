"""One attempt behind Envoy: from the decision about it to what Envoy tells of its end."""

from millgate.core.decisions import Admit, Cancel, Ended, Queue, Yield
from millgate.core.events import ClientGone, Failed, Finished, FirstToken, Growth, PrefixMarks, Released
from millgate.core.words import FailureKind, Sent
from millgate.dialects.clip import clipped
from millgate.dialects.contract import Dialect, RequestFacts, Usage
from millgate.http1.wire.fields import Lines
from millgate.runtime.verdicts import Said
from millgate.servers.extproc.access_log import LoggedRequest
from millgate.servers.extproc.call import EnvoyExchange
from millgate.servers.extproc.contract import AskingDoor, AttemptDesk, Destination
from millgate.servers.extproc.messages import Forward
from millgate.servers.requests.fields import Pairs
from millgate.servers.requests.fingerprint import KeptBody
from millgate.servers.requests.followed import FollowedAttempt
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.response_headers import refusal, response_headers


class EnvoyAttempt(FollowedAttempt):
    """Listens to the driver for one exchange; Envoy carries the request and its answer.

    It is `over` once its client has been answered or has left, as far as Envoy tells: then nothing is reported.
    """

    def __init__(
        self,
        desk: AttemptDesk,
        door: AskingDoor,
        exchange: EnvoyExchange,
        number: int,
        request_id: bytes,
        reading: HeadReading,
        facts: RequestFacts,
        body: bytes,
    ) -> None:
        self._desk = desk
        self._door = door
        self._exchange = exchange
        self._request_id = request_id
        self._reading = reading
        self._facts = facts
        self._body = KeptBody(body)
        self._engine: Destination | None = None
        self._asked_at = desk.running.now()
        self._has_begun = False
        self._engine_name = ""
        self._body_bytes = 0
        self.number = number
        self.over = False
        self.dialect: Dialect = reading.dialect
        self.extra: Pairs = []

    def fingerprint(self) -> int:
        """Return what the request is recognised by when it comes back."""
        return self._body.fingerprint(self._door.secret, self._reading.caller.tenant)

    def marks(self) -> PrefixMarks:
        """Return the marks of its conversation's prefixes."""
        return self._door.marker.marks(self._reading.conversation, self._facts, self._body.data)

    @property
    def name(self) -> str:
        """What Envoy calls it in its access log."""
        return f"{self._door.boot}-{self.number:x}"

    # ---- what the core says

    def on_admit(self, decision: Admit) -> None:
        """Let Envoy send it to its engine, unless its client has left in this very moment."""
        if self.over:
            return
        try:
            self._run(decision)
        except Exception:
            self.failed(FailureKind.BROKEN, Said())
            raise

    def _run(self, decision: Admit) -> None:
        desk, head = self._desk, self._exchange.head
        self._engine_name = decision.legs[0].engine
        self._engine = engine = desk.destinations[self._engine_name]
        body, reshaped = self._body.data, decision.reshaped
        if decision.quota or reshaped is not None:
            self.extra = response_headers(decision, self.dialect.family)
        is_clipped = reshaped is not None and reshaped.max_tokens is not None
        if reshaped is not None and reshaped.max_tokens is not None:
            body = clipped(body, reshaped.max_tokens, path=head.path)
        fields, without = desk.fields_of(head, self._reading, engine)
        fields.append((b"x-request-id", self._request_id))
        desk.running.add(self.name, self, decision.first_event_by + desk.lease_s)
        forward = Forward(engine.address, self.name, fields, without)
        self._exchange.forward(forward, body, self, is_changed=is_clipped)
        self._body.drop()

    def on_queue(self, decision: Queue) -> None:
        """Wait in silence, and hold the stream."""

    def on_yield(self, decision: Yield) -> None:
        """Refuse it."""
        if self._close():
            self._refuse(decision)

    def on_cancel(self, decision: Cancel) -> None:
        """Give its slot up: Envoy has it, and ends it by its own drain."""
        del decision
        if self._close():
            self._door.driver.post(Released(self.number))

    def on_ended(self, decision: Ended) -> None:
        """Nothing: the cause of the end has told the client, or Envoy has."""

    def _refuse(self, decision: Yield) -> None:
        status, lines, body, close = refusal(self.dialect, decision, self._request_id)
        if self._reading.ticket is not None and decision.retry:
            lines += self._door.tickets.line(self._reading.caller.tenant, decision)
        self._exchange.respond(status, Lines(lines), body, close=close)

    # ---- what Envoy says

    def first_token(self, ago_s: float = 0.0) -> None:
        """Report the first content, once."""
        if not self.over and not self._has_begun and self._facts.stream:
            self._has_begun = True
            self._door.driver.post(FirstToken(self.number, ago_s))

    def logged(self, entry: LoggedRequest) -> None:
        """Take what the access log tells: the first bytes, how many there are, or the end."""
        self._body_bytes = entry.body_bytes
        if entry.failure is None and entry.first_body_s is not None:
            self.first_token(max(0.0, self._desk.running.now() - self._asked_at - entry.first_body_s))
        elif entry.goes_on and entry.body_bytes:
            self.first_token()
        if entry.goes_on:
            return
        if entry.left:
            self.left()
        elif entry.failure is not None:
            self.failed(*entry.failure)
        else:
            sizes, facts = self._desk.running.sizes, self._facts
            self.whole(sizes.complete(entry.usage, entry.body_bytes, facts.max_tokens, streamed=facts.stream))

    def growth(self) -> tuple[str, Growth] | None:
        """Return the engine, and the tokens that the bytes make which have passed until the last entry."""
        if not self._has_begun:
            return None
        tokens = self._desk.running.sizes.tokens(self._body_bytes, streamed=True)
        return (self._engine_name, Growth(self.number, tokens)) if tokens else None

    def whole(self, usage: Usage) -> None:
        """Report a whole answer; the engine is done with it."""
        if self._close():
            told = Finished(self.number, usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            self._door.driver.post(told, Released(self.number))

    def failed(self, kind: FailureKind, said: Said) -> None:
        """Report a failure: Envoy has told the client, so no other engine may be tried."""
        if self._close():
            self._door.driver.post(Failed(self.number, kind, Sent.REQUEST, *said), Released(self.number))

    def lost(self) -> None:
        """No entry has come: the engine's own gauge shows whether it still runs."""
        self.left()

    # ---- what the client does

    def left(self) -> None:
        """The client has gone: the core ends the permit when the engine has let go."""
        if self._close():
            self._door.driver.post(ClientGone(self.number))
            if self._engine is not None and self._engine.on_hangup is not None:
                self._engine.on_hangup()

    def gone(self) -> None:
        """The stream of a held request has ended."""
        self.left()

    def slow(self, slow: bool) -> None:
        """Nothing: Envoy holds the engine back."""
        del slow

    def _close(self) -> bool:
        """Leave every book; return False when that has happened before."""
        if self.over:
            return False
        self.over = True
        self._desk.running.drop(self.name)
        self._door.forget(self._exchange)
        return True
