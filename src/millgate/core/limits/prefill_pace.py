"""How soon may an engine be given the next long prompt of a lane that another lane has to be protected from?

An engine that reads prompts for a share r of its time makes every token of its streams later: TPOT = step / (1 - r). So the
share that leaves the TPOT of the protected lane at its target follows from one measurement, r' = 1 - (1 - r) x TPOT / target.
A prompt that takes s seconds to read comes s / r' after the one before it.

Where the protected lane has been quiet for much longer than it usually is, as at night, its prompts stop mattering: the engine
reads the others one after the other.

The first tokens of all lanes stand behind a prompt that is being read. Those that come while more than their `ttft_slo` of it
is left are late, and their requests are refused. Where that has happened, the next prompt that takes so long waits until the time in
which requests are refused for such prompts is as small a part as the refused lane's objective lets be late. Another engine may have
served them all; then nothing waits.

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

# Half of the answers that an objective lets be slow are for the reading of long prompts, half for slow tokens.
_LATE_PART: Final = 0.5
# A share of 0 would never let a prompt in by which to see that all is well again.
_LEAST_SHARE: Final = 0.01


Reads = tuple[float, float]
"""How long an engine reads a prompt, and how long the first token of a short one right behind it takes; seconds."""


class FirstTokens(NamedTuple):
    """When the most impatient lane promises a first token, in seconds, and the share of its requests that may have none by then."""

    ttft_slo_s: float
    late_share: float


class Protection(NamedTuple):
    """What is promised to the protected lane, in seconds; the share of each lane that is `paced`, and that of all others together.

    `tpot_share` of its answers keep their TPOT beside the paced prompts, and what `first_tokens` lets be late is late for these.
    """

    tpot_slo_s: float
    tpot_share: float
    first_tokens: FirstTokens
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
    first_tokens = FirstTokens(ttft_slo_s, _LATE_PART * late_share)
    return Protection(tpot_slo_s, tpot_share, first_tokens, shares, others)


def _promise(lane: LaneSettings) -> tuple[float, float, float, float] | None:
    """Return TPOT and time to first token, and the shares of answers that may be slow and late; the least is protected."""
    if lane.tpot_slo_s is None:
        return None
    return lane.tpot_slo_s, lane.ttft_slo_s, 1.0 - lane.tpot_share, 1.0 - lane.ttft_share


class Paced(NamedTuple):
    """What is protected, the caps by lane, tokens a second, each lane's part of the reading while others wait, by its share, and what first tokens prompts keep waiting."""

    protection: Protection | None
    caps: Mapping[str, float]
    parts: Mapping[str, float]
    first_tokens: FirstTokens | None


def paced_by(lanes: Sequence[LaneSettings]) -> Paced:
    """Return what these lanes ask for; a part is for those that take requests by size."""
    caps = {lane.name: lane.prefill_per_s for lane in lanes if lane.prefill_per_s is not None}
    by_size = [lane for lane in lanes if lane.takes is not LaneTakes.AGENTS]
    whole = sum([lane.share for lane in by_size], 0.0)
    parts = {lane.name: lane.share / whole for lane in by_size if lane.takes is not None and lane.share}
    protection = protection_of(lanes)
    soonest = min([(lane.ttft_slo_s, max(_LEAST_SHARE, 1.0 - lane.ttft_share)) for lane in lanes])
    first_tokens = FirstTokens(*soonest) if len(lanes) > 1 else None
    return Paced(protection, caps, parts, first_tokens if protection is None else protection.first_tokens)


