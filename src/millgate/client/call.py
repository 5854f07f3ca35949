"""One call from its first attempt to its last answer, as a conversation without I/O.

The same generator serves four transports (two libraries, each synchronous and asynchronous). It says what to do
next (stand in line, send, throw an answer away, sleep) and is told what came of it.

Retries never multiply: what comes back to the SDK has been retried here as often as it may be, and says
`x-should-retry: false`. There is no hedging: a second copy of a request is load without information.
"""

from collections.abc import Callable, Generator, Mapping
from math import inf
from typing import Final, NamedTuple

from millgate.client.answers import CallVerdict, Meaning, backoff_s, judge
from millgate.client.pacing import Cost
from millgate.client.session import HostSession, Turn

_DEADLINE: Final = "x-millgate-deadline-ms"
_RETRY_COUNT: Final = "x-stainless-retry-count"
_TICKET: Final = "x-millgate-ticket"


class StandInLine(NamedTuple):
    """Wait until this turn has been sent, at most so long (None: without end)."""

    turn: Turn
    within_s: float | None


class SendRequest(NamedTuple):
    """Send the request with these headers set; answer with a Head, or throw what was raised."""

    headers: Mapping[str, str]


class Discard(NamedTuple):
    """Close the last answer unread."""


class Sleep(NamedTuple):
    """Do nothing for so long."""

    seconds: float


class ResponseHead(NamedTuple):
    """The status and the headers of an answer; the mapping ignores case."""

    status: int
    headers: Mapping[str, str]


class Final_(NamedTuple):  # noqa: N801 - Final is a word of typing
    """Hand the last answer to the caller; `leaving` is to be told when its body is over.

    Without an answer (`answered` False) the retry budget is used up and a refusal is made up here.
    """

    answered: bool
    quiet: bool
    leaving: "Leaving | None"


Step = StandInLine | SendRequest | Discard | Sleep
Conversation = Generator[Step, ResponseHead | None, Final_]


class Asked(NamedTuple):
    """What is known of a call: its body, whether it can be sent again, its headers as they came, its times in seconds.

    `allowed_s` is for the whole call, `queue_s` for one wait in the line.
    """

    body: bytes
    replayable: bool
    headers: Mapping[str, str]
    allowed_s: float | None
    queue_s: float | None


def converse(
    session: HostSession, asked: Asked, wake: Callable[[], object], clock: Callable[[], float]
) -> Conversation:
    """Lead one call to its end; closing the generator early ends the call's turn."""
    started, order, cost = clock(), session.next_order(), Cost.of(asked.body)
    said = asked.headers.get(_RETRY_COUNT) or ""
    retries = int(said) if said.isdigit() else 0
    if retries == 0:
        session.began()
    elif not session.may_retry():
        # The SDK retries what never got an answer; an outage must not triple its load.
        return Final_(answered=False, quiet=True, leaving=None)
    ticket, blind, own = "", 0, 0
    while True:
        turn = Turn(order, cost, wake)
        session.enter(turn)
        try:
            yield StandInLine(turn, asked.queue_s)
            head = yield SendRequest(_headers(asked, ticket, retries + own, own, clock() - started))
            assert head is not None
            verdict = judge(head.status, head.headers)
            pause_s = verdict.hint_s if verdict.hint_s is not None else backoff_s(own)
            blind += verdict.hint_s is None
            if not _again(session, asked, verdict, own, blind, clock() + pause_s - started):
                return Final_(
                    answered=True,
                    quiet=asked.replayable and verdict.meaning is not Meaning.FINAL,
                    leaving=Leaving(session, turn, verdict.meaning),
                )
            yield Discard()
        except BaseException:
            session.leave(turn)
            raise
        session.leave(turn, refused=verdict.meaning is Meaning.REFUSED)
        ticket = head.headers.get(_TICKET) or ""
        own += 1
        yield Sleep(pause_s)


def _again(
    session: HostSession, asked: Asked, verdict: CallVerdict, retries: int, blind: int, back_after_s: float
) -> bool:
    """Whether to come back after this answer, which would be `back_after_s` after the call began."""
    settings = session.settings
    if not verdict.retry or not asked.replayable or retries >= settings.max_retries:
        return False
    if verdict.hint_s is None and blind > settings.max_blind_retries:
        return False
    if asked.allowed_s is not None and back_after_s >= asked.allowed_s:
        return False
    return session.may_retry()


def _headers(asked: Asked, ticket: str, count: int, own: int, spent_s: float) -> Mapping[str, str]:
    """Return what this attempt says beside the request: how long it may take, and that it is a retry."""
    headers = {}
    if asked.allowed_s is not None and _DEADLINE not in asked.headers:
        headers[_DEADLINE] = str(max(1, round((asked.allowed_s - spent_s) * 1000)))
    if own:
        headers[_RETRY_COUNT] = str(count)
    if ticket:
        headers[_TICKET] = ticket
    return headers


class Leaving:
    """The end of an answered call: `now` when its body is over, `lost` when no reference to the body is left."""

    def __init__(self, session: HostSession, turn: Turn, meaning: Meaning) -> None:
        self._home = session
        self._turn = turn
        self._meaning = meaning
        self.rests()

    def rests(self) -> None:
        """Take note that its body waits to be read."""
        self._turn.rests_since = self._home.now()

    def reads(self) -> None:
        """Take note that its body is read."""
        self._turn.rests_since = inf

    def now(self) -> None:
        """End the call; again is harmless."""
        meaning = self._meaning
        self._home.leave(self._turn, served=meaning is Meaning.FINAL, refused=meaning is Meaning.REFUSED)

    def lost(self) -> None:
        """End the call soon: a finaliser may run while this very thread holds the session's lock."""
        if not self._turn.over:
            self._home.lost.append(self._turn)
