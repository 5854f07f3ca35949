"""hints: of the clients that return on time, how many are admitted then, and what do kept promises leave idle?

A crowd that asks for more than there is, and every user comes back exactly when told. A promise is kept when its user
is admitted within the longer of half a second and a fifth of the hint. A stream is idle in vain when it is free while
a request waits, queued or away.

The engine answers at one pace, whatever runs beside, so that nothing is uncertain but lengths; or it is one of the
profiles. Where lengths are known `max_tokens` is the answer's own; where they are not, every client sends 4096.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import tee

from lab.books import unread_books
from lab.engines.plain import PacedStation
from lab.knobs import (
    ABOVE_0,
    FINITE,
    PROFILE,
    SHARE,
    KnobLimit,
    Limits,
    at_least,
    check,
    check_fits,
    check_longer,
    one_of,
    with_knobs,
)
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import Arrived, Event, FirstToken, Released
from millgate.core.governor.promises import FAR_HINT_S
from millgate.core.measure import spread
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings, TenantSettings
from millgate.core.tickets.appointment import kept_within_s
from millgate.core.words import DeadlineFrom
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import Honouring, Sdk
from millgate.sim.driver import DecidingCore
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.contract import Station
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.jobs import Job
from millgate.sim.laws import lognormal
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World
from millgate.wiring.choices import ORDERS
from millgate.wiring.chosen import PREFILL_TOKENS
from millgate.wiring.governor import build_governor

_LOADS = (1.3, 2.0, 3.0)
_KNOWN, _UNKNOWN = "lengths known", "lengths not known"
_UNKNOWN_MAX_TOKENS = 4096
_ENGINE = "engine"
# Of an engine at one pace: tokens of a mean answer, and its first token after so many paces.
_PACED_TOKENS = 100
_FIRST_TOKEN_PACES = 2.0
# Prompts before an engine of a profile: cv 0.5.
_PROMPT_CV2 = 0.25


@dataclass(frozen=True, slots=True)
class Case:
    """What can be set: streams, mean answer and its coefficient of variation, the lane, the crowd, the time watched.

    `max_queue` and `max_wait_s` below 0 mean none. Of the users, or with `absent_by: tenant` of the tenants, the share
    `absent` never returns, whatever it is told. With a `profile` `answer_s` means nothing, and lengths are in tokens;
    it has so many `kv_tokens`, its own where that is 0. Where memory is full first, `idle` counts streams that no request could use.
    Where they are `capped` the streams are those that the one tenant may have, of an engine with four times as many.
    """

    streams: int = 4
    answer_s: float = 2.0
    spread: float = 0.5
    max_queue: int = 0
    max_wait_s: float = -1.0
    deadline_s: float = 60.0
    deadline_from: str = "first_attempt"
    order: str = "arrival"
    tenants: int = 1
    absent: float = 0.0
    absent_by: str = "user"
    profile: str = ""
    prompt_tokens: float = 600.0
    output_tokens: float = 200.0
    kv_tokens: int = 0
    warm_up_s: float = 20.0
    seconds: float = 120.0
    capped: int = 0


_LIMITS: Limits = {
    "streams": at_least(1),
    "answer_s": ABOVE_0,
    "spread": at_least(0),
    "max_queue": FINITE,
    "max_wait_s": FINITE,
    "deadline_s": ABOVE_0,
    "deadline_from": one_of(*[each.value for each in DeadlineFrom]),
    "order": one_of(*ORDERS),
    "tenants": at_least(1),
    "absent": SHARE,
    "absent_by": one_of("user", "tenant"),
    "profile": PROFILE,
    "prompt_tokens": at_least(1),
    "output_tokens": at_least(1),
    "kv_tokens": at_least(0),
    "warm_up_s": at_least(0),
    "seconds": ABOVE_0,
    "capped": one_of(0, 1),
}


@dataclass(slots=True)
class _Promise:
    given_at: float
    hint_s: float

    def ends_at(self) -> float:
        """Return until when its user has to be let in."""
        return self.given_at + self.hint_s + kept_within_s(self.hint_s)


class PromiseAccounting:
    """A core that passes on, and judges every promise by what became of it; times are virtual seconds.

    Promises count that have come true or not by `seconds`; those beyond the longest hint that means a time are left
    out; of no promise none is broken. What is given before the warm-up is over is counted apart, under `start`.
    """

    def __init__(self, inner: DecidingCore, case: Case) -> None:
        self._inner = inner
        self._case = case
        self._running = 0
        self._waiting: dict[int, float] = {}
        self._promised: dict[int, _Promise] = {}
        self._visits: dict[int, int] = {}
        self._came_at: dict[int, float] = {}
        self._returns: dict[int, int] = {}
        self._absent: set[int] = set()
        self._since = 0.0
        self.judged = {"": [0, 0], "start_": [0, 0]}
        self.idle = {"": [0.0, 0.0], "start_": [0.0, 0.0]}
        self.asked = self.good = 0

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Pass on, and take note."""
        self._pass_time(now)
        if isinstance(event, Arrived):
            self._arrived(event, now)
        elif isinstance(event, FirstToken):
            self._read(self._visits[event.attempt], now)
        elif isinstance(event, Released):
            self._running -= 1
        decisions = self._inner.handle(event, now)
        for decision in decisions:
            self._note(decision, now)
        return decisions

    def next_wake(self) -> float | None:
        """Pass on."""
        return self._inner.next_wake()

    def end(self) -> None:
        """Judge the promises that are overdue when the run ends: their users are queued still."""
        for promise in self._promised.values():
            self._judge(promise, kept=False)
        self._promised.clear()

    def metrics(self) -> dict[str, float]:
        """Return the shares that were kept, idle and good, and the returns of clients that were told to come back."""
        shown = {}
        for when in self.judged:
            kept, broken = self.judged[when]
            idle, whole = self.idle[when]
            shown[f"{when}kept"] = kept / (kept + broken) if kept + broken else 1.0
            shown[f"{when}promises"] = float(kept + broken)
            shown[f"{when}idle"] = idle / max(1e-9, whole)
        shown["good"] = self.good / max(1, self.asked)
        shown["returns"] = sum(self._returns.values()) / max(1, len(self._returns))
        return shown

    def _pass_time(self, now: float) -> None:
        case = self._case
        bounds = (("start_", 0.0, case.warm_up_s), ("", case.warm_up_s, case.seconds))
        for when, begins, ends in bounds:
            lasted_s = min(now, ends) - max(self._since, begins)
            if lasted_s > 0.0 and self._waiting:
                self.idle[when][0] += lasted_s * (case.streams - self._running)
                self.idle[when][1] += lasted_s * case.streams
        self._since = now

    def _arrived(self, event: Arrived, now: float) -> None:
        assert event.fingerprint is not None
        visit = self._visits[event.attempt] = event.fingerprint()
        if visit in self._came_at:
            self._returns[visit] = self._returns.get(visit, 0) + 1
        else:
            if is_absent(self._case, len(self._came_at), event.tenant):
                self._absent.add(visit)
            self._came_at[visit] = now
            self.asked += self._is_watched(visit)
        self._waiting[visit] = now

    def _is_watched(self, visit: int) -> bool:
        case = self._case
        return case.warm_up_s <= self._came_at[visit] < case.seconds - case.deadline_s

    def _read(self, visit: int, now: float) -> None:
        self.good += self._is_watched(visit) and now <= self._came_at[visit] + self._case.deadline_s

    def _note(self, decision: Decision, now: float) -> None:
        if isinstance(decision, Queue | Ended):
            return
        visit = self._visits[decision.attempt]
        promise = self._promised.pop(visit, None)
        if isinstance(decision, Admit):
            self._running += 1
            del self._waiting[visit]
        if promise is not None:
            self._judge(promise, kept=isinstance(decision, Admit) and now <= promise.ends_at() + 1e-9)
        if isinstance(decision, Yield):
            if decision.retry and visit not in self._absent:
                self._promised[visit] = _Promise(now, decision.retry_after_s)
            else:
                del self._waiting[visit]

    def _judge(self, promise: _Promise, *, kept: bool) -> None:
        if promise.hint_s < FAR_HINT_S and promise.ends_at() <= self._case.seconds:
            when = "" if promise.given_at >= self._case.warm_up_s else "start_"
            self.judged[when][not kept] += 1


