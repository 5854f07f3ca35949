"""Named constructors of the records that every request builds: the same records for half of the time.

The constructor of a named tuple is an interpreted function, also where everything else is compiled. An arrival's record costs
0.7 us here and 1.25 us there (`python -m bench.core`), and a request builds four of them here.
"""

from collections.abc import Callable
from typing import Any, Final

from millgate.core.decisions import Admit, Candidate, Cause, Classed, Ended, Leg, Reshaped, Yield
from millgate.core.events import Arrived, PrefixMarks, PromptShape
from millgate.core.words import Outcome, Reason

# Compiled, a name from elsewhere is looked up each time it is used, and a constant is not.
_new: Final = tuple.__new__
_ADMIT: Final = Admit
_ARRIVED: Final = Arrived
_ENDED: Final = Ended
_LEG: Final = Leg
_YIELD: Final = Yield


def number_of(record: tuple[Any, ...]) -> Any:
    """Return the attempt of a record, its first field, as the object that it is.

    Read by its name it would be an integer of the machine, and be made into an object again for every dictionary.
    """
    return record[0]


def make_arrived(
    attempt: int,
    *,
    tenant: str,
    lane: str | None,
    model: str,
    prompt_bytes: int,
    body_bytes: int,
    max_tokens: int | None,
    answers: int,
    stream: bool,
    time_allowed_s: float | None,
    retry_count: int | None,
    min_tokens: int,
    fixed_tokens: int,
    prompt_shape: PromptShape | None,
    fingerprint: Callable[[], int],
    marks: Callable[[], PrefixMarks] | None,
    session: int | None,
    of_agent: bool,
) -> Arrived:
    """Return an `Arrived` of which no door knows more than this."""
    return _new(
        _ARRIVED,
        (
            attempt,
            tenant,
            lane,
            model,
            prompt_bytes,
            body_bytes,
            max_tokens,
            answers,
            stream,
            time_allowed_s,
            retry_count,
            None,
            None,
            None,
            False,
            min_tokens,
            fixed_tokens,
            None,
            False,
            0.0,
            False,
            False,
            False,
            of_agent,
            prompt_shape,
            fingerprint,
            marks,
            session,
        ),
    )


def make_leg(engine: str, streams: int, kv_tokens: int, prompt_tokens: int) -> Leg:
    """Return a `Leg`."""
    return _new(_LEG, (engine, streams, kv_tokens, prompt_tokens))


def make_admit(
    attempt: int,
    only_leg: Leg,
    *,
    waited_s: float,
    expected_ttft_s: float,
    first_event_by: float,
    reshaped: Reshaped | None,
    due_at: float | None,
    classed: Classed | None,
    candidates: tuple[Candidate, ...],
    first_seen: float,
) -> Admit:
    """Return an `Admit` of one leg, without quotas."""
    return _new(
        _ADMIT,
        (
            attempt,
            (only_leg,),
            waited_s,
            expected_ttft_s,
            first_event_by,
            None,
            reshaped,
            (),
            due_at,
            0.0,
            classed,
            candidates,
            first_seen,
            False,
        ),
    )


def make_yield(
    attempt: int,
    reason: Reason,
    retry_after_s: float,
    *,
    retry: bool,
    value: float,
    bound: float,
    first_seen: float,
    classed: Classed | None,
) -> Yield:
    """Return a `Yield`, without quotas."""
    return _new(
        _YIELD, (attempt, reason, retry_after_s, retry, value, bound, first_seen, (), None, 0.0, classed)
    )


def make_ended(
    attempt: int,
    outcome: Outcome,
    *,
    lane: str,
    engine: str | None,
    waited_s: float,
    total_s: float,
    ttft_s: float | None,
    prompt_tokens: int,
    output_tokens: int,
    cause: Cause,
    cached_tokens: int | None = None,
) -> Ended:
    """Return an `Ended`."""
    return _new(
        _ENDED,
        (
            attempt,
            outcome,
            lane,
            engine,
            waited_s,
            total_s,
            ttft_s,
            prompt_tokens,
            output_tokens,
            cause,
            cached_tokens,
        ),
    )
