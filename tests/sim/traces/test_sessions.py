"""Sessions: recorded ones read, drawn ones made, and what of their prompts could be found again."""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import fmean

import pytest
from lab.agents.generated_sessions import drawn_sessions
from lab.agents.renumbering import renumbered
from lab.bounds.shared_cache import SharedCache, shared_hit_share

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.sources import MOST_UNITS, open_trace, read_mooncake, read_sessions
from millgate.sim.traces.tables import TraceError

RECORDED = "traces/claude_code_sessions.jsonl"
ONE = (
    '{"session": 7, "block_tokens": 512, "requests": ['
    '{"t": 0, "in": 1030, "out": 600, "think_s": null, "blocks": [[0, 2]]},'
    '{"t": 9.5, "in": 600, "out": 5, "think_s": 0.5, "depth": 1, "blocks": [[4, 1]]},'
    '{"t": 20, "in": 2100, "out": 0, "think_s": 3, "blocks": [[0, 3], [5, 1]]}]}\n'
)


def test_a_session_is_read_turn_by_turn(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(ONE)
    ((number, turns),) = read_sessions(path)
    first = MOST_UNITS

    assert number == 1
    assert [turn.think_s for turn in turns] == [0.0, 0.5, 3.0]
    assert [(turn.job.prompt_tokens, turn.job.output_tokens) for turn in turns] == [
        (1030, 600),
        (600, 5),
        (2100, 1),
    ]
    # 1,030 + 600 tokens are three full units; the third is named by the parent's next prompt.
    assert turns[0].job.prefix_ids == (first, first + 1, first + 2)
    assert turns[1].job.prefix_ids == (first + 4,)
    assert turns[2].job.prefix_ids == (first, first + 1, first + 2, first + 5)


def test_sessions_of_a_file_have_nothing_in_common(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(ONE + ONE)
    one, other = read_sessions(path)

    assert renumbered(one, 2) == other
    assert not set(one.turns[2].job.prefix_ids) & set(other.turns[2].job.prefix_ids)


def test_sessions_of_hours_come_as_often_as_asked_from_the_first_minute_on(
    shared_data: Callable[[str], Path],
) -> None:
    """At 5 a second 7 requests came in the first minute, and 303 in the first ten: each session began with its first turn."""
    jobs = list(open_trace(str(shared_data(RECORDED)), Streams(1), 5.0, 0.0))
    minutes = Counter(int(job.at_s // 60.0) for job in jobs)

    assert [minutes[minute] / 60.0 for minute in range(80)] == pytest.approx([5.0] * 80, rel=0.4)
    assert len(jobs) / jobs[-1].at_s == pytest.approx(5.0, rel=0.01)


def test_what_a_session_goes_on_with_at_the_beginning_is_a_session_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(ONE + ONE)
    jobs = list(open_trace(str(path), Streams(1), 6 / 19.0, 0.0))
    known = {job.session: {unit // MOST_UNITS for unit in job.prefix_ids} for job in jobs}

    assert (len(jobs), len(known)) == (6, 4)
    assert known == {number: {number} for number in known}


def test_a_file_of_sessions_is_recognised_and_comes_as_often_as_asked(
    shared_data: Callable[[str], Path],
) -> None:
    jobs = list(open_trace(str(shared_data(RECORDED)), Streams(1), 10.0, 0.0))

    assert len(jobs) == 24_108
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"requests": []}\n', "s.jsonl:1: not a session"),
        ('{"block_tokens": 64, "requests": []}\n', "s.jsonl:1: block_tokens: must be 512"),
        (ONE + '{"block_tokens": 512, "requests": [{"t": -1}]}\n', "s.jsonl:2: not a session"),
    ],
)
def test_a_bad_session_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        list(read_sessions(path))


def test_the_recorded_sessions_are_what_their_readme_says(shared_data: Callable[[str], Path]) -> None:
    sessions = list(read_sessions(shared_data(RECORDED)))
    jobs = [turn.job for session in sessions for turn in session.turns]

    assert (len(sessions), len(jobs)) == (360, 24_108)
    assert fmean(job.prompt_tokens for job in jobs) == pytest.approx(128_000, rel=0.01)
    assert all(len(job.prefix_ids) >= job.prompt_tokens // PREFIX_UNIT_TOKENS for job in jobs)
    assert shared_hit_share(jobs) == pytest.approx(0.966, abs=0.001)


@pytest.mark.parametrize(
    ("trace", "share"), [("mooncake_conversation_trace.jsonl", 0.374), ("synthetic_trace.jsonl", 0.651)]
)
def test_a_cache_without_end_finds_the_known_share_of_mooncakes_prompts(
    shared_data: Callable[[str], Path], trace: str, share: float
) -> None:
    jobs = read_mooncake(shared_data(f"traces/{trace}"), Streams(1))

    assert shared_hit_share(jobs) == pytest.approx(share, abs=0.001)


def test_drawn_sessions_grow_and_are_found_again() -> None:
    sessions = list(islice(drawn_sessions(Streams(1)), 50))
    jobs = [turn.job for session in sessions for turn in session.turns]

    assert [session.number for session in sessions] == list(range(1, 51))
    for session in sessions:
        prompts = [turn.job.prompt_tokens for turn in session.turns]
        assert prompts == sorted(prompts)
        assert max(prompts) <= 200_000
    assert 0.97 < shared_hit_share(jobs) < 1.0
    assert jobs == [turn.job for session in islice(drawn_sessions(Streams(1)), 50) for turn in session.turns]


def prompt(tokens: int, *ids: int) -> Job:
    return Job(0.0, tokens, 1, prefix_ids=ids)


def test_a_shared_cache_finds_leading_units_and_never_the_last_token() -> None:
    cache = SharedCache()
    for job in (prompt(1024, 1, 2), prompt(1024, 1, 2), prompt(1300, 1, 3)):
        cache.ask(job)

    assert (cache.asked_tokens, cache.hit_tokens) == (3348, 512 + 512)


def test_a_shared_cache_evicts_what_was_used_least_recently_and_its_end_first() -> None:
    cache = SharedCache(3 * PREFIX_UNIT_TOKENS)
    for job in (prompt(1100, 1, 2), prompt(1100, 3, 4), prompt(1100, 1, 2)):
        cache.ask(job)

    assert cache.hit_tokens == 512