def is_absent(case: Case, number: int, tenant: str) -> bool:
    """Return whether the user of this newcomer, the `number`-th from 0, never returns."""
    if case.absent_by == "tenant":
        return int(tenant.rpartition("-")[2] or 0) < round(case.absent * case.tenants)
    return spread(number) < case.absent


def _lane(case: Case) -> LaneSettings:
    return LaneSettings(
        "lane",
        ttft_slo_s=case.deadline_s,
        deadline_s=case.deadline_s,
        deadline_from=DeadlineFrom(case.deadline_from),
        order=case.order,
        max_queue=None if case.max_queue < 0 else case.max_queue,
        max_wait_s=None if case.max_wait_s < 0.0 else case.max_wait_s,
    )


def _lengths(case: Case) -> Lengths:
    # Without spread all are within 3 % of their mean, as answers of real engines are.
    cv2 = max(case.spread, 0.01) ** 2
    if case.profile:
        return Lengths(lognormal(case.prompt_tokens, _PROMPT_CV2), lognormal(case.output_tokens, cv2))
    mean_tokens = _PACED_TOKENS - _FIRST_TOKEN_PACES
    return Lengths(lognormal(_PACED_TOKENS, 1e-6), lognormal(mean_tokens, cv2))


def _coming(case: Case, load: float, streams: Streams, *, known: bool) -> Iterator[Job]:
    lengths, per_s = _lengths(case), case.streams / case.answer_s
    if case.profile:
        profile = _profile(case)
        held = int(profile.kv_tokens / (case.prompt_tokens + case.output_tokens / 2.0))
        per_s = capacity_per_s(profile, lengths, max(1, min(case.streams, held)))
    arrivals = steady(load * per_s, streams)
    for job in jobs(arrivals, lengths, streams, until_s=case.seconds, tenants=case.tenants):
        yield job._replace(max_tokens=job.output_tokens if known else _UNKNOWN_MAX_TOKENS)


