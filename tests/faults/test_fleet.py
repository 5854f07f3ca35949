"""Rows 38 and 49 with several engines, and row 65: one engine dies, hangs or slows down, and the others' clients see nothing.

No health page is asked here: what becomes of the requests is all that the gate goes by.
"""

import contextlib
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from lab.upstream import FakeUpstream, Script, ScriptedConnection, answers

from faults.asking import ask, say
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import Talk, chat

CLIENTS, MAX_INFLIGHT = 6, 4


def answer_after(seconds: float) -> Script:
    async def script(line: ScriptedConnection) -> None:
        await line.wait(seconds)
        await line.send(answers.whole(answers.completion("hello")))

    return script


class Engines:
    """Three engines, each of which can be killed and started again."""

    def __init__(self, script: Script) -> None:
        self.all = [FakeUpstream(script) for _ in range(3)]
        self._alive = [contextlib.ExitStack() for _ in self.all]
        for index in range(3):
            self.start(index)

    def start(self, index: int) -> None:
        self._alive[index].enter_context(self.all[index])

    def kill(self, index: int) -> None:
        self._alive[index].close()

    @property
    def asked(self) -> list[int]:
        return [len(each.received) for each in self.all]


@pytest.fixture
def engines() -> Iterator[Engines]:
    three = Engines(answer_after(0.02))
    yield three
    for index in range(3):
        three.kill(index)


def crowd(
    gate: GateProcess, requests: int, *fields: str, midway: Callable[[], None] | None = None
) -> Counter[int]:
    """Let clients ask one after another, do something when half is answered, and return how often each status came."""
    statuses: Counter[int] = Counter()
    left, lock = list(range(requests)), threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            if midway is not None and number == requests // 2:
                midway()
            talk = Talk(gate.port)
            talk.ask(chat(f"request {number}", max_tokens=2), *fields)
            status = talk.answer().status
            talk.close()
            with lock:
                statuses[status] += 1

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return statuses


def down(gate: GateProcess) -> list[int]:
    return [index for index, engine in enumerate(gate.state()["engines"]) if not engine["up"]]


def test_row_49_one_of_three_engines_is_killed_and_only_what_it_had_begun_is_lost(
    start: Starter, engines: Engines
) -> None:
    gate = start(*(each.url for each in engines.all), max_inflight=MAX_INFLIGHT)
    statuses = crowd(gate, 150, midway=lambda: engines.kill(0))

    assert set(statuses) <= {200, 502}
    assert statuses[502] <= MAX_INFLIGHT
    ended = gate.ended()
    assert ended["good"] == statuses[200]
    assert ended.get("engine_failed/broken", 0) == statuses[502]
    assert "engine_failed/connect" not in ended

    engines.start(0)
    until(lambda: (ask(gate).status, down(gate)) == (200, []), what="the engine is back and is used again")


def test_row_49_one_of_three_engines_hangs_and_costs_its_clients_one_deadline(
    start: Starter, engines: Engines
) -> None:
    gate = start(*(each.url for each in engines.all), max_inflight=MAX_INFLIGHT)

    def hang() -> None:
        engines.all[0].script = say(end="stall")

    statuses = crowd(gate, 150, "x-millgate-deadline-ms: 1500", midway=hang)
    assert set(statuses) <= {200, 504}
    # Those that it had, and now and then a single one that was tried.
    assert statuses[504] <= MAX_INFLIGHT + 2
    ended = gate.ended()
    assert (ended["good"], ended.get("engine_failed/timeout", 0)) == (statuses[200], statuses[504])


def test_row_49_one_of_three_engines_is_ten_times_slower_and_gets_less_to_do(
    start: Starter, engines: Engines
) -> None:
    engines.all[0].script = answer_after(0.2)
    gate = start(*(each.url for each in engines.all), max_inflight=MAX_INFLIGHT)
    assert crowd(gate, 150) == {200: 150}

    slow, *others = engines.asked
    assert slow < min(others) / 2
    assert down(gate) == []


def test_row_38_and_49_an_engine_that_is_not_there_from_the_start_is_nobodys_loss(
    start: Starter, engines: Engines
) -> None:
    engines.kill(0)
    gate = start(*(each.url for each in engines.all), max_inflight=MAX_INFLIGHT)
    assert crowd(gate, 60) == {200: 60}
    assert gate.ended() == {"good": 60}


def test_row_65_short_of_memory_the_gate_refuses_bodies_and_lives(
    start: Starter, upstream: FakeUpstream
) -> None:
    """The byte budget is the guard: it sheds far below what the process may take."""
    gate = start(upstream.url)
    assert ask(gate).status == 200
    taken = int(gate._proc("statm").split()[0]) * resource.getpagesize()
    resource.prlimit(gate.process.pid, resource.RLIMIT_AS, (taken + 192 * 1024 * 1024,) * 2)
    talks = [gate.connect() for _ in range(60)]
    for talk in talks:
        talk.try_send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\ncontent-type: application/json\r\n"
        )
        talk.try_send(b"content-length: 4000000\r\n\r\n" + b" " * 3_900_000)
    refused = [talk.answer().status for talk in talks if talk.heard(0.01)]

    assert len(refused) > 40
    assert set(refused) <= {503, 408}
    gate.hang_up()
    assert gate.alive, gate.errors()
    until(lambda: ask(gate).status == 200)
