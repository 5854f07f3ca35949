"""Every truth: a formula, the queue that must obey it, and how many arrivals it takes to tell.

The numbers of arrivals were chosen so that three standard errors are within the tolerance: 1 % of a mean at a load
of 0.8 or less, 2 % of anything else. Where it helps, a mean is corrected by what is known of its own run. That is
by how much the drawn gaps, services and their squares missed their true means (control variates, Lavenberg and Welch,
Management Science 1981).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log, log1p, sqrt

import numpy as np

from lab.laws import erlang, hyperexponential
from lab.truths import formulas
from lab.truths.queue import Column, Tally, TruthQueue, observe
from millgate.core.decisions import Yield
from millgate.sim.calculator import erlang_b, erlang_c
from millgate.sim.clients.retry_behaviour import SDK_RETRIES, Sdk
from millgate.sim.laws import constant, exponential, lognormal
from millgate.sim.randomness import Draws

MEAN_TOLERANCE, SHARE_TOLERANCE = 0.01, 0.02


@dataclass(frozen=True, slots=True)
class Orbiting:
    """Tries again after an exponential time, for ever: the classical retrial queue."""

    mean_s: float
    labels: bool = False

    def after_yield(self, decision: Yield, attempts: int, dice: Draws) -> float | None:
        """Return an exponential time; `dice` must be uniform."""
        del decision
        return self.after_failure(attempts, dice)

    def after_failure(self, attempts: int, dice: Draws) -> float | None:
        """Return an exponential time."""
        del attempts
        return -self.mean_s * log1p(-dice.next())


@dataclass(frozen=True, slots=True)
class Measure:
    """A ratio of two columns of a tally, and the formula's value; `tolerance` bounds three standard errors."""

    name: str
    over: str
    under: str
    expected: float
    tolerance: float = SHARE_TOLERANCE


