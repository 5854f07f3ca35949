"""How soon may an engine be given the next long prompt of a lane that another lane has to be protected from?

An engine that reads prompts for a share r of its time makes every token of its streams later: TPOT = step / (1 - r). So the
share that leaves the TPOT of the protected lane at its target follows from one measurement, r' = 1 - (1 - r) x TPOT / target.
A prompt that takes s seconds to read comes s / r' after the one before it.

The first tokens of the protected lane stand behind a prompt that is being read. Those that come while more than their
`ttft_slo` of it is left are late. So what is longer than that is spaced so widely that it makes few of them late.

A lane whose prompts are short does not wait for that. And where the protected lane has been quiet for much longer than it usually
is, as at night, its prompts stop mattering: the engine reads the others one after the other.

A lane's `share` holds for prompts as it does for streams: paced lanes may always read their part of all that is read. And
where no lane is protected, a lane that takes requests by size reads no more than its part while others wait. A long prompt has
one stream, and as much of the engine as a hundred short ones. What is only read has streams for no time.
"""

from collections.abc import Mapping, Sequence
from math import inf, log
from typing import Final, NamedTuple

from millgate.core.limits.pace import LEVEL_WINDOWS
from millgate.core.limits.slo_gradient import BLEND, TARGET
from millgate.core.measure import WINDOW_S, Ewma
from millgate.core.settings import LaneSettings, ServicePrior
from millgate.core.words import LaneTakes

# Half of the answers that an objective lets be late are for the reading of long prompts, half for slow tokens.
_LATE_PART: Final = 0.5
# A share of 0 would never let a prompt in by which to see that all is well again.
_LEAST_SHARE: Final = 0.01


class Protection(NamedTuple):
    """What is promised to the protected lane, in seconds; the share of each lane that is `paced`, and that of all others together.

    `tpot_share` of its answers keep their TPOT beside the paced prompts, and `late_share` of them get their first token
    late for these.
    """

    tpot_slo_s: float
    ttft_slo_s: float
    tpot_share: float
    late_share: float
    paced: tuple[tuple[str, float], ...]
    others: float


def protection_of(lanes: Sequence[LaneSettings]) -> Protection | None:
    """Return what is protected: the lane with the shortest TPOT, of equal ones that with the soonest first token.

    Of equal times those that fewer answers may miss come first. None where no lane has a `tpot_slo`, or where all
    promise the same.
    """
    promised = [each for each in map(_promise, lanes) if each is not None]
    if not promised:
        return None
    least = min(promised)
    paced = [lane for lane in lanes if _promise(lane) != least]
    if not paced:
        return None
    others = sum([lane.share for lane in lanes if _promise(lane) == least], 0.0)
    tpot_slo_s, ttft_slo_s, slow_share, late_share = least
    tpot_share = 1.0 - _LATE_PART * slow_share
    shares = tuple([(lane.name, lane.share) for lane in paced])
    return Protection(tpot_slo_s, ttft_slo_s, tpot_share, _LATE_PART * late_share, shares, others)


def _promise(lane: LaneSettings) -> tuple[float, float, float, float] | None:
    """Return TPOT and time to first token, and the shares of answers that may be slow and late; the least is protected."""
    if lane.tpot_slo_s is None:
        return None
    return lane.tpot_slo_s, lane.ttft_slo_s, 1.0 - lane.tpot_share, 1.0 - lane.ttft_share


class Paced(NamedTuple):
    """What is protected, the caps by lane, tokens a second, and each lane's part of the reading while others wait, by its share."""

    protection: Protection | None
    caps: Mapping[str, float]
    parts: Mapping[str, float]


def paced_by(lanes: Sequence[LaneSettings]) -> Paced:
    """Return what these lanes ask for; a part is for those that take requests by size."""
    caps = {lane.name: lane.prefill_per_s for lane in lanes if lane.prefill_per_s is not None}
    by_size = [lane for lane in lanes if lane.takes is not LaneTakes.AGENTS]
    whole = sum([lane.share for lane in by_size], 0.0)
    parts = {lane.name: lane.share / whole for lane in by_size if lane.takes is not None and lane.share}
    return Paced(protection_of(lanes), caps, parts)


