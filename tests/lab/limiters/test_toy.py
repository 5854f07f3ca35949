"""A limiter that compares with latency at rest starves an engine that batches: the sign, in a model of one line.

Always saturated, TPOT = 8 ms + 0.19 ms a stream, 5 % noise, an SLO of 30 ms: 116 streams are feasible.
"""

from collections.abc import Callable
from random import Random
from statistics import fmean, pstdev
from typing import NamedTuple

import pytest
from lab.limiters.envoy import EnvoyLimit
from lab.limiters.gradient2 import Gradient2Limit
from lab.limiters.vegas import VegasLimit

from millgate.core.limits.gate import Limit, LimitReading
from millgate.core.limits.slo_gradient import SloGradientLimit

SLO_S = 0.03
FEASIBLE = 116
SEEDS = range(5)


class Settled(NamedTuple):
    """Where a limiter ended: mean limit, its variation, tokens a second against the feasible limit's."""

    limit: float
    cv: float
    tokens_share: float
    tpot_s: float


def _tpot_s(streams: int) -> float:
    return (8.0 + 0.19 * streams) / 1e3


def _settled(limit: Limit, seed: int, windows: int = 3_000) -> Settled:
    dice, limits = Random(seed), []
    for _ in range(windows):
        streams = limit.current()
        tpot_s = _tpot_s(streams)
        noisy_s = tpot_s * (1.0 + dice.gauss(0.0, 0.05))
        limit.observe(LimitReading(1.0, streams, 1_000, noisy_s, 0.0, 0, 20, None, None))
        limits.append(streams)
    settled = limits[windows // 3 :]
    rate = fmean(streams / _tpot_s(streams) for streams in settled)
    mean = fmean(settled)
    return Settled(mean, pstdev(settled) / mean, rate / (FEASIBLE / _tpot_s(FEASIBLE)), _tpot_s(round(mean)))


def _means(build: Callable[[int], Limit]) -> Settled:
    runs = [_settled(build(seed), seed) for seed in SEEDS]
    return Settled(*(fmean(column) for column in zip(*runs, strict=True)))


def test_vegas_halves_the_throughput() -> None:
    settled = _means(lambda _seed: VegasLimit())
    assert 20 < settled.limit < 40
    assert 0.45 < settled.tokens_share < 0.65


def test_probing_helps_vegas_and_not_enough() -> None:
    without = _means(lambda _seed: VegasLimit())
    probing = _means(lambda seed: VegasLimit(probes=True, seed=seed))
    assert without.tokens_share < probing.tokens_share < 0.9


def test_envoys_gradient_halves_the_throughput() -> None:
    settled = _means(lambda _seed: EnvoyLimit())
    assert 20 < settled.limit < 40
    assert 0.45 < settled.tokens_share < 0.65


def test_gradient2_runs_away() -> None:
    """Its own latency becomes its baseline: the SLO is broken several times over."""
    settled = _means(lambda _seed: Gradient2Limit())
    assert settled.limit > 600
    assert settled.tpot_s > 4 * SLO_S


@pytest.mark.parametrize("start", [FEASIBLE // 2, 10 * FEASIBLE], ids=["from half", "from ten times"])
def test_the_pinned_gradient_finds_what_is_feasible(start: int) -> None:
    settled = _means(lambda _seed: SloGradientLimit(SLO_S, 2_000, start))
    assert 0.9 * FEASIBLE < settled.limit < FEASIBLE
    assert settled.tokens_share > 0.95
    assert settled.tpot_s < SLO_S
    assert settled.cv < 0.05
