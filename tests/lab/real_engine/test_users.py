"""Users before an engine, its own and one behind a gate: the embedded one stands for the real one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.real_engine.command import main
from lab.real_engine.tables import by_streams, of_arms
from lab.real_engine.users import Asked, Crowd, Heard, arrivals
from lab.upstream import answers
from lab.upstream.fake_upstream import FakeUpstream, ScriptedConnection

from millgate.demos.stage import DemoStage, EngineSetup
from millgate.sim.measured.record import read_requests


@pytest.fixture
def urls() -> Iterator[tuple[str, str]]:
    """An engine of four streams, and a gate before it that lets in four and queues none."""
    with DemoStage() as stage:
        engine = stage.start_engine(EngineSetup("demo", time_scale=10.0, max_num_seqs=4))
        gate = stage.start_plain_gate(engine, 4, 5.0, "--max-queue", "0")
        yield f"http://127.0.0.1:{engine.address.port}", f"http://127.0.0.1:{gate.address.port}"


def test_the_same_seed_brings_the_same_users_at_the_rate_that_was_asked() -> None:
    some = arrivals(3, 20.0, 100.0)

    assert some == arrivals(3, 20.0, 100.0)
    assert some != arrivals(4, 20.0, 100.0)
    assert 1_800 < len(some) < 2_200
    assert all(0.0 < each.at_s < 100.0 and each.output_tokens >= 4 for each in some)


def test_a_run_is_recorded_as_the_simulator_reads_it(
    urls: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--model", "any", "--rate", "8", "--seconds", "2", "--streams", "4", "--step-tokens", "256"]
    assert main(["record", urls[0], *told, "--blocks", "100", "--folder", str(tmp_path)]) == 0

    served, _ = read_requests(tmp_path / "real__requests.jsonl")
    asked = arrivals(1, 8.0, 2.0)
    assert f"{len(asked)} of {len(asked)} requests answered" in capsys.readouterr().out
    assert sorted(row.output_tokens for row in served) == sorted(each.output_tokens for each in asked)
    assert all(row.queued_s < row.first_token_s <= row.last_token_s for row in served)
    meta = json.loads((tmp_path / "real__meta.json").read_text(encoding="utf-8"))
    assert meta["engine_kwargs"] == {"max_num_seqs": 4, "max_num_batched_tokens": 256}
    assert meta["kv_cache"] == {"num_gpu_blocks": 100, "block_size": 32}


def test_every_user_is_counted_once_with_and_without_the_gate(
    urls: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = [f"engine={urls[0]}", f"gate={urls[1]}"]
    assert (
        main(["overload", *addresses, "--model", "any", "--rate", "30", "--seconds", "2", "--patience", "3"])
        == 0
    )

    users = len(arrivals(1, 30.0, 2.0))
    for row in capsys.readouterr().out.splitlines()[-2:]:
        cells = [cell.strip() for cell in row.split("|")][1:-1]
        assert int(cells[1]) == users
        assert sum(int(cells[column]) for column in (3, 4, 5)) == users
    assert float(cells[-1]) > 1.0  # a gate that queues nothing asks some to come back


def test_what_is_good_is_in_time_by_both_measures() -> None:
    def heard(first_s: float, last_s: float) -> Heard:
        return Heard(Asked(1.0, 10, 11), 1, 200, first_s, last_s, 10, 11, left=False)

    away = Heard(Asked(1.0, 10, 11), 3, 503, None, None, 10, 0, left=False)
    rows = [heard(2.0, 3.0), heard(4.0, 5.0), heard(2.0, 9.0), away]

    table = of_arms([("gate", rows)], 10.0, 1.5, 0.2).splitlines()[-1]

    assert table.startswith("| gate | 4 | 0.250 | 3 | 0 | 1 | 1 |")
    assert "none answered" in by_streams([(8, [away])])


def _heard(url: str) -> Heard:
    (heard,) = asyncio.run(Crowd(url, {"model": "any"}, 10.0).come([Asked(0.0, 20, 30)]))
    return heard


def test_an_engine_that_tells_no_counts_is_judged_by_the_pieces_of_its_answers() -> None:
    async def script(asked: ScriptedConnection) -> None:
        await asked.send(answers.head(200, answers.EVENT_STREAM))
        for _ in range(4):
            await asked.send(answers.chunks(answers.event("so")))
            await asked.wait(0.05)
        await asked.send(answers.chunks(answers.event(finish="stop"), answers.DONE) + answers.LAST_CHUNK)

    with FakeUpstream(script) as upstream:
        heard = _heard(upstream.url)

    assert heard.output_tokens == 4
    assert heard.tpot_s < 0.1


def test_a_user_whose_connection_is_closed_before_an_answer_tries_again_as_sdks_do() -> None:
    async def script(asked: ScriptedConnection) -> None:
        if asked.request.connection == 1:
            asked.close()
        else:
            body = answers.chunks(answers.stream("so")) + answers.LAST_CHUNK
            await asked.send(answers.head(200, answers.EVENT_STREAM) + body)

    with FakeUpstream(script) as upstream:
        heard = _heard(upstream.url)

    assert heard.answered
    assert heard.tries == 2


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("http://host --rate 1", "must be NAME=URL, with http:// or https://, got 'http://host'"),
        ("a=http://host --rate 0", "argument --rate: must be above 0, got 0"),
        ("a=http://host --rate 0.001 --seconds 1", "--rate: no user comes within 1 s at 0.001 a second"),
    ],
)
def test_what_cannot_be_measured_is_named(words: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["overload", *words.split(), "--model", "any"])
    assert wrong in capsys.readouterr().err


def test_no_prompt_is_in_a_prefix_cache_for_the_second_address_because_the_first_was_asked_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def script(asked: ScriptedConnection) -> None:
        prompts.append(asked.request.json()["messages"][0]["content"])
        body = answers.chunks(answers.stream("so")) + answers.LAST_CHUNK
        await asked.send(answers.head(200, answers.EVENT_STREAM) + body)

    prompts: list[str] = []
    users = len(arrivals(1, 20.0, 1.0))
    with FakeUpstream(script) as upstream:
        both = [f"engine={upstream.url}", f"gate={upstream.url}", "--rate", "20", "--seconds", "1"]
        assert main(["overload", *both, "--model", "any"]) == 0
        assert main(["steps", upstream.url, "--streams", "8", "--model", "any"]) == 0

    assert len(prompts) == 2 * users + 2 + 8
    assert sorted(map(len, prompts[:users])) == sorted(map(len, prompts[users : 2 * users]))
    assert len({prompt[:12] for prompt in prompts[: 2 * users]}) == 2 * users
    assert len({prompt[:12] for prompt in prompts[2 * users :]}) == 10
    assert "| 8 |" in capsys.readouterr().out