class PrefillCap:
    """The prompts of one lane on one engine, so much a second at most: tokens, or seconds of reading; core seconds."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.opens_at = -inf

    def given(self, amount: float, now: float) -> None:
        """The engine is given so much of this lane; what it took while no other lane waited is no debt of its later prompts."""
        self.opens_at = now + amount / self.per_s


class Comings:
    """When requests of the protected lanes come to a pool, admitted or not: the last one, and how far apart they are."""

    def __init__(self) -> None:
        self.last_at = -inf
        self.apart = Ewma(0.0, memory=LEVEL_WINDOWS, prior_samples=0.0)

    def came(self, now: float) -> None:
        """One has come."""
        if self.last_at > -inf:
            self.apart.add(now - self.last_at)
        self.last_at = now


class PrefillPace:
    """The prompts of one engine's paced lanes; core seconds.

    `share` of its time goes to them at most, but no less than `least`, which is the part of what it reads of those that have
    had prompts of late: an idle lane's part is not another's.
    """

    def __init__(self, protection: Protection, prior: ServicePrior, comings: Comings) -> None:
        self.protection = protection
        self.comings = comings
        self.share = max(_LEAST_SHARE, 1.0 - prior.tpot_base_s / (TARGET * protection.tpot_slo_s))
        self.least = _LEAST_SHARE
        self._last_at, self._last_s = -inf, 0.0
        # The last prompt that kept first tokens waiting for too long: when it was given, and how long; and lanes whose
        # last one did.
        self._blocked_at, self._blocked = -inf, (0.0, 0.0)
        self._blocking: set[str] = set()
        # Until when answers of the protected lane are foreseen to be written here; before the first prompt the lane is
        # taken to be busy.
        self._busy_until = inf
        self._paced_s = self._others_s = 0.0
        # Windows since each paced lane was last given a prompt.
        self._idle = {name: LEVEL_WINDOWS for name, _ in protection.paced}
        self._used = Ewma(0.0, memory=LEVEL_WINDOWS)

    def opens_at(self, lane: str, quiet_by: float = inf) -> float:
        """Return from when on the next prompt of this lane may be given, as far apart from the last one as it is right now.

        Nothing of the protected lane is taken to come any more; but that it goes quiet counts only if it has by `quiet_by`.
        """
        at, quiet_at = self._free_at(), self._quiet_at()
        if lane in self._blocking:
            at = max(at, self._blocked_at + self._wide_s(*self._blocked))
        return min(at, quiet_at) if quiet_at <= quiet_by else at

    def _free_at(self) -> float:
        return self._last_at + self._last_s / max(self.share, self.least)

    def _quiet_at(self) -> float:
        """Return from when on the protected lane will have been quiet for long, if nothing of it comes.

        Requests that come at random are so far apart so seldom that no more of them are late than may be.
        """
        apart_s, late = self.comings.apart.mean, self.protection.late_share
        longest_s = apart_s * log((apart_s + self._blocked[1]) / (apart_s * late)) if apart_s else 0.0
        return max(self._busy_until, self.comings.last_at) + max(WINDOW_S, longest_s)

    def is_quiet(self, now: float) -> bool:
        """Return whether the protected lane has been quiet for so long that prompts need no pace."""
        return self._quiet_at() <= now

    def paces(self, lane: str) -> bool:
        """Return whether this lane's prompts are paced."""
        return lane in self._idle

    def spacing_s(self, reading_s: float, first_s: float, now: float) -> float:
        """Return how long after a prompt the next may come: it takes so long to read.

        `first_s` is the time to first token of a short prompt right behind it.
        """
        return reading_s if self.is_quiet(now) else self._wide_s(reading_s, first_s)

    def _wide_s(self, reading_s: float, first_s: float) -> float:
        blocked_s = first_s - self.protection.ttft_slo_s
        wide_s = max(reading_s / max(self.share, self.least), blocked_s / self.protection.late_share)
        return min(wide_s, reading_s / self.least)

    def given(self, lane: str, reading_s: float, first_s: float, now: float, lasts_s: float = 0.0) -> None:
        """The engine is given a prompt of this lane: as for `spacing_s`. Its answer is over after `lasts_s`, as far as is foreseen."""
        busy_until = now if self._busy_until == inf else self._busy_until
        if not self.paces(lane):
            self._others_s += reading_s
            self._busy_until = max(busy_until, now + lasts_s)
            return
        self._busy_until = busy_until
        self._paced_s += reading_s
        self._idle[lane] = 0.0
        self._last_at, self._last_s = now if self.is_quiet(now) else max(now, self._free_at()), reading_s
        if first_s > self.protection.ttft_slo_s:
            self._blocking.add(lane)
            self._blocked_at, self._blocked = now, (reading_s, first_s)
        else:
            self._blocking.discard(lane)

    def _part(self) -> float:
        """Return the part of all shares that the paced lanes with prompts in the last windows have."""
        idle, shares = self._idle, self.protection.paced
        paced = sum([share for name, share in shares if idle[name] < LEVEL_WINDOWS], 0.0)
        return paced / (paced + self.protection.others) if paced else 0.0

    def observe(self, window_s: float, tpot_s: float) -> bool:
        """Move one step towards the target; return whether it is these prompts that pay for a slow TPOT."""
        self._used.add(self._paced_s / window_s)
        used, others = min(1.0, self._used.mean), self._others_s / window_s
        self._paced_s = self._others_s = 0.0
        part = min(self._part(), 0.5)
        for lane in self._idle:
            self._idle[lane] += 1.0
        self.least = max(_LEAST_SHARE, self.least + BLEND * (part / (1.0 - part) * others - self.least))
        slowness = tpot_s / (TARGET * self.protection.tpot_slo_s)
        step = BLEND * (1.0 - min(used, self.share)) * (1.0 - slowness)
        if slowness > 1.0:
            pays = used > 0.0 and self.share > self.least
            self.share = max(self.least, self.share + step)
            return pays
        if 2.0 * used > self.share:
            self.share = min(1.0, self.share + step)
        return False


