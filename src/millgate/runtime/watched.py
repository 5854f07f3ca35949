"""Looks after one engine: asks its health page, listens to its answers, and posts EngineDown and EngineUp.

What follows from the news is `health`'s to say; here are the timer, the page and the ear.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from millgate.core.events import EngineDown, EngineUp
from millgate.core.words import FailureKind
from millgate.http1.client import AnswerHead, Call, Ear, Receiver, Upstream, UpstreamPool
from millgate.http1.client.connection import COMPLAINING, FAULTY
from millgate.runtime.clock import Clock
from millgate.runtime.driver import Driver
from millgate.runtime.engines import Fetched, scrape
from millgate.runtime.health import EngineHealth, EngineStanding, HealthSettings, Stance

_NO_FAULT = (501, 503, 529)
_DRAINS = "its configuration says drain"
_SHUT = "requests failed and its breaker is open: single requests try it"


class HealthCheck(Ear):
    """Looks after one engine on the running loop and posts EngineDown and EngineUp; is the ear of its pool.

    `pages` is the pool for the health page: a look must not wait behind requests. `alone` tells whether no other engine
    takes work; `unseen` is why the engine is down from the start, empty where it is not. One that `drains` is given nothing, however well it is.
    Use: `listen` to the pool that the doors get, `start`, `stop`.
    """

    def __init__(
        self,
        engine: str,
        pages: Upstream,
        driver: Driver,
        clock: Clock,
        settings: HealthSettings,
        alone: Callable[[], bool],
        unseen: str = "",
        *,
        drains: bool = False,
    ) -> None:
        self.engine = engine
        self.health = EngineHealth(settings, clock.now(), unseen)
        self.heard = self._heard_before = 0
        self.anxious = False
        self.deserted = self.unreachable = False
        self._now = clock.now
        self._pages = pages
        self._driver = driver
        self._alone = alone
        self.told: EngineUp | EngineDown = EngineDown(engine) if unseen or drains else EngineUp(engine)
        """What the core was told last."""
        self.on_turn: Callable[[EngineStanding], None] | None = None
        """Told how it stands at the start, when it has gone down, when it is up again (a trial is neither), and of each failure while it is `failing`."""
        self.is_shut: Callable[[], bool] | None = None
        """Says whether the breaker of a provider's account is open; asked at each look."""
        self.is_common: Callable[[], bool] | None = None
        """Says whether other engines answer requests with statuses of faults too; asked at each of its own."""
        self._was_shut, self._drains = False, drains
        self._barred_changed_at = float("-inf")
        self._is_up = not (unseen or drains)
        self._running = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._call: Call | None = None

    @property
    def standing(self) -> EngineStanding:
        """How the engine stands, for people."""
        health = self.health
        since = max(health.since, self._barred_changed_at)
        if self._drains:
            told = f"{_DRAINS}; {health.why}" if health.why else _DRAINS
            return EngineStanding(self.engine, Stance.DOWN, since, told)
        if self._was_shut:
            why = health.last_failure(self._now()) or health.why
            told = f"{_SHUT}; the last failure: {why}" if why else _SHUT
            return EngineStanding(self.engine, Stance.DOWN, self._barred_changed_at, told)
        return EngineStanding(self.engine, health.stance, since, health.why, health.failing(self._now()))

    @property
    def takes_work(self) -> bool:
        """Whether requests may be sent to it now."""
        return self.health.takes_work and not self._drains

    def drain(self, drains: bool) -> None:
        """Let it take nothing new from now on, or as much as its health allows again; what runs there goes on."""
        if drains is not self._drains:
            self._drains, self._barred_changed_at = drains, self._now()
            self._tell()

    def listen(self, pool: UpstreamPool) -> None:
        """Hear what becomes of each request that this pool sends from now on."""
        pool.ear = self

    def start(self) -> None:
        """Begin to look, at once; what stood for this engine before may have been told otherwise."""
        self._running = True
        if self.on_turn is not None:
            self.on_turn(self.standing)
        self._look()

    def stop(self) -> None:
        """Stop looking."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call is not None:
            self._call.abort()
            self._call = None

    # ---- what requests tell

    def trial(self, receiver: Receiver) -> Receiver:
        """Return the receiver of an answer while the engine is in doubt: the first one may be the trial."""
        return _Trial(receiver, self) if self.tries() else receiver

    def tries(self) -> bool:
        """Note that a request goes there while the engine is in doubt; return whether it is the trial."""
        is_trial = self.health.sent(self._now())
        self._tell()
        return is_trial

    def succeeded(self) -> None:
        """A request was answered."""
        self.health.succeeded(self._now())
        self._tell()

    def undecided(self) -> None:
        """The trial was refused for what was asked, which shows nothing: the next request is the trial."""
        self.health.undecided()
        self._tell()

    def complained(self, status: int, fault: str = "") -> None:
        """A request was answered with a status from 500 on, or a `fault`: to have no room, or no such kind of work, is none."""
        if status in _NO_FAULT:
            self.heard += 1
        else:
            is_common = self.is_common is not None and self.is_common()
            self.health.complained(
                f"status {status}{fault}", self._now(), alone=self._alone(), common=is_common
            )
            self._follow_failure()

    def failed(self, kind: FailureKind, heard_before: int, detail: str) -> None:
        """A request failed, unless it was only our own time that ran out while others were answered."""
        if kind is not FailureKind.TIMEOUT or self.heard == heard_before:
            self._failed(f"{kind.value} ({detail})")

    def _failed(self, why: str) -> None:
        self.health.failed(why, self._now(), alone=self._alone())
        self._follow_failure()

    def _follow_failure(self) -> None:
        self._tell()
        if self._running and self.on_turn is not None and (standing := self.standing).failing:
            self.on_turn(standing)
        if self._running and self.health.in_doubt:
            self._look_in(self.health.settings.quick_poll_s)

    # ---- looking

    def _look_in(self, delay_s: float) -> None:
        """Look in so long, or sooner where that is arranged already: news must never postpone a look."""
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        health, settings = self.health, self.health.settings
        alone = quick = (health.in_doubt or health.stance is not Stance.UP) and self._alone()
        self._look_in(settings.quick_poll_s if quick else settings.poll_s)
        health.waited(self._now(), alone=alone)
        if self.heard != self._heard_before and not self.anxious:
            health.worked(self._now())  # of good answers nothing is told while nothing fails
        self._heard_before = self.heard
        if self.is_shut is not None and self.is_shut() is not self._was_shut:
            self._was_shut, self._barred_changed_at = not self._was_shut, self._now()
        self._tell(again=health.stance is Stance.TRIAL)
        if settings.target is not None and self._call is None:
            take = partial(self._take, self.heard)
            self._call = scrape(self._pages, settings.target, settings.page_within_s, take, (), statuses=())

    def _take(self, heard_before: int, page: Fetched) -> None:
        """Judge a health page by its status: below 500 the engine answers, and one without such a page answers too.

        A page that does not come is a bad look, unless the engine was heard meanwhile.
        """
        self._call = None
        if page.status:
            self._looked(f"its health page says {page.status}" if page.status >= FAULTY else None)
        elif page.failure is FailureKind.TIMEOUT and self.heard > heard_before:
            self.unreachable = False
        elif page.failure is not None:
            refused = page.failure is FailureKind.CONNECT
            why = f"its health page does not answer: {page.failure.value} ({page.detail})"
            self._looked(why, silent=True, refused=refused)

    def _looked(self, complaint: str | None, *, silent: bool = False, refused: bool = False) -> None:
        """The health page has answered, or not (`silent`); `refused` if there was not even a connection."""
        if self._running:
            alone = self.health.stance is Stance.DOWN and self._alone()
            self.health.looked(complaint, self._now(), alone=alone)
            is_down = self.health.stance is Stance.DOWN
            self.deserted = refused and is_down
            self.unreachable = silent and is_down
            self._tell()

    def _tell(self, *, again: bool = False) -> None:
        """Post what follows from news, if anything does; `again`, as the trial's client may have left at once."""
        health = self.health
        self.anxious = health.anxious
        trial = health.stance is Stance.TRIAL
        told = EngineUp(self.engine, trial) if self.takes_work else EngineDown(self.engine)
        if again or told != self.told:
            self.told = told
            self._driver.post(told)
        is_up = health.stance is Stance.UP and not self._was_shut and not self._drains
        if is_up is not self._is_up and health.stance is not Stance.TRIAL:
            self._is_up = is_up
            if self.on_turn is not None and self._running:
                self.on_turn(self.standing)


class _Trial:
    """Stands before the receiver of the one request that is tried: its first bytes are its success.

    A whole answer may take minutes, and all requests wait for this one.
    """

    def __init__(self, receiver: Receiver, check: HealthCheck) -> None:
        self._receiver = receiver
        self._check = check
        self._answered = False
        self.on_data: Callable[[bytes], None] = self._first_data
        self.on_end = receiver.on_end
        self.on_failed = receiver.on_failed
        self.on_raised = receiver.on_raised

    def on_head(self, head: AnswerHead) -> None:
        """Note whether bytes will be a success."""
        self._answered = head.status < COMPLAINING
        if COMPLAINING <= head.status < FAULTY:
            self._check.undecided()
        self._receiver.on_head(head)

    def _first_data(self, data: bytes) -> None:
        self.on_data = self._receiver.on_data
        if self._answered:
            self._check.succeeded()
        self._receiver.on_data(data)
