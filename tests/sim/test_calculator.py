"""The sizing calculator says what Little, Erlang, Allen and Cunneen and the rules of thumb say."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from lab.truths.formulas import mg1_wait

from millgate.engine.profile import find_profile
from millgate.sim.calculator import (
    Latency,
    Load,
    Row,
    advise,
    erlang_c,
    mean_wait_s,
    picture,
    streams_for,
    waiting,
)

_CHAT = Load(50.0, Latency(4.0))


def _rows(load: Load, profile: str | None = None) -> dict[str, Row]:
    chosen = None if profile is None else find_profile(profile)
    return {row.name: row for row in advise(load, 10.0, chosen)}


def _of(rows: dict[str, Row], name: str) -> tuple[float, float]:
    return rows[name].square_root, rows[name].twice


@pytest.mark.parametrize("load", [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0])
def test_hardly_anybody_waits_with_the_advised_streams(load: float) -> None:
    assert erlang_c(streams_for(load), load) < (0.045 if load >= 5.0 else 0.1)


def test_both_rules_stand_side_by_side_with_what_each_bears() -> None:
    rows = _rows(_CHAT)

    assert _of(rows, "mean streams") == (200.0, 200.0)
    assert _of(rows, "max_inflight, all engines") == (229, 400)
    assert _of(rows, "latency may grow") == pytest.approx((1.145, 2.0))
    assert _of(rows, "share refused, x 2") == pytest.approx((1.0 - 229 / 400, 0.0))
    assert _of(rows, "max_queue") == (573, 1000)
    assert all(row.why for row in rows.values())


def test_what_if_latency_grows_by_another_factor() -> None:
    rows = _rows(Load(50.0, Latency(4.0), latency_factor=1.1))

    assert _of(rows, "share refused, x 1.1") == (0.0, 0.0)
    assert _of(rows, "share that waits, x 1.1")[0] == pytest.approx(erlang_c(229, 220.0))


def test_quantiles_name_the_lognormal_law_that_has_them() -> None:
    latency = Latency.of_quantiles(3.0, 9.0)
    deviation = sqrt(np.log1p(latency.cv**2))
    middle = log(latency.mean_s) - deviation**2 / 2.0

    assert exp(middle) == pytest.approx(3.0)
    assert exp(middle + 1.6449 * deviation) == pytest.approx(9.0)


def test_quantiles_of_drawn_latencies_find_their_mean_and_variation() -> None:
    drawn = np.random.default_rng(5).lognormal(0.7, 0.9, 400_000)
    latency = Latency.of_quantiles(*np.quantile(drawn, (0.5, 0.95)))

    assert latency.mean_s == pytest.approx(drawn.mean(), rel=0.02)
    assert latency.cv == pytest.approx(drawn.std() / drawn.mean(), rel=0.03)


@pytest.mark.parametrize(("p50_s", "p95_s"), [(2.0, 1.0), (2.0, 2.0), (0.0, 1.0)])
def test_quantiles_in_the_wrong_order_are_refused(p50_s: float, p95_s: float) -> None:
    with pytest.raises(ValueError, match="must be above the p50"):
        Latency.of_quantiles(p50_s, p95_s)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0])
def test_the_mean_wait_for_one_stream_is_that_of_pollaczek_and_khinchine(cv: float) -> None:
    assert mean_wait_s(1, 0.15, Latency(4.0, cv)) == pytest.approx(4.0 * mg1_wait(0.6, cv**2))


def test_no_fewer_wait_while_latency_grows() -> None:
    shares = [place.metrics["waits_share"].mean for place in picture(_CHAT).places if "229" in place.series]

    assert shares == sorted(shares)
    assert shares[-1] == waiting(229, inf) == 1.0


def test_engines_are_what_streams_memory_and_work_need() -> None:
    rows = _rows(_CHAT, "llama3-8b_h100_tp1")

    assert _of(rows, "KV tokens") == (229 * 1125.0, 400 * 1125.0)
    assert _of(rows, "engines for the streams") == (1, 2)
    assert _of(rows, "engines for the work") == _of(rows, "engines") == (3, 3)
    assert _of(rows, "max_inflight, each engine") == (77, 134)


def test_long_contexts_need_engines_for_their_memory() -> None:
    rows = _rows(Load(1.0, Latency(40.0), prompt_tokens=50_000.0), "llama3-8b_h100_tp1")

    assert _of(rows, "engines") == _of(rows, "engines for the KV tokens") == (7, 10)
