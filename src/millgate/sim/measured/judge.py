"""Replays a measured run and says how far off it is, before and after one number is fitted.

The rules of the replay are vLLM V1's, as `engine.batching` has them; only the step times are the run's own. Errors
are signed shares of the measured mean: -0.2 says that the replay is a fifth too fast. The one number is a host
overhead per step. It is fitted on the requests of the first half of the arrivals so that their mean time to the
last token is right. It is judged on the others, with nothing told of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from millgate.engine.batching import Batch
from millgate.engine.sequences import EngineSequence, EventKind
from millgate.sim.measured.model import KernelModel
from millgate.sim.measured.record import Served
from millgate.sim.measured.run import MeasuredRun
from millgate.sim.measured.tables import MeasuredError

# Twice the host overhead of the slowest engine seen, transformers' continuous batching; below nothing the tables were
# too slow, by at most this share of the shortest step.
_MOST_MS = 100.0
_MOST_TOO_SLOW = 0.5
_PRECISION_MS = 0.01


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed relative errors of means, and of the time from first arrival to last token."""

    ttft: float
    tpot: float
    e2e: float
    makespan: float


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """`errors` with no fitted number over all requests; `fitted` on the second half of the arrivals."""

    errors: Errors
    overhead_ms: float
    fitted: Errors

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {
            "errors": asdict(self.errors),
            "fitted": {"overhead_ms": self.overhead_ms, "errors": asdict(self.fitted)},
        }


def judge(run: MeasuredRun) -> ReplayVerdict:
    """Replay the run without and with the fitted overhead."""
    half = len(run.served) // 2
    plain = replay(run, run.model)

    def too_slow(overhead_ms: float) -> float:
        again = replay(run, run.model.with_overhead(overhead_ms / 1e3))
        return compare(run.served[:half], again[:half]).e2e

    least_ms = -_MOST_TOO_SLOW * 1e3 * run.model.decode_steps_s(1, 1, 1)
    overhead_ms = _root(too_slow, least_ms, _MOST_MS)
    fitted = replay(run, run.model.with_overhead(overhead_ms / 1e3))
    return ReplayVerdict(
        compare(run.served, plain), round(overhead_ms, 2), compare(run.served[half:], fitted[half:])
    )


def replay(run: MeasuredRun, model: KernelModel) -> tuple[Served, ...]:
    """Return the same requests with simulated times."""
    batch = Batch(model, run.limits)
    firsts: dict[int, float] = {}
    lasts: dict[int, float] = {}

    def until(time_s: float) -> None:
        for event in batch.advance(time_s):
            if event.kind is EventKind.FIRST_TOKEN:
                firsts[event.sequence_id] = event.at_s
            elif event.kind is EventKind.FINISHED:
                lasts[event.sequence_id] = event.at_s

    for number, row in enumerate(run.served):
        until(row.queued_s)
        batch.add(EngineSequence(number, row.prompt_tokens, row.output_tokens), row.queued_s)
    while batch.running or batch.waiting:
        until(batch.next_event_at)
    return tuple(
        row._replace(first_token_s=firsts[number], last_token_s=lasts[number])
        for number, row in enumerate(run.served)
    )


def compare(measured: Sequence[Served], simulated: Sequence[Served]) -> Errors:
    """Return how far off the simulated times are."""

    def error(value: Callable[[Sequence[Served]], float]) -> float:
        return round(value(simulated) / value(measured) - 1.0, 4)

    return Errors(ttft=error(_ttft), tpot=error(_tpot), e2e=error(_e2e), makespan=error(_makespan))


def _ttft(rows: Sequence[Served]) -> float:
    return sum(row.first_token_s - row.queued_s for row in rows) / len(rows)


def _tpot(rows: Sequence[Served]) -> float:
    paces = [
        (row.last_token_s - row.first_token_s) / (row.output_tokens - 1)
        for row in rows
        if row.output_tokens > 1
    ]
    if not any(paces):
        raise MeasuredError("__requests.jsonl: no answer of one half goes on after its first token")
    return sum(paces) / len(paces)


def _e2e(rows: Sequence[Served]) -> float:
    return sum(row.last_token_s - row.queued_s for row in rows) / len(rows)


def _makespan(rows: Sequence[Served]) -> float:
    return max(row.last_token_s for row in rows) - min(row.queued_s for row in rows)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function crosses zero, or the nearer end."""
    while high - low > _PRECISION_MS:
        middle = (low + high) / 2
        if function(middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