class Comings:
    """When requests come to a pool.

    Of the protected lanes, admitted or not: the last one, and how far apart they are. Of the lanes of each `ttft_slo`: when
    one was `turned_away`. Of a pool of `one_engine` each prompt keeps all waiting.
    """

    def __init__(self, *, one_engine: bool = False) -> None:
        self.one_engine = one_engine
        self.turned_away: dict[float, float] = {}
        self.last_at = -inf
        self.apart = Ewma(0.0, memory=LEVEL_WINDOWS, prior_samples=0.0)

    def turn_away(self, ttft_slo_s: float, now: float) -> None:
        """One of a lane with this promise has been refused, though not by a rule."""
        self.turned_away[ttft_slo_s] = now

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
        # Until when answers of the protected lane are foreseen to be written here; before the first prompt the lane is
        # taken to be busy.
        self._busy_until = inf
        self._paced_s = self._others_s = 0.0
        # Windows since each paced lane was last given a prompt.
        self._idle = {name: LEVEL_WINDOWS for name, _ in protection.paced}
        self._used = Ewma(0.0, memory=LEVEL_WINDOWS)

    def opens_at(self, quiet_by: float = inf) -> float:
        """Return from when on the next paced prompt may be given, as far apart from the last one as it is right now.

        Nothing of the protected lane is taken to come any more; but that it goes quiet counts only if it has by `quiet_by`.
        """
        at, quiet_at = self._free_at(), self.quiet_at()
        return min(at, quiet_at) if quiet_at <= quiet_by else at

    def _free_at(self) -> float:
        return self._last_at + self._last_s / max(self.share, self.least)

    def quiet_at(self) -> float:
        """Return from when on the protected lane will have been quiet for long, if nothing of it comes.

        Requests that come at random are so far apart so seldom that no more of them are late than may be.
        """
        apart_s, late = self.comings.apart.mean, self.protection.first_tokens.late_share
        longest_s = apart_s * log((apart_s + self._last_s) / (apart_s * late)) if apart_s else 0.0
        return max(self._busy_until, self.comings.last_at) + max(WINDOW_S, longest_s)

    def is_quiet(self, now: float) -> bool:
        """Return whether the protected lane has been quiet for so long that prompts need no pace."""
        return self.quiet_at() <= now

    def paces(self, lane: str) -> bool:
        """Return whether this lane's prompts are paced."""
        return lane in self._idle

    def spacing_s(self, reading_s: float, now: float) -> float:
        """Return how long after a prompt the next may come: it takes so long to read."""
        return reading_s if self.is_quiet(now) else reading_s / max(self.share, self.least)

    def given(self, lane: str, reading_s: float, now: float, lasts_s: float = 0.0) -> None:
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
        self.first_tokens: FirstTokens | None = None
        self._comings = Comings()
        # When each lane was last given a prompt that kept first tokens waiting, how long it was read, and they waited.
        self.kept_waiting: dict[str, tuple[float, float, float]] = {}
        self._caps: Mapping[str, float] = {}
        self._parts: Mapping[str, float] = {}
        # From when on each lane keeps its cap, and its part: what it was given before is no debt.
        self._keeps_cap: dict[str, float] = {}
        self._keeps_part: dict[str, float] = {}

    def reconfigured(self, paced: Paced, prior: ServicePrior, comings: Comings) -> None:
        """Protect this from now on, with these caps and parts; what is unchanged goes on."""
        protection, self._caps, self._parts, self.first_tokens = paced
        self._comings = comings
        if protection is None:
            self.pace = None
        elif self.pace is None or self.pace.protection != protection:
            self.pace = PrefillPace(protection, prior, comings)
        else:
            self.pace.comings = comings
        self.is_on = bool(self._caps) or self.first_tokens is not None

    def opens_at(self, lane: str, *, contended: bool = False, quiet_by: float = inf) -> float:
        """Return when a prompt of this lane may be given; -inf where none is paced, or none was ever given."""
        at = self._keeps_cap.get(lane, -inf) if lane in self._caps else -inf
        if self.pace is not None and self.pace.paces(lane):
            at = max(at, self.pace.opens_at(quiet_by))
        return max(at, self._keeps_part.get(lane, -inf)) if contended and lane in self._parts else at

    def given(self, lane: str, prompt_tokens: int, reads: Reads, now: float, lasts_s: float) -> None:
        """The engine is given a prompt of this lane, and is busy with it and its answer for so long."""
        (reading_s, first_s), promise = reads, self.first_tokens
        if promise is not None and first_s > promise.ttft_slo_s:
            self.kept_waiting[lane] = now, reading_s, first_s
        if self.pace is not None:
            self.pace.given(lane, reading_s, now, lasts_s)
        if lane in self._caps:
            self._keeps_cap[lane] = now + prompt_tokens / self._caps[lane]
        if lane in self._parts:
            self._keeps_part[lane] = now + reading_s / self._parts[lane]

    def waits_until(self, lane: str, first_s: float, quiet_by: float = inf) -> float:
        """Return until when a prompt of this lane waits that first tokens would stand behind for so long: its last one had requests turned away.

        Where one engine alone serves the protected lane, its prompts wait in any case, whatever their length.
        """
        last, promise, pace = self.kept_waiting.get(lane), self.first_tokens, self.pace
        if last is None or promise is None or (pace is not None and not pace.paces(lane)):
            return -inf
        given_at, reading_s, last_first_s = last
        did_harm = self._comings.turned_away.get(promise.ttft_slo_s, -inf) >= given_at
        if (pace is None or not self._comings.one_engine) and not (did_harm and first_s > promise.ttft_slo_s):
            return -inf
        until = given_at + self._wide_s(lane, promise, reading_s, last_first_s)
        quiet_at = inf if pace is None else pace.quiet_at()
        return min(until, quiet_at) if quiet_at <= quiet_by else until

    def _wide_s(self, lane: str, promise: FirstTokens, reading_s: float, first_s: float) -> float:
        """Return how far apart such prompts keep the promise, but no further than leaves their lane its part of what is read."""
        least = self._parts.get(lane, _LEAST_SHARE) if self.pace is None else self.pace.least
        return min((first_s - promise.ttft_slo_s) / promise.late_share, reading_s / least)

    def spacing_s(self, lane: str, prompt_tokens: int, reads: Reads, now: float, *, contended: bool) -> float:
        """Return how long after such a prompt of this lane the next may come."""
        reading_s, first_s = reads
        apart_s = prompt_tokens / self._caps.get(lane, inf)
        if self.pace is not None and self.pace.paces(lane):
            apart_s = max(apart_s, self.pace.spacing_s(reading_s, now))
        if contended:
            apart_s = max(apart_s, reading_s / self._parts.get(lane, inf))
        promise, pace = self.first_tokens, self.pace
        if promise is not None and first_s > promise.ttft_slo_s:
            is_kept_apart = (
                pace is not None and self._comings.one_engine and pace.paces(lane) and not pace.is_quiet(now)
            )
            if is_kept_apart or self.waits_until(lane, first_s) > now:
                apart_s = max(apart_s, self._wide_s(lane, promise, reading_s, first_s))
        return apart_s
