"""The isolation demo: its options, and how a run is judged by what its users saw."""

import pytest
from lab.demos.isolation import IsolationOptions, judged

from millgate.demos.users import Story, UserEnding

OPTIONS = IsolationOptions(run_s=10.0, time_scale=2.0)
# Real seconds, of which the engine's are twice as many: a first token after 0.8 s, then 40 ms a token.
GOOD = Story(
    UserEnding.WHOLE, first_token_s=0.4, total_s=0.4 + 99 * 0.02, prompt_tokens=300, output_tokens=100
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_users": 0}, "chat_users: must be from 1 to 64, got 0"),
        ({"long_users": 65}, "long_users: must be from 1 to 64, got 65"),
        ({"long_tokens": 10}, "long_tokens: must be from 1000 to 32000, got 10"),
        ({"run_s": 1.0}, "run_s: must be from 5 to 3600, got 1"),
        ({"time_scale": 11.0}, "time_scale: must be from 0.1 to 10"),
        ({"profile": "abacus"}, "profile: 'abacus' is not one of"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IsolationOptions(**options)  # type: ignore[arg-type]  # one wrong value at a time


def test_chat_is_good_whole_and_in_time_in_both_respects() -> None:
    chat = [
        GOOD,
        GOOD._replace(first_token_s=0.6, total_s=2.5),
        GOOD._replace(total_s=0.4 + 99 * 0.03),
        GOOD._replace(ending=UserEnding.GONE),
    ]
    run = judged("gate", chat, [], OPTIONS)

    assert (run.chat_requests, run.chat_good_share) == (4, 0.25)
    assert run.chat_tpot_p95_s == pytest.approx(0.06)
    assert run.chat_ttft_p95_s == pytest.approx(1.2)


def test_long_prompts_count_where_they_were_answered_and_refusals_by_reason() -> None:
    long = [
        GOOD._replace(prompt_tokens=4_000),
        GOOD._replace(prompt_tokens=4_000, ending=UserEnding.REFUSED, reasons=("too_late", "too_late")),
    ]
    run = judged("gate", [GOOD], long, OPTIONS)

    assert run.long_tokens_per_s == 400.0
    assert run.long_whole_share == 0.5
    assert run.long_refusals == {"too_late": 2}
    assert run.chat_refusals == {}
