"""Truths of prefill and decode apart: one request alone, a prefilling engine as M/D/1, and the bound of every pool."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import sqrt
from typing import Final

import numpy as np

from lab.bounds.pools import pool_bounds, prompt_step_s
from lab.engines.disaggregated import DisaggregatedPool
from lab.truths import formulas
from lab.truths.rows import MEAN_TOLERANCE, ValidationRow
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import find_profile
from millgate.sim.engines.handoffs import LinkSpeed
from millgate.sim.jobs import Job
from millgate.sim.loop import CLIENTS, Loop
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import steady

_PROMPT: Final = 2_000
# A step holds one prompt, so that a prefilling engine serves one after the other.
_PROFILE: Final = replace(
    find_profile("llama3-8b_h100_tp1"), max_num_batched_tokens=_PROMPT, max_num_seqs=128
)
_LINK: Final = LinkSpeed(setup_s=0.002, bytes_per_token=131_072.0, bytes_per_s=25e9)
_SLOW_LINK: Final = replace(_LINK, bytes_per_s=4e9)
_BATCHES: Final = 30
_LOAD: Final = 0.5
_REACHED: Final = 0.95
"""Share of a bound that an overloaded pool must reach; the rest are steps that are not full."""
_WINDOW_ERROR: Final = 1e-3
"""Answers end with a step: a minute's count of them is known to that share."""


def pool_rows(arrivals: int = 100_000) -> list[ValidationRow]:
    """Return every row; `arrivals` are counted at the prefilling engine."""
    return [_alone(), _waits(arrivals), *_bounds()]


class _Customers:
    """Sends equal requests at given times; keeps by request when its first token and its end came."""

    def __init__(self, pool_of: "_PoolShape", times: Iterator[float], output_tokens: int) -> None:
        self.loop = Loop()
        self.waits_s: list[float] = []
        self.finished_at: list[float] = []
        self._output_tokens = output_tokens
        self._asked_at: dict[int, float] = {}
        self._pool = pool_of(self.loop, self)
        self._times = times
        self._next(0)

    def first_token(self, attempt: int) -> None:
        """Note how long it took."""
        self.waits_s.append(self.loop.now - self._asked_at.pop(attempt))

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """Note the time."""
        del attempt, output_tokens, cached_tokens
        self.finished_at.append(self.loop.now)

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """No engine fails here."""

    def _next(self, attempt: int) -> None:
        at_s = next(self._times, None)
        if at_s is not None:
            self.loop.at(at_s, self._ask, attempt + 1, CLIENTS)

    def _ask(self, attempt: int) -> None:
        self._asked_at[attempt] = self.loop.now
        self._pool.start(attempt, Job(self.loop.now, _PROMPT, self._output_tokens))
        self._next(attempt)


class _PoolShape:
    """How many engines of each role, and the link between them."""

    def __init__(self, prefills: int = 1, decodes: int = 1, link: LinkSpeed = _LINK) -> None:
        self.prefills, self.decodes, self.link = prefills, decodes, link

    def __call__(self, loop: Loop, customers: _Customers) -> DisaggregatedPool:
        return DisaggregatedPool(
            "pool", loop, customers, _PROFILE, prefills=self.prefills, decodes=self.decodes, link=self.link
        )


def _unloaded_s() -> float:
    """Return the time to the first token of a request alone: its prompt, its way, and one step for its last token."""
    way_s = _LINK.transfer_s(_PROMPT) + _LINK.setup_s
    return prompt_step_s(_PROFILE, 0, _PROMPT) + way_s + prompt_step_s(_PROFILE, _PROMPT - 1, _PROMPT)


def _alone() -> ValidationRow:
    customers = _Customers(_PoolShape(), iter([0.0]), 1)
    customers.loop.run()
    expected, got = _unloaded_s(), customers.waits_s[0]
    name = "prefill and decode apart, one request alone: time to first token"
    return ValidationRow(name, abs(got - expected) <= 1e-9, expected, got, 0.0, 1)


def _waits(arrivals: int) -> ValidationRow:
    service_s = prompt_step_s(_PROFILE, 0, _PROMPT)
    warm_up = arrivals // _BATCHES
    times = islice(steady(_LOAD / service_s, Streams(1)), arrivals + warm_up)
    customers = _Customers(_PoolShape(), times, 1)
    customers.loop.run()
    counted = np.array(customers.waits_s[warm_up:])
    means = counted[: len(counted) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    got, stderr = float(means.mean()), float(means.std(ddof=1)) / sqrt(_BATCHES)
    expected = _unloaded_s() + service_s * formulas.mg1_wait(_LOAD, 0.0)
    ok = 3.0 * stderr <= MEAN_TOLERANCE * expected and abs(got - expected) <= 3.0 * stderr
    name = f"prefill and decode apart, prefill at {_LOAD:g} as M/D/1: mean time to first token"
    return ValidationRow(name, ok, expected, round(got, 6), round(stderr, 6), len(counted))


def _bounds() -> Iterator[ValidationRow]:
    """Ask each pool in turn for more than it can do, the others for less: what comes out is its bound, nearly."""
    for name, shape, output_tokens in (
        ("prefill", _PoolShape(1, 4), 40),
        ("link", _PoolShape(4, 4, _SLOW_LINK), 40),
        ("decode", _PoolShape(8, 1), 400),
    ):
        bounds = pool_bounds(
            _PROFILE, _PROMPT, output_tokens, prefills=shape.prefills, decodes=shape.decodes, link=shape.link
        )
        expected = bounds.least_per_s
        times = islice(steady(1.3 * expected, Streams(1)), 4_000)
        customers = _Customers(shape, times, output_tokens)
        customers.loop.run()
        ended = customers.finished_at
        begin, end = len(ended) // 4, 3 * len(ended) // 4
        got = (end - begin) / (ended[end] - ended[begin])
        ok = _REACHED * expected <= got <= expected * (1.0 + _WINDOW_ERROR)
        yield ValidationRow(
            f"prefill and decode apart, {name} overloaded: requests a second, at most",
            ok,
            expected,
            round(got, 6),
            0.0,
            len(ended),
        )
