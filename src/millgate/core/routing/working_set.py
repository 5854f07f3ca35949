"""Which sessions are live, and how much of each engine's memory their contexts take: a new one waits where it would evict them.

An agent comes back seconds after each answer with all that was said so far. Where the contexts of those between two
turns no longer fit beside what runs, an engine evicts each just before it comes back, and reads all of it again
(docs/how-to/agents.md). So a session is live while a turn of it is queued or runs, and for a *lease* after it, which
its own pauses tell. A session continues one that is live, by the name that its client gives it, or as its prompt goes
on from all of an earlier one. Any other request with a prefix would open a session: an engine takes it while live
contexts leave room, or while it would read again what it evicts in `REREADING_SHARE` of its time: people pause for a
minute where agents pause for seconds. It also takes one where nothing was opened for `STARVED_S`. One whose lease is
over is remembered: it goes on like a live one as long as an engine still holds its context.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from millgate.core.events import PrefixMarks
from millgate.core.measure import ENOUGH, LOOKED_AT, Ewma
from millgate.core.routing.encounters import Encounters

LIVE_SHARE: Final = 0.7
"""Of what may be reserved of an engine's memory, which is 0.9 of it; the rest is for what grows, and for sessions whose
lease is over. Agents at twice the memory of eight engines: 194, 203 and 204 turns a minute with 0.9, 0.7 and 0.6, 2.1,
3.6 and 5.4 sessions given up; without, 185."""
REREADING_SHARE: Final = 0.5
"""So much of its time an engine may read again what it has evicted. People who chat, with contexts of twice the memory
of an engine: 127 good turns a minute with 0, and 196 with this; agents before four engines 99 and 98 (`python -m lab
run agent_sessions --set users=people --set until_s=900`)."""
STARVED_S: Final = 120.0
"""At the latest so long after the last one a session is opened, whatever is live: of k that wait the last waits k times as long."""
# A lease is so many times the session's mean pause, at least the second and at most `STARVED_S`: of pauses without
# memory 2 in 100 are longer than 4 times the mean.
_PAUSES, _SHORTEST_S = 4.0, 10.0
# Sessions are believed to come back after a second until some of their kind have shown how long they pause.
_SHORTEST_PAUSE_S: Final = 1.0
# Memory of a session's own pauses, in turns.
_PAUSE_MEMORY: Final = 8.0
# No session of a kind is believed to come back until some have shown it: agents do within seconds, and single questions
# never do. So many rests without a return are presumed, and so many rests are remembered.
_PRESUMED_RESTS, _REST_MEMORY = 5.0, 100.0
# The earlier prompt is at least half of one that goes on from it: a common beginning is no session. And where less than
# half of what is believed to be held is found, the index is wrong, and nothing is protected for its sake.
_MOST_OF_IT: Final = 0.5
MOST_PASSED_OVER: Final = LOOKED_AT
"""So many queued requests at most let later ones go, as full engines hold their prompts or are full of live sessions; the next takes what there is, or is refused."""
MOST_SESSIONS: Final = 20_000
"""Live sessions that are known; beyond it the one whose lease ends first is over. As many that are over are remembered (8 MB each)."""


class _Kind:
    """Sessions of one kind: which share of their rests ended with another turn, and after what pause. One that lasts counts as one that never ends: its lease tells that too late."""

    def __init__(self) -> None:
        self._rests, self._returned = _PRESUMED_RESTS, 0.0
        self.pause = Ewma(_SHORTEST_PAUSE_S, memory=_REST_MEMORY, prior_samples=_PRESUMED_RESTS)

    @property
    def return_share(self) -> float:
        """The share of rests that ended with another turn."""
        return self._returned / self._rests

    @property
    def reread_share(self) -> float:
        """The share of contexts that are read again: all are taken to be, until the kind has shown that most are not."""
        share = self.return_share
        return 1.0 if share >= _MOST_OF_IT or self._rests < _PRESUMED_RESTS + ENOUGH else share

    def rests(self) -> None:
        keep = 1.0 - 1.0 / _REST_MEMORY
        self._rests, self._returned = keep * self._rests + 1.0, keep * self._returned

    def returned(self, pause_s: float) -> None:
        """A session rests no more: its next turn is there."""
        self._returned = min(self._returned + 1.0, self._rests)
        self.pause.add(pause_s)


class LiveSession:
    """One session: its tenant, lane and `kind`, its context on one engine, and its `turns` that are queued or run; it rests without any.

    Of one kind are those of a lane that have come back, of two more those that have not yet: with a name, and without
    one as prompts that never will.

    It `is_over` once its lease has ended, until it goes on. `alone_s` is how long its prompt takes to read that counts
    as one of no session, since `alone_at`: a first one without a name.
    """

    def __init__(self, key: int, tenant: str, lane: str, kind: _Kind) -> None:
        self.key, self.tenant, self.lane, self.kind = key, tenant, lane, kind
        self.engine = -1
        self.tokens = self.turns = self.read_per_hour = 0
        self.is_over = False
        self.tip: int | None = None
        self.rests_since = self.until = self.alone_s = self.alone_at = 0.0
        self._pause_s, self._pauses = 0.0, 0.0

    def counts(self) -> int:
        """Note how many tokens an engine reads for it in an hour if nothing is kept between its turns, in whole numbers, and return it."""
        pause_s = self._pause_s if self._pauses else self.kind.pause.mean
        self.read_per_hour = int(3600.0 * self.tokens / max(_SHORTEST_PAUSE_S, pause_s))
        return self.read_per_hour

    def goes_on(self) -> None:
        """One more of its turns is queued or runs."""
        self.turns += 1

    def read_alone(self, reading_s: float, now: float) -> None:
        """Its prompt is read from now on for so long, and counts as one of no session until a second turn comes; 0.0: it does not."""
        self.alone_s, self.alone_at = reading_s, now

    def lapses(self) -> None:
        """Its lease has ended."""
        self.is_over = True

    def resumes(self) -> None:
        """It is live again, after a longer pause than was known of it: its pauses are learned anew."""
        self.is_over, self._pauses = False, 0.0

    def returned(self, pause_s: float, kind: _Kind) -> None:
        """Learn how long it has paused, and that it comes back: it is of this kind."""
        self.kind = kind
        self._pauses = min(self._pauses + 1.0, _PAUSE_MEMORY)
        self._pause_s += (pause_s - self._pause_s) / self._pauses

    def turn_over(self, now: float) -> bool:
        """One of its turns is over; return whether it rests from now on, for as long as its lease."""
        self.turns -= 1
        self.rests_since = now
        lease_s = _PAUSES * self._pause_s if self._pauses else STARVED_S
        self.until = now + min(max(lease_s, _SHORTEST_S), STARVED_S)
        return not self.turns

    def lies(self, engine: int, tokens: int, tip: int | None) -> None:
        """Its context is on this engine, and so long; `tip` is its prompt as the next one begins."""
        self.engine, self.tokens, self.tip = engine, tokens, tip


class _LiveSet:
    """The live contexts of one engine in tokens: of sessions with a turn and of resting ones, by kind, and of all by tenant."""

    def __init__(self) -> None:
        self._read_per_hour: dict[_Kind, int] = {}
        self._active: dict[_Kind, int] = {}
        self._resting: dict[_Kind, int] = {}
        self.tenants: dict[str, int] = {}

    def tokens(self, *, all_rest: bool = False) -> float:
        """Return how many there are, now or when they `all_rest`: a resting one counts as often as its kind comes back."""
        tokens = 0.0
        for kind, active in self._active.items():
            tokens += kind.return_share * active if all_rest else active
        for kind, resting in self._resting.items():
            tokens += kind.return_share * resting
        return tokens

    def count(self, session: LiveSession, sign: int) -> None:
        """Add a session (1), or take it away as it was added (-1)."""
        tokens = sign * session.tokens
        read = session.counts() if sign > 0 else -session.read_per_hour
        self._read_per_hour[session.kind] = self._read_per_hour.get(session.kind, 0) + read
        by_kind = self._active if session.turns else self._resting
        by_kind[session.kind] = by_kind.get(session.kind, 0) + tokens
        held = self.tenants.get(session.tenant, 0) + tokens
        if held:
            self.tenants[session.tenant] = held
        else:
            self.tenants.pop(session.tenant, None)

    def rereading(self, tokens: int, most: float, per_token_s: float, *, all_rest: bool = False) -> float:
        """Return which part of its time an engine will read again what it has evicted, with so many more tokens where `most` fit.

        After pauses without memory the least recently used cache has `most` of all (Che, Tung, Wang 2002, with equal rates).
        """
        evicted_share = max(0.0, 1.0 - most / (self.tokens(all_rest=all_rest) + tokens))
        per_hour = sum([kind.reread_share * read for kind, read in self._read_per_hour.items()], 0.0)
        return evicted_share * per_token_s * per_hour / 3600.0

    def leaves_part(self, tenant: str, tokens: int, most: float) -> bool:
        """Return whether this tenant may have so many more, others counting for no more than an equal part each."""
        others = [held for name, held in self.tenants.items() if name != tenant]
        part = most / (len(others) + 1)
        own = self.tenants.get(tenant, 0) + tokens
        return bool(others) and own + sum([min(part, held) for held in others], 0.0) <= most


class WorkingSets:
    """The live sessions of all engines, which are known by their numbers in the index of prefixes."""

    def __init__(self) -> None:
        self._sessions: dict[int, LiveSession] = {}
        self._lapsed: dict[int, LiveSession] = {}
        self._tips: dict[int, LiveSession] = {}
        self._sets: dict[int, _LiveSet] = {}
        self.encounters = Encounters(MOST_SESSIONS)
        self.leases: list[tuple[float, int]] = []
        self._kinds: dict[tuple[str, bool, bool], _Kind] = {}
        self._found = Ewma(1.0, prior_samples=float(ENOUGH))
        self._opened_at = -inf
        self._inferred = 0
        # What was found of the prompt that was asked for last: a decision asks several times.
        self._asked: PrefixMarks | None = None
        self._asked_name: int | None = None
        self._found_session: LiveSession | None = None

    @property
    def sessions(self) -> int:
        """How many are live."""
        return len(self._sessions)

    def tokens(self, number: int) -> float:
        """Return how much of this engine's memory is kept for live sessions."""
        live = self._sets.get(number)
        return 0.0 if live is None else live.tokens()

    def continued(self, name: int | None, marks: PrefixMarks) -> LiveSession | None:
        """Return the session of this name, live or over, or the one whose prompt this one goes on from; None where it would open one."""
        if marks is not self._asked or name != self._asked_name:
            self._asked, self._asked_name = marks, name
            self._found_session = self._find(name, marks)
        return self._found_session

    def _find(self, name: int | None, marks: PrefixMarks) -> LiveSession | None:
        session = None if name is None else self._sessions.get(name) or self._lapsed.get(name)
        if session is not None:
            return session
        least_bytes = _MOST_OF_IT * marks[-1][1] if marks else 0.0
        for key, size_bytes in reversed(marks):
            if size_bytes < least_bytes:
                return None
            session = self._tips.get(key)
            if session is not None:
                return session
        return None

    def takes(
        self, number: int, kv_tokens: int | None, tenant: str, tokens: int, per_token_s: float, now: float
    ) -> bool:
        """Return whether this engine, which takes so long to read a token, may open a session of so many for this tenant; changes nothing."""
        live = self._sets.get(number)
        if live is None or kv_tokens is None or not live.tenants:
            return True
        most = LIVE_SHARE * kv_tokens
        if live.rereading(tokens, most, per_token_s) <= REREADING_SHARE or self._found.mean < _MOST_OF_IT:
            return True
        return now >= self._opened_at + STARVED_S or live.leaves_part(tenant, tokens, most)

    def takes_after_turns(self, number: int, kv_tokens: int, tokens: int, per_token_s: float) -> bool:
        """Return whether this engine would open a session of so many once all turns that run there are over."""
        live = self._sets[number]
        return live.rereading(tokens, LIVE_SHARE * kv_tokens, per_token_s, all_rest=True) <= REREADING_SHARE

    def next_room_s(self, now: float) -> float:
        """Return when the next lease ends, or a session is opened in any case, in seconds from now."""
        first = self.leases[0][0] if self.leases else inf
        return max(0.0, min(first, self._opened_at + STARVED_S) - now)

    def opens(
        self, known: LiveSession | None, name: int | None, tenant: str, lane: str, now: float
    ) -> LiveSession:
        """Return a session of which one turn begins: the `known` one, which was over, or a new one."""
        self._asked = None
        if known is not None:
            del self._lapsed[known.key]
            known.resumes()
            session = known
        else:
            self._inferred -= 1
            kind = self._kind(lane, returns=False, is_named=name is not None)
            session = LiveSession(self._inferred if name is None else name, tenant, lane, kind)
        self._sessions[session.key] = session
        self._opened_at = now
        session.goes_on()
        self._count(session, 1)
        while len(self._sessions) > MOST_SESSIONS and self.leases:
            self._lapse(heappop(self.leases)[1], inf)
        return session

    def also_known(self, session: LiveSession, name: int, tenant: str) -> None:
        """A turn of this session came under this other name: if that comes again, it is a session of its own, which has been live."""
        if name not in self._sessions and name not in self._lapsed:
            self._remember(LiveSession(name, tenant, session.lane, self._kind(session.lane, returns=False)))

    def awaits(self, session: LiveSession, now: float) -> None:
        """A turn of this session is queued, or runs: it rests no more."""
        self._count(session, -1)
        if not session.turns:
            pause_s = now - session.rests_since
            session.kind.returned(pause_s)
            session.returned(pause_s, self._kind(session.lane, returns=True))
        session.goes_on()
        self._count(session, 1)

    def placed(self, session: LiveSession, number: int, prompt_tokens: int, marks: PrefixMarks) -> None:
        """Its turn runs on this engine, with so long a prompt."""
        self._count(session, -1)
        self._unlearn_tip(session)
        tip = marks[-1][0]
        session.lies(number, prompt_tokens, tip)
        self._tips[tip] = session
        self._count(session, 1)

    def turn_over(self, session: LiveSession, now: float) -> None:
        """A turn of it is over, however it ended: without another one its lease begins."""
        self._count(session, -1)
        rests = session.turn_over(now)
        if self._sessions.get(session.key) is not session:
            return
        if rests and session.engine < 0:
            self._unlearn_tip(session)
            del self._sessions[session.key]
            return
        self._count(session, 1)
        if rests:
            session.kind.rests()
            heappush(self.leases, (session.until, session.key))

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        leases = self.leases
        while leases and (leases[0][0] <= now or not self._rests(*leases[0])):
            self._lapse(leases[0][1], heappop(leases)[0])

    def found(self, share: float) -> None:
        """Learn which part of what was believed to be held a turn of a live session has found."""
        self._found.add(share)

    def forget(self, number: int) -> None:
        """This engine has lost what it held: its resting sessions are over."""
        self.encounters.forget(number)
        for session in [each for each in self._sessions.values() if each.engine == number and not each.turns]:
            self._drop(session)
        self.leases = [each for each in self.leases if self._rests(*each)]
        heapify(self.leases)

    def _rests(self, until: float, key: int) -> bool:
        session = self._sessions.get(key)
        return session is not None and not session.turns and session.until == until

    def _lapse(self, key: int, until: float) -> None:
        session = self._sessions.get(key)
        if session is not None and not session.turns and session.until <= until:
            self._drop(session)
            self._remember(session)

    def _remember(self, session: LiveSession) -> None:
        """Keep a session that is over, and forget the one that has been over longest beyond the bound."""
        session.lapses()
        self._lapsed[session.key] = session
        if session.tip is not None:
            self._tips[session.tip] = session
        if len(self._lapsed) > MOST_SESSIONS:
            self._unlearn_tip(self._lapsed.pop(next(iter(self._lapsed))))

    def _drop(self, session: LiveSession) -> None:
        self._count(session, -1)
        self._unlearn_tip(session)
        del self._sessions[session.key]

    def _unlearn_tip(self, session: LiveSession) -> None:
        self._asked = None
        if session.tip is not None and self._tips.get(session.tip) is session:
            del self._tips[session.tip]

    def _count(self, session: LiveSession, sign: int) -> None:
        if session.engine >= 0 and self._sessions.get(session.key) is session:
            live = self._sets.get(session.engine)
            if live is None:
                live = self._sets[session.engine] = _LiveSet()
            live.count(session, sign)

    def _kind(self, lane: str, *, returns: bool, is_named: bool = True) -> _Kind:
        kind = self._kinds.get((lane, returns, is_named))
        if kind is None:
            kind = self._kinds[lane, returns, is_named] = _Kind()
        return kind