def _profile(case: Case) -> EngineProfile:
    profile = find_profile(case.profile)
    return replace(profile, kv_tokens=case.kv_tokens or profile.kv_tokens)


def _settings(case: Case) -> Settings:
    streams = 4 * case.streams if case.capped else case.streams
    tenants = (TenantSettings("", max_inflight=case.streams),) if case.capped else ()
    if case.profile:
        profile = _profile(case)
        kv_tokens, prior = int(0.9 * profile.kv_tokens), profile.prior()
    else:
        pace_s = case.answer_s / _PACED_TOKENS
        kv_tokens, prior = None, ServicePrior(_FIRST_TOKEN_PACES * pace_s, 0.0, pace_s, 0.0)
    engine = EngineSettings(_ENGINE, streams, kv_tokens, PREFILL_TOKENS, prior=prior)
    return Settings((_lane(case),), (engine,), tenants=tenants)


def _station(case: Case, world: World) -> Station:
    if case.profile:
        profile = _profile(case)
        return BatchedStation(_ENGINE, world.loop, world, profile.step_model(), profile.limits())
    pace_s = case.answer_s / _PACED_TOKENS
    return PacedStation(_ENGINE, world.loop, world, _FIRST_TOKEN_PACES * pace_s, pace_s)


def watch(case: Case, load: float, seed: int, *, known: bool) -> PromiseAccounting:
    """Play one case under one seed; return its account."""
    streams = Streams(seed)
    return attend(case, _coming(case, load, streams, known=known), streams)


def attend(case: Case, coming: Iterator[Job], streams: Streams) -> PromiseAccounting:
    """Let these requests come before the gate and engine of a case; return its account."""
    loop = Loop()
    governor = build_governor(_settings(case), 0.0)
    witness = PromiseAccounting(governor, case)
    world = World(witness, loop, unread_books())
    world.add_station(_station(case, world))
    world.start_watch()
    every_job, absent = tee(enumerate(coming))
    present = (job for number, job in every_job if not is_absent(case, number, job.tenant))
    OpenLoop(world, Crowd(world, Manners(retry_behaviour=Honouring()), streams), present)
    if case.absent:
        staying_away = (job for number, job in absent if is_absent(case, number, job.tenant))
        OpenLoop(world, Crowd(world, Manners(retry_behaviour=Sdk(0)), streams, 1), staying_away)
    loop.run(case.seconds)
    witness.end()
    return witness


def hints(knobs: Mapping[str, str]) -> Experiment:
    """Return the experiment with these fields of `Case` set; a ValueError names the one that is wrong."""
    case = _case(knobs)

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, watch(case, arm.x, seed, known=arm.series == _KNOWN).metrics())]

    return Experiment(
        name="hints",
        question="Of the clients that return on time, how many are admitted then?",
        arms=tuple(Arm(series, load) for series in (_KNOWN, _UNKNOWN) for load in _LOADS),
        run=run,
        metric="kept",
        x_label="load, times capacity",
        y_label="promises kept, share",
        facts=_facts,
        vary=hints,
    )


def _case(knobs: Mapping[str, str]) -> Case:
    case = with_knobs(Case(), knobs, _LIMITS)
    if case.capped:
        check("tenants", case.tenants, KnobLimit("1 where streams are capped", lambda tenants: tenants == 1))
    if case.absent_by == "tenant":
        whole = KnobLimit(
            f"a part of {case.tenants} tenants", lambda share: (share * case.tenants).is_integer()
        )
        check("absent", case.absent, whole)
    if case.profile:
        check_fits("prompt_tokens", case.prompt_tokens + case.output_tokens, case.profile, case.kv_tokens)
    check_longer("seconds", case.seconds, case.warm_up_s + case.deadline_s, "warm_up_s + deadline_s")
    return case


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    return {
        f"{place.series}, load {place.x:g}: {name}": place.metrics[name].mean
        for place in places
        for name in ("idle", "returns", "good", "start_kept", "start_idle")
    }


HINTS = hints({})
