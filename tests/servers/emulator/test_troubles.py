"""Troubles on request: who is befallen is a matter of the seed, and each looks like what real engines do."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from millgate.servers.emulator import EmulatorSettings
from millgate.servers.emulator.settings import EmulatorSettings as Settings
from millgate.servers.emulator.troubles import Trouble, Troubles
from servers.emulator.test_app import MESSAGES, Client, ask, engine, run, stats, until

CHAT = "/v1/chat/completions"


def _draws(count: int, fields: dict[str, Any], *, stream: bool = True) -> list[Trouble | None]:
    troubles = Troubles(Settings(**fields))
    return [troubles.draw(stream=stream) for _ in range(count)]


def _body(**fields: Any) -> dict[str, object]:
    return {"model": "m", "messages": MESSAGES, "max_tokens": 20, "ignore_eos": True, **fields}


def test_without_rates_nothing_befalls_anybody() -> None:
    assert _draws(100, {}) == [None] * 100


def test_rates_are_shares_and_the_seed_decides_who() -> None:
    rates = {"fail_rate": 0.2, "stall_rate": 0.1, "error_rate": 0.3}
    drawn = _draws(2_000, rates)
    shares = [drawn.count(each) / 2_000 for each in (Trouble.FAIL, Trouble.STALL, Trouble.ERROR_EVENT, None)]

    assert shares == pytest.approx([0.2, 0.1, 0.3, 0.4], abs=0.04)
    assert _draws(2_000, rates) == drawn
    assert _draws(2_000, rates | {"seed": 2}) != drawn


def test_who_fails_does_not_depend_on_who_streams() -> None:
    rates = {"fail_rate": 0.3, "error_rate": 0.3}
    streamed, whole = _draws(200, rates), _draws(200, rates, stream=False)

    assert set(whole) == {Trouble.FAIL, None}
    assert [each is Trouble.FAIL for each in streamed] == [each is Trouble.FAIL for each in whole]


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_is_a_500_in_vllms_shape_before_anything_else(stream: bool) -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, time_scale=10.0, fail_rate=1.0)) as running:
            status, answer = await ask(running, "POST", CHAT, _body(stream=stream))
            assert status == 500
            error = answer["error"]
            assert (error["code"], error["type"]) == (500, "InternalServerError")
            seen = await stats(running)
            assert (seen["executed"], seen["troubles"]["failed"]) == (0, 1)

    run(story)


@pytest.mark.parametrize(("path", "named"), [(CHAT, False), ("/v1/messages", True)])
def test_an_error_within_a_stream_comes_half_way_and_ends_it(path: str, named: bool) -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, time_scale=10.0, error_rate=1.0)) as running:
            # Long enough that no pause of a busy machine makes half of its tokens come at once.
            status, answer = await ask(running, "POST", path, _body(stream=True, max_tokens=2_000))
            assert status == 200
            tokens = answer.count(" tok")
            assert 1_000 <= tokens < 2_000
            if named:
                assert "event: error\ndata: {" in answer
                assert "message_stop" not in answer
            else:
                error, done = answer.split("\n\n")[-3:-1]
                assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
                assert done == "data: [DONE]"
            seen = await until(running, lambda seen: seen["running"] == 0)
            assert (seen["aborted"], seen["finished"], seen["troubles"]["broken"]) == (1, 0, 1)

    run(story)


def test_a_stalled_stream_stands_still_half_way_and_then_comes_whole() -> None:
    settings = EmulatorSettings(port=0, time_scale=10.0, stall_rate=1.0, stall_s=0.3)

    async def story() -> None:
        async with engine(settings) as running:
            client = await Client.to(running)
            began = time.monotonic()
            assert await client.send("POST", CHAT, _body(stream=True, n=2)) == 200
            answer = await client.body()
            client.close()
            assert time.monotonic() - began >= 0.3
            assert answer.count(b" tok") == 40
            assert answer.count(b'"role":"assistant"') == 2
            assert answer.endswith(b"data: [DONE]\n\n")
            assert (await stats(running))["troubles"]["stalled"] == 1

    run(story)


def test_an_engine_that_stops_ends_what_it_stalls() -> None:
    settings = EmulatorSettings(port=0, time_scale=10.0, stall_rate=1.0, stall_s=60.0)

    async def story() -> None:
        async with engine(settings) as running:
            client = await Client.to(running)
            assert await client.send("POST", CHAT, _body(stream=True)) == 200
            await until(running, lambda seen: seen["finished"] == 1)
        assert b'"finish_reason":"length"' in await client.body()
        client.close()

    run(story)


def test_preemptions_for_want_of_memory_are_counted_as_vllm_counts_them() -> None:
    """Sixteen prompts of 1,900 tokens fit the demo profile's 32,768; with 300 tokens of answer each they do not."""
    prompt = [{"role": "user", "content": "x" * (4 * 1_900)}]

    async def story() -> None:
        async with engine(EmulatorSettings(port=0, time_scale=10.0)) as running:
            await ask(running, "POST", CHAT, _body(messages=prompt, n=16, max_tokens=300))
            seen = await stats(running)
            assert seen["preemptions"] >= 1
            assert seen["finished"] == 16
            _, page = await ask(running, "GET", "/metrics")
            (line,) = [line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total")]
            assert int(line.rpartition(" ")[2]) == seen["preemptions"]

    run(story)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"fail_rate": 1.5}, "fail_rate"),
        ({"stall_rate": -0.1}, "stall_rate"),
        ({"error_rate": 2.0}, "error_rate"),
        ({"stall_s": -1.0}, "stall_s"),
        ({"fail_rate": 0.6, "error_rate": 0.6}, r"fail_rate \+ stall_rate \+ error_rate"),
    ],
)
def test_a_wrong_share_is_named(fields: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("flag", ["--fail-rate", "--stall", "--error-in-stream"])
def test_the_command_line_names_its_own_flag(flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millgate", "engine", flag, "1.5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{flag}: must be from 0 to 1, got 1.5" in done.stderr
