"""What looks for engines: names that are looked up again, and a file that is looked over."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.harness import Asked, answer_whole, chat, run, until
from gateway.stand import gating
from millgate.gateway import discovery, fleet
from millgate.gateway.discovery import MOST_ADDRESSES, Discovery, DiscoverySettings, Stamp
from millgate.observe.logs import ProcessLog


class Names:
    """A name server: answers, failures, and how often it was asked."""

    def __init__(self, **answers: tuple[str, ...] | OSError) -> None:
        self.answers = answers
        self.asked = 0
        self.hangs = False

    async def __call__(self, host: str) -> tuple[str, ...]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        return answer


class Log(ProcessLog):
    """Keeps lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning


def no_file(_file: Path) -> Stamp | None:
    return None


def started(names: Names, log: Log, *wanted: str) -> tuple[Discovery, list[str]]:
    told: list[str] = []
    found = Discovery(no_file, names)
    found.aim(DiscoverySettings(wanted, every_s=0.005))
    found.start(log, lambda: told.append("addresses"), lambda: told.append("file"))
    return found, told


def test_a_name_is_looked_up_again_and_only_a_change_is_told() -> None:
    async def body() -> None:
        names = Names(vllm=("b", "a"))
        found, told = started(names, Log(), "vllm")
        await until(lambda: names.asked > 3)
        assert (told, found.found) == (["addresses"], {"vllm": ("a", "b")})
        names.answers["vllm"] = ("a",)
        await until(lambda: len(told) == 2)
        assert found.found == {"vllm": ("a",)}
        found.stop()
        asked = names.asked
        await asyncio.sleep(0.02)
        assert names.asked == asked

    run(body())


@pytest.mark.parametrize("bad", [OSError(-2, "Name or service not known"), ()])
def test_a_failed_look_up_keeps_the_last_answer_and_is_told_once(bad: OSError | tuple[str, ...]) -> None:
    async def body() -> None:
        names, log = Names(vllm=("a",)), Log()
        found, told = started(names, log, "vllm")
        await until(lambda: told)
        names.answers["vllm"] = bad
        asked = names.asked
        await until(lambda: names.asked > asked + 4)
        assert found.found == {"vllm": ("a",)}
        ((event, fields),) = log.lines
        assert (event, fields["name"], fields["engines"]) == (
            "name not found, its engines stay as they are",
            "vllm",
            1,
        )
        names.answers["vllm"] = ("a",)
        await until(lambda: len(log.lines) == 2)
        assert log.lines[1][0] == "name found again"
        assert told == ["addresses"]
        found.stop()

    run(body())


def test_of_a_name_with_too_many_addresses_those_that_are_known_stay() -> None:
    async def body() -> None:
        many = tuple(f"10.0.0.{number:03}" for number in range(100))
        names = Names(vllm=many[50:])
        log = Log()
        found, told = started(names, log, "vllm")
        await until(lambda: told)
        names.answers["vllm"] = many
        await until(lambda: len(told) == 2)
        asked = names.asked
        await until(lambda: names.asked > asked + 2)
        assert log.lines == [
            ("name has too many addresses", {"name": "vllm", "addresses": 100, "most": MOST_ADDRESSES})
        ]
        assert len(found.found["vllm"]) == MOST_ADDRESSES
        assert set(many[50:]) < set(found.found["vllm"])
        found.stop()

    run(body())


def test_a_start_waits_for_a_silent_name_server_no_longer_than_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "FIRST_LOOK_S", 0.01)

    async def body() -> None:
        names = Names(vllm=("a",), other=OSError(-3, "Temporary failure in name resolution"))
        names.hangs = True
        found = Discovery(no_file, names)
        await found.find(["vllm"])
        assert found.found == {}
        names.hangs = False
        await found.find(["vllm", "other"])
        assert found.found == {"vllm": ("a",)}
        # What failed before there was a log is said when there is one.
        log = Log()
        found.aim(DiscoverySettings(("vllm", "other")))
        found.start(log, lambda: None, lambda: None)
        assert [fields["name"] for _event, fields in log.lines] == ["other"]
        found.stop()

    run(body())


