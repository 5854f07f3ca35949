"""How many requests of a lane were good (design section 2), and how fast that burns its error budget.

It is watched over five minutes and an hour, of all requests. One that was refused and has not come back is a miss, like
an answer that was late. An objective names the share of requests that is to keep it, and with that its error budget. A
good request keeps both, so the lane's target is the smaller share, and the stricter objective is judged by its own
misses and budget too. The burn is the share of misses over the share that the target allows, of whichever burns
fastest. Both windows must burn fast for an alarm: the long one so that a blip is none, the short one so that the alarm
ends with its cause. (Google, The Site Reliability Workbook, 2018, chapter 5: 14.4 times the budget over 1 h and 5 min).
It reports and advises; it moves nothing.
"""

from math import exp
from typing import Final, NamedTuple

from millgate.core.instruments import LaneInstrument
from millgate.core.measure import ENOUGH, Sketch, Window
from millgate.core.settings import LaneSettings
from millgate.core.snapshot import Attainment, Promise, Quantiles, SloReading

SHORT_WINDOW_S, LONG_WINDOW_S = 300.0, 3600.0
# At this rate two hundredths of a month's budget are gone within an hour. A target of less than 96.5 % could miss
# half of all requests without reaching it, so there half of all requests is the alarm; and one that lets half be late is kept
# by a limit that steers for just that, so it alarms only well above.
_FAST_BURN: Final = 14.4
_ALWAYS_ALARMING_SHARE: Final = 0.5
_LEAST_FAST_BURN: Final = 1.5
# The windows slide in steps of this; quantiles forget in them too, with the short window as time constant.
_STEP_S: Final = 30.0
# What a refused first attempt adds to the counters of a window: a request, refused.
_REFUSED: Final[tuple[int, ...]] = (0, 0, 0, 0, 0, 0, 1, 1)


def quantile(share: float) -> str:
    """Return the name of this share's quantile: p95, p99.9."""
    return f"p{100.0 * share:g}"


class _Window(NamedTuple):
    """One window as it is told, and the burn of the lane's target, of the TTFT objective and of the TPOT objective."""

    told: Attainment
    burns: list[float]