@dataclass(frozen=True, slots=True)
class Truth:
    """One queue and everything that is known of it."""

    name: str
    queue: TruthQueue
    arrivals: int
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One line of the validation table; `n` counts arrivals."""

    name: str
    ok: bool
    expected: float
    got: float
    stderr: float
    n: int


# Two independent runs of every truth, so that two processors share even the longest one.
PARTS = 2


def run_part(index: int, part: int, scale: float = 1.0) -> Tally:
    """Run one part of the truth at this place of `all_truths`, with `scale` times its arrivals.

    Every part has a seed of its own: with common ones the rows would be right or wrong together.
    """
    truth = all_truths()[index]
    return observe(truth.queue, 1 + index * PARTS + part, round(truth.arrivals * scale / PARTS))


def judge(truth: Truth, tallies: Sequence[Tally]) -> list[ValidationRow]:
    """Return the rows of one truth from independent runs of it."""
    count = int(sum(tally.column("arrivals").sum() for tally in tallies))
    controls = _controls(truth.queue, tallies)
    rows = []
    for measure in truth.measures:
        values = np.concatenate(
            [tally.column(measure.over) / np.maximum(1.0, tally.column(measure.under)) for tally in tallies]
        )
        got, stderr = _estimate(values, controls)
        exact_enough = 3.0 * stderr <= measure.tolerance * measure.expected
        ok = bool(exact_enough and abs(got - measure.expected) <= 3.0 * stderr)
        rows.append(
            ValidationRow(
                f"{truth.name}: {measure.name}", ok, measure.expected, round(got, 6), round(stderr, 6), count
            )
        )
    return rows


def _controls(queue: TruthQueue, tallies: Sequence[Tally]) -> Column:
    """Return by batch how far gaps, services and squared services missed their true means."""
    law = queue.service
    columns = []
    for tally in tallies:
        served = np.maximum(1.0, tally.column("served"))
        missed = [
            tally.column("gap") / tally.column("arrivals") - 1.0 / queue.rate,
            tally.column("service") / served - law.mean,
            tally.column("service2") / served - law.mean**2 * (1.0 + law.cv2),
        ]
        columns.append(np.stack(missed, axis=1))
    return np.concatenate(columns)


def _estimate(values: Column, controls: Column) -> tuple[float, float]:
    """Return mean and standard error of batch values, corrected by regression on the controls."""
    kept = controls[:, controls.std(axis=0) > 1e-12]
    design = np.column_stack([np.ones(len(values)), kept])
    solution, *_ = np.linalg.lstsq(design, values, rcond=None)
    rest = values - design @ solution
    variance = float(rest @ rest) / (len(values) - design.shape[1])
    spread = np.linalg.inv(design.T @ design)[0, 0]
    return float(solution[0]), sqrt(max(0.0, variance * float(spread)))


def _mean_sojourn(expected: float, tolerance: float = MEAN_TOLERANCE) -> Measure:
    return Measure("mean time in the system", "sojourn", "answered", expected, tolerance)


def _share(name: str, over: str, expected: float) -> Measure:
    return Measure(name, over, "arrivals", expected)


def _mm1(load: float, arrivals: int) -> Truth:
    median = log(2.0) / (1.0 - load)
    return Truth(
        f"M/M/1 at {load:g}",
        TruthQueue(load, mark_s=median),
        arrivals,
        (
            _mean_sojourn(formulas.mm1_sojourn(load)),
            _share("share that waits", "waited", load),
            _share("share beyond the median", "stayed beyond", formulas.mm1_sojourn_beyond(load, median)),
        ),
    )


def _mg1(name: str, queue: TruthQueue, arrivals: int) -> Truth:
    wait = formulas.mg1_wait(queue.rate, queue.service.cv2)
    return Truth(
        f"M/G/1 ({name}) at {queue.rate:g}",
        queue,
        arrivals,
        (_mean_sojourn(1.0 + wait), _share("share that waits", "waited", queue.rate)),
    )


def _erlang_b(name: str, queue: TruthQueue, arrivals: int) -> Truth:
    lost = erlang_b(queue.servers, queue.rate)
    return Truth(
        f"Erlang B ({queue.servers}, {queue.rate:g}), {name}",
        queue,
        arrivals,
        (_share("share refused", "yielded", lost),),
    )


def _erlang_c(
    servers: int, offered: float, engines: int, arrivals: int, chosen: Collection[str] = ()
) -> Truth:
    """Return M/M/c, all its measures or the chosen ones (some take far more arrivals than others)."""
    mark = 0.2 / (servers - offered)
    measures = (
        _mean_sojourn(1.0 + formulas.erlang_c_wait(servers, offered)),
        _share("share that waits", "waited", erlang_c(servers, offered)),
        _share(
            "share that waits long", "waited beyond", formulas.erlang_c_wait_beyond(servers, offered, mark)
        ),
    )
    return Truth(
        f"Erlang C ({servers}, {offered:g}) on {engines} engine{'s' if engines > 1 else ''}",
        TruthQueue(offered, servers=servers, engines=engines, mark_s=mark),
        arrivals,
        tuple(measure for measure in measures if not chosen or measure.name in chosen),
    )


def _mmck(servers: int, places: int, offered: float, arrivals: int) -> Truth:
    blocked, sojourn = formulas.mmck(servers, places, offered)
    tolerance = MEAN_TOLERANCE if offered <= 0.8 * servers else SHARE_TOLERANCE
    return Truth(
        f"M/M/{servers}/{places} at {offered:g}",
        TruthQueue(offered, servers=servers, max_queue=places - servers),
        arrivals,
        (_share("share refused", "yielded", blocked), _mean_sojourn(sojourn, tolerance)),
    )


def _erlang_a(offered: float, impatience: float, arrivals: int) -> Truth:
    return Truth(
        f"Erlang A (10, {offered:g}), patience {1.0 / impatience:g}",
        TruthQueue(offered, servers=10, patience=exponential(1.0 / impatience)),
        arrivals,
        (_share("share that leaves", "client_gone", formulas.erlang_a_abandon(10, offered, impatience)),),
    )


def _retrial(load: float, retry_rate: float, arrivals: int) -> Truth:
    orbit = formulas.retrial_orbit(load, retry_rate)
    return Truth(
        f"M/M/1 with retrials at {load:g}, rate {retry_rate:g}",
        TruthQueue(load, max_queue=0, retry_behaviour=Orbiting(1.0 / retry_rate)),
        arrivals,
        (
            Measure("mean time in orbit of the refused", "wait", "returned", orbit / load**2, MEAN_TOLERANCE),
            _share("share refused at first", "returned", load),
        ),
    )


def _shared(name: str, queue: TruthQueue, arrivals: int) -> Truth:
    stretch = 1.0 / (1.0 - queue.rate)
    return Truth(
        f"M/G/1 shared ({name}) at {queue.rate:g}",
        queue,
        arrivals,
        (_mean_sojourn(stretch), Measure("mean slowdown", "slowdown", "answered", stretch, MEAN_TOLERANCE)),
    )


def _finite(users: int, think: float, arrivals: int) -> Truth:
    return Truth(
        f"M/M/1 for {users} users who think {think:g}",
        TruthQueue(1.0, users=users, think=exponential(think)),
        arrivals,
        (_mean_sojourn(formulas.finite_source(users, think), SHARE_TOLERANCE),),
    )


def _failing(failure: float, arrivals: int) -> Truth:
    expected = formulas.attempts_per_request(failure, SDK_RETRIES)
    return Truth(
        f"{SDK_RETRIES} retries when {failure:.0%} of the attempts fail",
        TruthQueue(0.5, servers=64, failure=failure, retry_behaviour=Sdk()),
        arrivals,
        (
            Measure("attempts per request", "attempts", "arrivals", expected, MEAN_TOLERANCE),
            _share("share that fails for good", "engine_failed", failure ** (SDK_RETRIES + 1)),
        ),
    )


def all_truths() -> tuple[Truth, ...]:
    """Return every truth, the longest first so that two processes end together."""
    return (
        _mg1("hyperexponential 4", TruthQueue(0.3, hyperexponential(1.0, 4.0)), 700_000),
        _shared(
            "hyperexponential 4", TruthQueue(0.4, hyperexponential(1.0, 4.0), 4096, shared=True), 700_000
        ),
        _mmck(1, 5, 0.8, 500_000),
        _retrial(0.3, 1.0, 650_000),
        _erlang_a(8.0, 5.0, 450_000),
        _erlang_c(10, 8.0, 1, 430_000, {"share that waits"}),
        _mm1(0.5, 500_000),
        _erlang_c(4, 2.4, 4, 420_000),
        _erlang_b("lognormal 4", TruthQueue(8.0, lognormal(1.0, 4.0), 10, max_queue=0), 260_000),
        _shared("exponential", TruthQueue(0.4, servers=4096, shared=True), 230_000),
        _failing(0.5, 210_000),
        _mg1("erlang 4", TruthQueue(0.5, erlang(1.0, 4)), 190_000),
        _erlang_b("exponential", TruthQueue(8.0, servers=10, max_queue=0), 170_000),
        _erlang_b("deterministic", TruthQueue(8.0, constant(1.0), 10, max_queue=0), 170_000),
        _mm1(0.3, 130_000),
        _mmck(4, 20, 4.8, 120_000),
        _mmck(10, 30, 12.0, 110_000),
        _erlang_c(10, 7.0, 1, 110_000, {"mean time in the system"}),
        _mg1("deterministic", TruthQueue(0.5, constant(1.0)), 160_000),
        _mmck(1, 10, 1.2, 80_000),
        _erlang_a(12.0, 0.2, 80_000),
        _erlang_b("exponential", TruthQueue(120.0, servers=100, max_queue=0), 200_000),
        _finite(8, 6.0, 60_000),
        _erlang_a(12.0, 1.0, 50_000),
        _erlang_b("exponential", TruthQueue(3.2, servers=4, max_queue=0), 50_000),
        _erlang_b("exponential", TruthQueue(15.0, servers=10, max_queue=0), 30_000),
        _erlang_a(20.0, 5.0, 30_000),
    )