def test_a_start_beside_a_silent_name_server_says_at_once_why_it_has_no_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`serving` stood in the log, every request was refused, and the first word about DNS came with the resolver's own end of patience."""
    monkeypatch.setattr(discovery, "FIRST_LOOK_S", 0.01)

    async def body() -> None:
        names, log = Names(vllm=("a",)), Log()
        names.hangs = True
        found = Discovery(no_file, names)
        await found.find(["vllm"])
        found.aim(DiscoverySettings(("vllm",), every_s=0.005))
        found.start(log, lambda: None, lambda: None)
        ((event, fields),) = log.lines
        assert event == "name not found, its engines stay as they are"
        assert fields == {"name": "vllm", "why": "no answer within 0 s", "engines": 0}
        names.hangs = False
        await until(lambda: len(log.lines) == 2)
        assert (log.lines[1][0], found.found) == ("name found again", {"vllm": ("a",)})
        found.stop()

    run(body())


def test_names_that_are_no_longer_configured_are_forgotten() -> None:
    async def body() -> None:
        names = Names(old=("a",), new=("b",))
        found, told = started(names, Log(), "old")
        await until(lambda: told)
        await found.find(["new"])
        found.aim(DiscoverySettings(("new",), every_s=0.005))
        assert found.found == {"new": ("b",)}
        asked = names.asked
        del names.answers["old"]
        await until(lambda: names.asked > asked + 3)
        found.stop()

    run(body())


def test_a_file_is_told_once_it_has_been_the_same_in_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "FILE_LOOK_S", 0.001)
    stamps: list[Stamp | None] = [
        (1, 1, 1),
        (1, 1, 1),
        (2, 2, 1),
        (3, 3, 1),
        (3, 3, 1),
        (3, 3, 1),
        None,
        None,
        (3, 3, 1),
    ]
    looks: list[Stamp | None] = []
    told: list[int] = []

    def stamp_of(_file: Path) -> Stamp | None:
        looks.append(stamps[min(len(looks), len(stamps) - 1)])
        return looks[-1]

    async def body() -> None:
        found = Discovery(stamp_of)
        found.aim(DiscoverySettings(file="engines.yaml", stamp=(1, 1, 1)))
        found.start(Log(), lambda: None, lambda: told.append(len(looks)))
        await until(lambda: len(looks) > len(stamps) + 1)
        found.stop()

    run(body())
    # The third state at its second look, the missing file at its second, the file that is back at its second.
    assert told == [5, 8, 10]


def test_while_no_name_server_answers_the_addresses_of_before_are_used_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        names, told = Names(engine=("127.0.0.1",)), list[tuple[str, str]]()

        async def answers_and_closes(asked: Asked) -> None:
            await answer_whole(asked)
            asked.cut()

        monkeypatch.setattr(fleet, "resolve", names)
        async with gating(answers_and_closes, address={"host": "engine", "metrics": None}) as stand:
            stand.gateway.fleet.on_look = lambda name, why: told.append((name, why))
            assert (await stand.ask(chat())).status == 200
            assert told[-1] == ("engine", "")
            names.answers["engine"] = OSError(-3, "Temporary failure in name resolution")
            assert (await stand.ask(chat())).status == 200
            await until(lambda: told[-1] == ("engine", "Temporary failure in name resolution"))

    run(body())


def test_a_host_without_a_thread_left_does_not_end_the_look_at_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines that came later were never taken, and nothing said so."""
    monkeypatch.setattr(discovery, "FILE_LOOK_S", 0.001)
    looks: list[Path] = []
    told: list[int] = []

    async def crowded(stamp_of: Callable[[Path], Stamp], file: Path) -> Stamp:
        looks.append(file)
        if len(looks) <= 2:
            raise RuntimeError("can't start new thread")
        return stamp_of(file)

    monkeypatch.setattr(asyncio, "to_thread", crowded)

    async def body() -> None:
        found = Discovery(lambda _file: (2, 2, 1))
        found.aim(DiscoverySettings(file="engines.yaml", stamp=(1, 1, 1)))
        found.start(Log(), lambda: None, lambda: told.append(len(looks)))
        await until(lambda: told)
        found.stop()

    run(body())
    assert told == [4]
