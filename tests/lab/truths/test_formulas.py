"""Closed forms against published numbers."""

import pytest

from lab.truths import formulas
from millgate.sim.calculator import erlang_b, erlang_c


@pytest.mark.parametrize(
    ("servers", "offered", "lost"),
    [
        (10, 8.0, 0.121661),
        (4, 3.2, 0.228145),
        (32, 28.0, 0.066498),
        (100, 90.0, 0.026957),
        (10, 20.0, 0.537963),
    ],
)
def test_erlang_b(servers: int, offered: float, lost: float) -> None:
    assert erlang_b(servers, offered) == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize(
    ("servers", "offered", "waits", "wait"),
    [(10, 8.0, 0.409180, 0.204590), (4, 3.2, 0.596432, 0.745541), (100, 90.0, 0.216940, 0.021694)],
)
def test_erlang_c(servers: int, offered: float, waits: float, wait: float) -> None:
    assert erlang_c(servers, offered) == pytest.approx(waits, abs=1e-6)
    assert formulas.erlang_c_wait(servers, offered) == pytest.approx(wait, abs=1e-6)


@pytest.mark.parametrize(
    ("servers", "places", "offered", "blocked", "sojourn"),
    [(4, 8, 3.2, 0.060728, 1.2592), (4, 20, 4.8, 0.171910, 3.9247), (10, 30, 12.0, 0.168637, 2.5346)],
)
def test_finite_queues(servers: int, places: int, offered: float, blocked: float, sojourn: float) -> None:
    assert formulas.mmck(servers, places, offered) == pytest.approx((blocked, sojourn), abs=1e-4)


@pytest.mark.parametrize(
    ("offered", "impatience", "leaves"),
    [(8.0, 0.2, 0.02296), (8.0, 5.0, 0.08726), (12.0, 1.0, 0.21363), (20.0, 5.0, 0.51000)],
)
def test_impatience(offered: float, impatience: float, leaves: float) -> None:
    assert formulas.erlang_a_abandon(10, offered, impatience) == pytest.approx(leaves, abs=1e-5)


def test_single_servers_retrials_and_retries() -> None:
    assert formulas.mm1_sojourn(0.9) == pytest.approx(10.0)
    assert formulas.mm1_sojourn_beyond(0.8, 23.03) == pytest.approx(0.01, rel=1e-3)
    assert formulas.mg1_wait(0.8, 4.0) == pytest.approx(10.0)
    assert formulas.retrial_orbit(0.8, 0.1) == pytest.approx(35.2)
    assert formulas.attempts_per_request(0.5, 2) == 1.75
    assert formulas.finite_source(1, 6.0) == pytest.approx(1.0)


def test_lru_of_equally_popular_objects_finds_the_share_that_it_holds() -> None:
    assert formulas.lru_hit_share([1.0] * 1000, 250) == pytest.approx(0.25, abs=1e-6)
    assert formulas.lru_hit_share([1.0] * 10, 10) == 1.0


def test_lru_finds_more_of_skewed_references_and_little_when_small() -> None:
    shares = [rank**-0.8 for rank in range(1, 1001)]

    assert formulas.lru_hit_share(shares, 1) < 0.02
    assert formulas.lru_hit_share(shares, 100) > 0.25


@pytest.mark.parametrize(("memory", "share"), [(9.0, 1.0), (8.0, 1.0), (7.75, 0.75), (7.0, 0.0), (3.0, 0.0)])
def test_eight_contexts_in_turn(memory: float, share: float) -> None:
    assert formulas.cyclic_hit_share(8, memory) == share
