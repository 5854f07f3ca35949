"""What stderr says of engines: which model to try, gone, back, and too slow."""

import json

from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.asking import ask
from faults.process import GateProcess, until
from faults.starter import Starter


def told(gate: GateProcess, event: str) -> list[dict[str, object]]:
    """Return the lines of this event on stderr, less what differs each time."""
    lines = [json.loads(line) for line in gate.errors().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_an_engine_that_goes_down_and_comes_up_again_is_one_line_each(start: Starter) -> None:
    engine = FakeUpstream()
    with engine:
        gate = start(engine.url)
        assert ask(gate).status == 200
    until(lambda: told(gate, "engine down"))
    assert gate.ask("/readyz")[0] == 503
    with engine:
        until(lambda: told(gate, "engine up"))
        assert ask(gate).status == 200
    (down,), (up,) = told(gate, "engine down"), told(gate, "engine up")
    assert down["engine"] == up["engine"]
    where = engine.url.removeprefix("http://")
    assert str(down["why"]).startswith(
        f"its health page does not answer: connect (cannot connect to {where}: "
    )


def test_answers_that_time_out_are_one_line(start: Starter) -> None:
    async def stall(line: ScriptedConnection) -> None:
        await line.stall()

    with FakeUpstream(stall) as engine:
        gate = start(engine.url, settings={"limits.first_event": "300ms"})
        assert [ask(gate).status for _ in range(2)] == [504, 504]
        until(lambda: told(gate, "engine timeouts"))
        (line,) = told(gate, "engine timeouts")
        assert line["count"] == 1


def test_the_banner_tries_a_model_that_the_engine_has(start: Starter) -> None:
    page = b'vllm:num_requests_running{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 0.0\n'

    async def tell(line: ScriptedConnection) -> None:
        await line.send(answers.whole(page, 200, "text/plain"))

    with FakeUpstream(on_scrape=tell) as engine:
        gate = start(engine.url)
        until(lambda: told(gate, "serving"))  # a thread writes it
        (banner,) = told(gate, "serving")
        assert banner["model"] == "Qwen/Qwen2.5-0.5B"
