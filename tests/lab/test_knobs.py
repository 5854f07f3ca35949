"""Knobs of experiments: what makes no sense is refused by its name and its limit, before anything runs."""

from pathlib import Path

import pytest
from lab.__main__ import _main as lab
from lab.commands import carry_out
from lab.knobs import asked_seeds


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("hints answer_s=nan", "answer_s: must be above 0, got nan"),
        ("hints answer_s=inf", "answer_s: must be above 0, got inf"),
        ("hints streams=0", "streams: must be at least 1, got 0"),
        ("hints order=random", "order: must be one of arrival, deadline, short_first, got 'random'"),
        ("hints deadline_from=birth", "deadline_from: must be one of first_attempt, attempt, got 'birth'"),
        ("hints profile=magic", "profile: must be one of demo, "),
        ("hints seconds=80", "seconds: must be above warm_up_s + deadline_s (80), got 80.0"),
        ("hints capped=2", "capped: must be one of 0, 1, got 2"),
        ("hints capped=1 tenants=2", "tenants: must be 1 where streams are capped, got 2"),
        ("hints profile=demo kv_tokens=800", "prompt_tokens: must be at most 720 with its answer, "),
        ("hints profile=demo prompt_tokens=50000", "prompt_tokens: must be at most "),
        ("cold_prompts cold_tokens=2000000", "cold_tokens: must be at most "),
        ("cold_prompts profile=demo", "cold_tokens: must be at most "),
        ("racks prompt_tokens=10000000", "prompt_tokens: must be at most "),
        ("hints absent_by=tenant absent=0.5", "absent: must be a part of 1 tenants, got 0.5"),
        ("agent_sessions engines=0", "engines: must be at least 1, got 0"),
        ("agent_sessions users=robots", "users: must be one of agents, people, got 'robots'"),
        ("agent_sessions questions=1.5", "questions: must be a share from 0 to 1, got 1.5"),
        ("agent_sessions until_s=300", "until_s: must be above warm_up_s (300), got 300.0"),
        ("agent_sessions working_set=2", "working_set: not one of engines, "),
        ("agent_sessions sessions=/nowhere", "sessions: must be a file of recorded sessions, got '/nowhere'"),
        ("cold_prompts policy=gate", "policy: not one of engines, "),
        ("cold_prompts cold_tokens=-1", "cold_tokens: must be at least 1, got -1"),
        ("cold_prompts until_s=10", "until_s: must be above warm_up_s (300), got 10.0"),
        ("adapters rate_per_s=0", "rate_per_s: must be above 0, got 0.0"),
        ("adapters skew=0", "skew: must be above 0, got 0.0"),
        ("adapters slots=0", "slots: must be at least 1, got 0"),
        ("prefill_decode engines=1", "engines: must be at least 2, got 1"),
        ("prefill_decode reading=4", "reading: must be below engines (4), got 4"),
        ("prefill_decode tpot_factor=0", "tpot_factor: must be above 0, got 0.0"),
        ("racks lost=3", "lost: must be at most reading (2), got 3"),
        ("racks until_s=20", "until_s: must be above the warm-up (20), got 20.0"),
        ("racks writing=0", "writing: must be at least 1, got 0"),
    ],
)
def test_a_knob_beyond_its_limit_is_named_with_it(
    capsys: pytest.CaptureFixture[str], arguments: str, wrong: str
) -> None:
    name, *knobs = arguments.split()
    assert carry_out(["run", name, *[word for knob in knobs for word in ("--set", knob)]]) == 2
    assert f"--set: {wrong}" in capsys.readouterr().err


def test_a_file_without_sessions_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n", encoding="utf-8")
    knobs = [f"sessions={tmp_path / 'none.jsonl'}", "warm_up_s=0", "until_s=1"]
    words = [word for knob in knobs for word in ("--set", knob)]

    assert carry_out(["run", "agent_sessions", "--seeds", "1", "--processes", "1", *words]) == 2
    assert "none.jsonl:1: there is no session with a turn" in capsys.readouterr().err


def test_a_report_says_a_command_that_can_be_typed(tmp_path: Path) -> None:
    session = '{"block_tokens": 512, "requests": [{"t": 0, "in": 600, "out": 5, "blocks": [[0, 1]]}]}'
    (tmp_path / "two words.jsonl").write_text(session, encoding="utf-8")
    knobs = [f"sessions={tmp_path / 'two words.jsonl'}", "profile=demo", "warm_up_s=0", "until_s=1"]
    words = [word for knob in knobs for word in ("--set", knob)]
    page = tmp_path / "page.html"

    assert carry_out(["run", "agent_sessions", "--seeds", "1", "--html", str(page), *words]) == 0
    assert "two words.jsonl&#x27; --set" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("ablate --processes 0", "argument --processes: must be at least 1, got 0"),
        ("ablate --first-seed -1", "argument --first-seed: must be at least 0, got -1"),
        ("dashboard --users 0", "argument --users: must be at least 1, got 0"),
        ("cluster --apart 0", "argument --apart: must be above 0, got 0"),
    ],
)
def test_a_number_beyond_its_limit_is_named_with_it(
    capsys: pytest.CaptureFixture[str], arguments: str, wrong: str
) -> None:
    with pytest.raises(SystemExit):
        lab(arguments.split())
    assert wrong in capsys.readouterr().err


def test_seeds_of_replicas_are_asked_for_by_number() -> None:
    def asked(*words: str) -> range:
        return asked_seeds([*words], "seeds", None, seeds=3, first=0)

    assert asked() == range(3)
    assert asked("2", "701") == range(701, 703)
    assert asked_seeds(["711", "2"], "seeds", None, first=0, seeds=2) == range(711, 713)
    with pytest.raises(SystemExit):
        asked("0")