class PromptPaces:
    """All that paces the prompts of one engine: the lane that is protected, each lane's own cap, and parts of the reading.

    A part holds only while others wait: `contended` asks as if they did. Nothing is paced until it `is_on`.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.pace: PrefillPace | None = None
        self._caps: dict[str, PrefillCap] = {}
        self._parts: dict[str, PrefillCap] = {}

    def reconfigured(self, paced: Paced, prior: ServicePrior, comings: Comings) -> None:
        """Protect this from now on, with these caps and parts; what is unchanged goes on."""
        protection, caps, parts = paced
        if protection is None:
            self.pace = None
        elif self.pace is None or self.pace.protection != protection:
            self.pace = PrefillPace(protection, prior, comings)
        else:
            self.pace.comings = comings
        self.is_on = protection is not None or bool(caps) or bool(parts)
        self._caps = _kept(self._caps, caps)
        self._parts = _kept(self._parts, parts)

    def opens_at(self, lane: str, *, contended: bool = False, quiet_by: float = inf) -> float:
        """Return when a prompt of this lane may be given; -inf where none is paced, or none was ever given."""
        pace, cap = self.pace, self._caps.get(lane)
        at = pace.opens_at(lane, quiet_by) if pace is not None and pace.paces(lane) else -inf
        if contended and (part := self._parts.get(lane)) is not None:
            at = max(at, part.opens_at)
        return at if cap is None else max(at, cap.opens_at)

    def given(
        self, lane: str, prompt_tokens: int, reading_s: float, first_s: float, now: float, lasts_s: float
    ) -> None:
        """The engine is given a prompt of this lane; times as for `PrefillPace.given`."""
        if self.pace is not None:
            self.pace.given(lane, reading_s, first_s, now, lasts_s)
        if (cap := self._caps.get(lane)) is not None:
            cap.given(prompt_tokens, now)
        if (part := self._parts.get(lane)) is not None:
            part.given(reading_s, now)

    def spacing_s(
        self, lane: str, prompt_tokens: int, reading_s: float, first_s: float, now: float, *, contended: bool
    ) -> float:
        """Return how long after such a prompt of this lane the next may come."""
        pace, cap = self.pace, self._caps.get(lane)
        apart_s = pace.spacing_s(reading_s, first_s, now) if pace is not None and pace.paces(lane) else 0.0
        if contended and (part := self._parts.get(lane)) is not None:
            apart_s = max(apart_s, reading_s / part.per_s)
        return apart_s if cap is None else max(apart_s, prompt_tokens / cap.per_s)


def _kept(known: Mapping[str, PrefillCap], rates: Mapping[str, float]) -> dict[str, PrefillCap]:
    """Return a cap for each of these lanes: the known one where its rate is the same."""
    fresh = {lane: PrefillCap(per_s) for lane, per_s in rates.items()}
    return {
        lane: known[lane] if lane in known and known[lane].per_s == cap.per_s else cap
        for lane, cap in fresh.items()
    }
