"""Records of the quick constructors equal those of the plain ones, field by field and in every type."""

from hypothesis import given, strategies as some

from millgate.core.decisions import Admit, Candidate, Classed, Ended, Leg, Reshaped, Yield
from millgate.core.events import Arrived
from millgate.core.fast_records import make_admit, make_arrived, make_ended, make_leg, make_yield
from millgate.core.words import ClassedBy, FailureKind, Outcome, Reason

_numbers = some.integers(0, 1 << 40)
_seconds = some.floats(0.0, 1e9)
_words = some.text(max_size=5)
CLASSED = Classed("long", ClassedBy.PROMPT, 9000, 6.5, 5.0)


def _assert_equal(quick: tuple[object, ...], plain: tuple[object, ...]) -> None:
    assert type(quick) is type(plain)
    assert quick == plain
    assert [type(each) for each in quick] == [type(each) for each in plain]


@given(
    _numbers, _words, some.none() | _words, some.none() | _numbers, some.booleans(), some.none() | _seconds
)
def test_an_arrival(
    number: int, tenant: str, lane: str | None, most: int | None, stream: bool, allowed_s: float | None
) -> None:
    fields = {
        "tenant": tenant,
        "lane": lane,
        "model": "m",
        "prompt_bytes": 1,
        "body_bytes": 2,
        "max_tokens": most,
        "answers": 3,
        "stream": stream,
        "time_allowed_s": allowed_s,
        "retry_count": 4,
        "min_tokens": 5,
        "fixed_tokens": 6,
        "prompt_shape": (1, 0, 9, 2, 3, 4, 0),
        "fingerprint": lambda: 7,
        "marks": lambda: ((8, 9),),
        "session": 10,
        "of_agent": not stream,
    }
    _assert_equal(make_arrived(number, **fields), Arrived(number, **fields))  # type: ignore[arg-type]


@given(_numbers, _words, _seconds, _seconds, _seconds, some.none() | _seconds)
def test_an_admission(
    number: int, engine: str, waited_s: float, ttft_s: float, by: float, due_at: float | None
) -> None:
    _assert_equal(make_leg(engine, 1, number, 3), Leg(engine, 1, number, 3))
    for reshaped, classed in ((None, None), (Reshaped(engine, 5), CLASSED)):
        quick = make_admit(
            number,
            make_leg(engine, 1, 2, 3),
            waited_s=waited_s,
            expected_ttft_s=ttft_s,
            first_event_by=by,
            reshaped=reshaped,
            due_at=due_at,
            classed=classed,
            candidates=(Candidate(engine, 1, 3, 2.0),),
            first_seen=7.0,
        )
        plain = Admit(
            number,
            (Leg(engine, 1, 2, 3),),
            waited_s,
            ttft_s,
            by,
            reshaped=reshaped,
            due_at=due_at,
            classed=classed,
            candidates=(Candidate(engine, 1, 3, 2.0),),
            first_seen=7.0,
        )
        _assert_equal(quick, plain)


@given(_numbers, some.sampled_from(Reason), some.booleans(), _seconds, _seconds, _seconds, _seconds)
def test_a_refusal(
    number: int, reason: Reason, retry: bool, hint_s: float, value: float, bound: float, first_seen: float
) -> None:
    for classed in (None, CLASSED):
        quick = make_yield(
            number,
            reason,
            hint_s,
            retry=retry,
            value=value,
            bound=bound,
            first_seen=first_seen,
            classed=classed,
        )
        plain = Yield(number, reason, hint_s, retry, value, bound, first_seen, classed=classed)
        _assert_equal(quick, plain)


@given(_numbers, some.sampled_from(Outcome), some.none() | _words, _seconds, some.none() | _seconds)
def test_an_end(
    number: int, outcome: Outcome, engine: str | None, total_s: float, ttft_s: float | None
) -> None:
    for cause in (None, Reason.QUOTA, FailureKind.BROKEN):
        quick = make_ended(
            number,
            outcome,
            lane="lane",
            engine=engine,
            waited_s=1.0,
            total_s=total_s,
            ttft_s=ttft_s,
            prompt_tokens=2,
            output_tokens=3,
            cause=cause,
        )
        _assert_equal(quick, Ended(number, outcome, "lane", engine, 1.0, total_s, ttft_s, 2, 3, cause))
