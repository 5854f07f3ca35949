"""What clients and engines do wrong, told to the log of the process: one line of a kind a minute, however many there are.

A flood of garbage must not become a flood of lines. The kinds are the door's closed list of codes and the names of
engines; no bytes of a client are in a line. An engine that goes down, or comes up, is a line at once; one whose cap moves,
or that shows no metrics any more, has a line within some seconds.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Final

from millgate.core.snapshot import EngineSnapshot, Snapshot
from millgate.core.words import FailureKind, Reason
from millgate.gateway.tls import Certificate
from millgate.observe.logs import ProcessLog
from millgate.runtime.health import EngineStanding, Stance
from millgate.servers.http.whole_bound import GivenUp

QUIET_S: Final = 60.0
"""After a line of a kind: long enough that a day of port scans is a page, short enough to see that it goes on."""
MOST_KINDS: Final = 256
MOST_GIVEN_UP: Final = 60
"""Answers given up within `QUIET_S` that get a line each; the line after them says how many got none."""
MOST_TURNS: Final = 4
"""Lines of one engine within `QUIET_S`: down and up, twice."""
LOOK_S: Final = 15.0
"""Between two looks at the caps; a limiter moves a cap in seconds, and a line for each step would bury the rest."""
LEAST_MOVE: Final = 0.1
"""Of a cap, as a share of the one that was told last: what a graph of streams shows as a step."""
UNSEEN_LOOKS: Final = 2
"""An engine at its limit may leave single looks at its metrics without an answer."""
_REFUSES_KEY: Final = "it answers 401, 402 or 403 to the key of api_key_env, or to none where that is not set"
_TOLD_APART: Final = (FailureKind.CONNECT, FailureKind.REFUSED, FailureKind.NO_CREDIT)


class Notices:
    """Writes the first of a kind at once, and with the next one after `QUIET_S` how many there were since.

    `time` is the clock, in seconds. At most `MOST_KINDS` are known apart (INV-5); the longest known is forgotten first.
    """

    def __init__(self, log: ProcessLog, time: Callable[[], float]) -> None:
        self._log = log
        self._time = time
        self._gave_up_at: deque[float] = deque(maxlen=MOST_GIVEN_UP)
        self._gave_up_unsaid = 0
        self._last: dict[tuple[str, str], tuple[float, int]] = {}
        self._lost_at: dict[str, float] = {}  # by name; inf while it is found

    def bad_request(self, code: str) -> None:
        """A client sent what is no request, too much, or too slowly."""
        self._tell("bad requests", "code", code)

    def unusable_usage(self, engine: str) -> None:
        """An engine did not say how many tokens an answer took, or said nonsense."""
        self._tell("answers without usable usage", "engine", engine)

    def failed(self, engine: str, kind: FailureKind) -> None:
        """An engine has failed a request: its client got an error, or a stream that breaks off."""
        if kind is FailureKind.TIMEOUT:
            self._tell("engine timeouts", "engine", engine)
        elif kind not in _TOLD_APART:
            self._tell("engine failures", "engine", engine, kind=kind.value)

    def refused(self, engine: str, kind: FailureKind) -> None:
        """An engine has no room for a request, refuses the gate's own key, or says that its account has no credit left."""
        if kind is FailureKind.REFUSED:
            self._tell("engine refuses requests", "engine", engine)
            return
        why = "no credit is left" if kind is FailureKind.NO_CREDIT else _REFUSES_KEY
        self._tell("engine refuses the gate's key", "engine", engine, why=why)

    def client_refused(self, engine: str) -> None:
        """An engine refuses the key of a client, or that it sends none."""
        self._tell("engine refuses clients' keys", "engine", engine)

    def unknown(self, engine: str) -> None:
        """An engine knew no such model or path, and its request went to another one that the settings name for the model."""
        self._tell("engine does not know what it is asked for", "engine", engine)

    def failing(self, standing: EngineStanding) -> None:
        """An engine fails request after request, and stays because it is alone."""
        self._tell("engine fails requests", "engine", standing.name, why=standing.failing)

    def looked_up(self, name: str, why: str) -> None:
        """A name was not found, where there is a `why`: a line if it was before, and one when it is found again, a minute later at the soonest."""
        now, lost_at = self._time(), self._lost_at.get(name)
        if why and lost_at == inf:
            self._lost_at[name] = now
            self._log.warning("name not found, the addresses of before are used", name=name, why=why)
        elif not why and (lost_at is None or now - lost_at >= QUIET_S):
            self._lost_at[name] = inf
            if len(self._lost_at) > MOST_KINDS:
                del self._lost_at[next(iter(self._lost_at))]
            if lost_at is not None:
                self._log.info("name found again", name=name)

    def given_up(self, given_up: GivenUp, silence_s: float) -> None:
        """A whole answer did not come within its bound, or was silent for `silence_s`: a line each, up to `MOST_GIVEN_UP` within `QUIET_S`."""
        now, told_at = self._time(), self._gave_up_at
        if len(told_at) == MOST_GIVEN_UP and now - told_at[0] < QUIET_S:
            self._gave_up_unsaid += 1
            return
        told_at.append(now)
        unsaid = {"unsaid": self._gave_up_unsaid} if self._gave_up_unsaid else {}
        self._gave_up_unsaid = 0
        told = given_up._replace(bound_s=silence_s) if given_up.bound_s is None else given_up
        self._log.warning("answer given up", **told._asdict(), **unsaid)

    def shed(self) -> None:
        """This process was too slow itself, and refused a request for that."""
        self._tell("requests refused", "reason", Reason.OVERLOADED_GATE.value)

    def _tell(self, event: str, name: str, value: str, **more: object) -> None:
        kind, now = (event, value), self._time()
        told_at, silent = self._last.get(kind, (-inf, 0))
        if now - told_at < QUIET_S:
            self._last[kind] = told_at, silent + 1
            return
        self._last.pop(kind, None)
        if len(self._last) >= MOST_KINDS:
            del self._last[next(iter(self._last))]
        self._last[kind] = now, 0
        self._log.warning(event, **{name: value}, **more, count=silent + 1)