class SloWatch(LaneInstrument):
    """One lane's answers against its objectives, in bounded memory; times are seconds, `now` core seconds.

    ValueError where a share of the lane is not between 0 and 1.
    """

    def __init__(self, lane: LaneSettings, now: float) -> None:
        for name, share in (("ttft_share", lane.ttft_share), ("tpot_share", lane.tpot_share)):
            if not 0.0 < share < 1.0:
                raise ValueError(f"{name} is {share}, must lie between 0 and 1")
        self._lane = lane
        self._budgets = (1.0 - lane.target_share, 1.0 - lane.ttft_share, 1.0 - lane.tpot_share)
        self._faded_at = now
        self._counts = Window(_STEP_S, round(LONG_WINDOW_S / _STEP_S), counters=8)
        self._ttft = Sketch()
        self._tpot = Sketch()

    def add(
        self, now: float, ttft_s: float | None, tpot_s: float | None, *, good: bool, first: bool = True
    ) -> None:
        """Take one admitted attempt that is over: good, late, or failed by its engine.

        `ttft_s` from the origin of the deadline, None for what was not streamed; `tpot_s` None for less than two
        tokens. It is the first of its request unless it is recognised as a retry.
        """
        if now - self._faded_at >= _STEP_S:
            self._fade(now)
        lane = self._lane
        streamed = ttft_s is not None
        judged = tpot_s is not None and lane.tpot_slo_s is not None
        first_in = ttft_s is not None and ttft_s <= lane.ttft_slo_s
        rest_in = tpot_s is not None and lane.tpot_slo_s is not None and tpot_s <= lane.tpot_slo_s
        self._counts.add(now, (1, good, streamed, first_in, judged, rest_in, first, 0))
        if ttft_s is not None:
            self._ttft.add(ttft_s)
        if tpot_s is not None:
            self._tpot.add(tpot_s)

    def refuse(self, now: float) -> None:
        """Take a request whose first attempt was refused: a miss, unless a retry of it ends good."""
        self._counts.add(now, _REFUSED)

    def read(self, now: float) -> SloReading:
        """Return quantiles, attainment and burn of both windows; changes nothing."""
        short, long = self._window(SHORT_WINDOW_S, now), self._window(LONG_WINDOW_S, now)
        # A quiet night's one slow answer is 20 times the budget.
        is_burning = short.told.requests >= ENOUGH and self._burn_fast(short, long)
        lane = self._lane
        return SloReading(
            ttft=_quantiles(self._ttft, lane.ttft_share),
            tpot=_quantiles(self._tpot, lane.tpot_share),
            short=short.told,
            long=long.told,
            target_share=lane.target_share,
            ttft_promise=Promise(lane.ttft_slo_s, lane.ttft_share),
            tpot_promise=None if lane.tpot_slo_s is None else Promise(lane.tpot_slo_s, lane.tpot_share),
            is_burning=is_burning,
            advice=self._advice(short.told) if is_burning else "",
        )

    def _burn_fast(self, short: _Window, long: _Window) -> bool:
        """Return whether any budget burns fast enough for an alarm in both windows."""
        for budget, now, lately in zip(self._budgets, short.burns, long.burns, strict=True):
            half = max(_LEAST_FAST_BURN, _ALWAYS_ALARMING_SHARE / budget)
            if min(now, lately) >= min(_FAST_BURN, half):
                return True
        return False

    def _fade(self, now: float) -> None:
        share = max(1e-9, exp(-(now - self._faded_at) / SHORT_WINDOW_S))
        self._faded_at = now
        self._ttft.fade(share)
        self._tpot.fade(share)

    def _window(self, window_s: float, now: float) -> _Window:
        counts = self._counts.read(now, round(window_s / _STEP_S))
        answers, good, streamed, ttft_in, judged, tpot_in, requests, refused = counts
        # The first attempt of a good retry may have left the window: it is a request all the same.
        requests = max(requests, good)
        good_share = good / requests if requests else 1.0
        # A request whose other attempt was good has missed nothing, so neither objective is missed by more than are not good.
        lost = 1.0 - good_share
        late, slow = (refused + streamed - ttft_in) / max(1, requests), (judged - tpot_in) / max(1, requests)
        missed = (lost, min(lost, late), min(lost, slow))
        burns = [share / budget for share, budget in zip(missed, self._budgets, strict=True)]
        told = Attainment(
            window_s=window_s,
            answers=answers,
            requests=requests,
            refused=refused,
            good_share=good_share,
            ttft_share=ttft_in / streamed if streamed else 1.0,
            tpot_share=tpot_in / judged if judged else 1.0,
            burn=max(burns),
        )
        return _Window(told, burns)

    def _advice(self, short: Attainment) -> str:
        """Return what would help, by what is missed most."""
        lane, late, slow = self._lane, 1.0 - short.ttft_share, 1.0 - short.tpot_share
        said = f"Lane {lane.name}: {100.0 * short.good_share:.0f} % good over five minutes, {100.0 * lane.target_share:g} % promised. "
        if 2.0 * short.refused >= (1.0 - short.good_share) * short.requests:
            return f"{said}{short.refused} of {short.requests} requests were refused: mend engines that are down or fail; where all are well add engines, or ask for less."
        if short.ttft_share >= lane.ttft_share and short.tpot_share >= lane.tpot_share:
            return said + "No stream is late: look at engine failures by kind, and at whole answers."
        if slow * (1.0 - lane.ttft_share) > late * (1.0 - lane.tpot_share):
            return f"{said}Tokens come too slowly ({quantile(lane.tpot_share)} is promised): lower the limit of streams, or add engines."
        return f"{said}First tokens come too late ({quantile(lane.ttft_share)} is promised): let less wait (max_wait, max_queue), or add engines."


def _quantiles(sketch: Sketch, share: float) -> Quantiles | None:
    if not sketch.samples:
        return None
    return Quantiles(sketch.quantile(0.95), sketch.quantile(0.99), sketch.quantile(share))