class _Turns:
    """What is known of one engine: when lines were written, how it stood in the last, and what has happened since."""

    def __init__(self) -> None:
        self.told_at: deque[float] = deque(maxlen=MOST_TURNS)
        self.told = Stance.UP
        self.untold = 0
        self.is_late = False
        self.standing: EngineStanding | None = None
        self.down_since = 0.0


class EngineNotices:
    """Writes one line when an engine goes down and one when it is up again.

    Of an engine that turns more often than `MOST_TURNS` times in `QUIET_S` the next line waits until it may be written,
    says how the engine stands then, and how often it turned in between. `later` is an event loop's `call_later`.
    """

    def __init__(
        self, log: ProcessLog, time: Callable[[], float], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._log = log
        self._time = time
        self._later = later
        self._engines: dict[str, _Turns] = {}

    def turned(self, standing: EngineStanding) -> None:
        """An engine has gone down, is up again, or stands so when its watch begins."""
        turns = self._engines.setdefault(standing.name, _Turns())
        if len(self._engines) > MOST_KINDS:  # engines come and go; the longest known has gone
            del self._engines[next(iter(self._engines))]
        if standing.stance is turns.told and not turns.untold:
            return  # a watch that begins says nothing new
        if standing.stance is Stance.DOWN:
            turns.down_since = standing.since
        turns.standing = standing
        turns.untold += 1
        if not turns.is_late:
            self._tell(turns)

    def _tell(self, turns: _Turns) -> None:
        """Write the line of how the engine stands, or put it off; nothing where that has been said."""
        standing, now, turns.is_late = turns.standing, self._time(), False
        if standing is None or standing.stance is turns.told:
            return
        wait_s = turns.told_at[0] + QUIET_S - now if len(turns.told_at) == MOST_TURNS else 0.0
        if wait_s > 0.0:
            turns.is_late = True
            self._later(wait_s, lambda: self._tell(turns))
            return
        between = {"turns": turns.untold} if turns.untold > 1 else {}
        turns.told_at.append(now)
        turns.told, turns.untold = standing.stance, 0
        if standing.stance is Stance.UP:
            down_s = round(standing.since - turns.down_since, 3)
            self._log.info("engine up", engine=standing.name, down_s=down_s, **between)
        else:
            self._log.warning("engine down", engine=standing.name, why=standing.why, **between)


class _Known:
    """What is known of one engine: the cap and the troubles that were told, and looks since its metrics were seen, None before they ever were."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.unseen: int | None = None
        self.troubles: set[str] = set()


class StateNotices:
    """Writes one line when the cap of an engine has moved by a tenth or more since the line before, and one each when a trouble begins and is over.

    An engine's trouble is that its account pauses, that it is silent, or that it shows no metrics any more; the gate's
    that a count of `read_losses` grows, or that one of its `certificates` ends. All are read every `LOOK_S`, so that
    there are at most four lines of each a minute. `later` is an event loop's `call_later`.
    """

    def __init__(
        self,
        log: ProcessLog,
        snapshot: Callable[[], Snapshot],
        read_losses: Callable[[], Mapping[str, int]],
        later: Callable[[float, Callable[[], None]], TimerHandle],
    ) -> None:
        self.tells_caps = True
        self.certificates: Callable[[], tuple[Certificate, ...]] = tuple
        self._log = log
        self._snapshot, self._read_losses = snapshot, read_losses
        self._later = later
        self._known: dict[str, _Known] = {}
        self._lost: dict[str, int] = {}
        self._own_troubles: set[str] = set()
        self._ageing: dict[str, str] = {}
        self._timer: TimerHandle | None = None

    def look(self) -> None:
        """Tell what has changed, and look again after `LOOK_S`; what an engine begins with is no line."""
        before, self._known = self._known, {}
        for engine in self._snapshot().engines:
            self._known[engine.name] = known = before.get(engine.name) or _Known(engine.limit)
            self._look_at(engine, known)
        for event, count in self._read_losses().items():
            self._turn(
                self._own_troubles, event, f"{event} no more", {}, count=count - self._lost.get(event, 0)
            )
            self._lost[event] = count
        self._look_at_certificates()
        self._timer = self._later(LOOK_S, self.look)

    def _look_at_certificates(self) -> None:
        """Tell those that expire soon and those that have expired, each once, and that one is renewed."""
        before, self._ageing = self._ageing, {}
        for each in self.certificates():
            self._ageing[each.setting] = trouble = each.trouble(datetime.now(UTC))
            if trouble != before.get(each.setting, ""):
                tell = self._log.warning if trouble else self._log.info
                event = f"certificate {trouble or 'renewed'}"
                tell(event, setting=each.setting, file=each.file, ends=f"{each.ends:%Y-%m-%d %H:%M} UTC")

    def _look_at(self, engine: EngineSnapshot, known: _Known) -> None:
        if self.tells_caps and abs(engine.limit - known.cap) >= max(1.0, LEAST_MOVE * known.cap):
            self._log.info("engine cap", engine=engine.name, cap=engine.limit, cap_before=known.cap)
            known.cap = engine.limit
        if engine.seen_running is not None:
            known.unseen = 0
        elif known.unseen is not None:
            known.unseen += engine.up  # of one that is down it is no news
        unseen_s = LOOK_S * known.unseen if known.unseen and known.unseen >= UNSEEN_LOOKS else 0.0
        paused_s = 0.0 if engine.account is None else engine.account.paused_s
        told, whose = known.troubles, {"engine": engine.name}
        self._turn(told, "account paused", "account pause over", whose, left_s=paused_s)
        self._turn(told, "engine silent", "engine silent no more", whose, silent_s=engine.silent_s)
        self._turn(told, "engine metrics lost", "engine metrics found again", whose, unseen_s=unseen_s)

    def _turn(self, told: set[str], event: str, over: str, whose: dict[str, str], **much: float) -> None:
        """Tell that a trouble has begun, and how `much` it is, or that it is over."""
        is_so = any(much.values())
        if is_so and event not in told:
            told.add(event)
            self._log.warning(event, **whose, **{unit: round(value, 1) for unit, value in much.items()})
        elif not is_so and event in told:
            told.discard(event)
            self._log.info(over, **whose)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
