"""The marks of prefixes at the doors: made when asked for, with one seed, and nothing for what is no conversation."""

import json
from collections.abc import Callable

import pytest

from gateway.harness import CHAT, Stand, chat, run, standing
from millgate.core.decisions import Decision
from millgate.core.events import Arrived, Event, PrefixMarks
from millgate.dialects import BY_PATH, conversations
from millgate.dialects.prefix_chain import PrefixChain, mark_seed
from millgate.runtime.callers import CallerSettings, session_of_model
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.http import DoorSettings
from servers.line.stand import upload
from servers.line.talk import line_standing

KEY = b"k" * 32
MESSAGES = json.dumps(
    {"model": "m", "max_tokens": 9, "system": "S", "messages": [{"role": "user", "content": "hi"}]}
).encode()


class Asking:
    """Asks every arrival for its marks, as what places by them does."""

    def __init__(self) -> None:
        self.marks: list[PrefixMarks | None] = []
        self.ask: Callable[[], PrefixMarks] | None = None

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        if isinstance(event, Arrived):
            self.ask = event.marks
            self.marks.append(None if event.marks is None else event.marks())


def expected(body: bytes, path: bytes = CHAT, secret: bytes = KEY) -> PrefixMarks:
    return conversations.prefix_marks(BY_PATH[path].conversations[path], body, mark_seed(secret))


def asking(stand: Stand) -> Asking:
    observer = Asking()
    stand.gateway.driver.observers.append(observer)
    return observer


def with_a_second_engine(stand: Stand) -> None:
    door = stand.gateway.door
    (route,) = door.engines.values()
    door.engines = {route.name: route, "other": route._replace(name="other")}


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat("hi")), (b"/v1/messages", MESSAGES), (b"/v1/responses", b'{"input":"hi"}')]
)
def test_gates_that_share_a_key_agree_on_the_marks(path: bytes, body: bytes) -> None:
    async def test() -> None:
        async with standing(door=DoorSettings(ticket_key=KEY)) as stand:
            observer = asking(stand)
            await stand.ask(body, path)
            assert observer.marks == [expected(body, path)] != [()]

    run(test())


def test_without_a_key_each_start_has_marks_of_its_own() -> None:
    async def marks() -> PrefixMarks | None:
        async with standing() as stand:
            observer = asking(stand)
            await stand.ask(chat("hi"))
            await stand.ask(chat("hi"))
            assert observer.marks[0] == observer.marks[1] != ()
            return observer.marks[0]

    async def test() -> None:
        assert await marks() != await marks()

    run(test())


def test_a_prompt_is_marked_once_and_a_short_one_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    read = BY_PATH[CHAT].conversations[CHAT]

    def note(body: bytes, chain: PrefixChain) -> None:
        marked.append(len(body))
        read(body, chain)

    monkeypatch.setitem(BY_PATH[CHAT].conversations, CHAT, note)

    async def test() -> None:
        async with standing() as stand:
            assert (await stand.ask(chat("hi"))).status == 200
            assert marked == []
            assert (await stand.ask(chat("hi there " * 400))).status == 200
            assert len(marked) == 1

    run(test())


def test_what_is_no_conversation_has_none_to_ask_for() -> None:
    async def test() -> None:
        async with standing() as stand:
            observer = asking(stand)
            await stand.ask(b'{"model":"m","input":"hi"}', b"/v1/embeddings")
            assert observer.marks == [None]

    run(test())


def test_a_long_body_is_marked_by_its_reader_where_there_are_several_engines() -> None:
    body = chat("x" * (LONG_BYTES + 1))

    async def test() -> None:
        async with standing(door=DoorSettings(ticket_key=KEY)) as stand:
            observer = asking(stand)
            await stand.ask(body)
            with_a_second_engine(stand)
            await stand.ask(body)
            assert observer.marks == [(), expected(body)]
            assert len(expected(body)) == 32

    run(test())


def test_a_body_that_is_gone_has_no_marks() -> None:
    async def test() -> None:
        async with standing() as stand:
            observer = asking(stand)
            await stand.ask(chat("hi"))
            await stand.settle()
            assert observer.ask is not None
            assert observer.ask() == ()

    run(test())


@pytest.mark.parametrize("body", [chat("hi"), chat("x" * (LONG_BYTES + 1))], ids=["short", "long"])
def test_a_job_at_the_line_door_has_the_marks_of_its_request(body: bytes) -> None:
    async def test() -> None:
        async with line_standing() as stand:
            observer = Asking()
            stand.gateway.driver.observers.append(observer)
            (route,) = stand.door.engines.values()
            stand.door.engines = {route.name: route, "other": route._replace(name="other")}
            peer = await stand.peer()
            peer.send(upload(body, "J", 65_536))
            await peer.final()
            secret_marks = conversations.prefix_marks(
                BY_PATH[CHAT].conversations[CHAT], body, stand.gateway.door.marker.seed
            )
            assert observer.marks == [secret_marks] != [()]

    run(test())


def test_the_core_is_told_which_session_a_header_names() -> None:
    async def test() -> None:
        async with standing(callers=CallerSettings(session_headers=(b"x-session-id",))) as stand:
            callers = stand.gateway.door.entry.callers
            heard = Hearing()
            stand.gateway.driver.observers.append(heard)
            for name in ("s1", "s2", "s1"):
                await stand.ask(chat("hi"), X_Session_ID=name)
            await stand.ask(chat("hi"))
            first, second, third, none = heard.sessions
            named = callers.session({b"x-session-id": b"s1"}, "")
            assert first == third == session_of_model(named, "m")
            assert second not in {first, None}
            assert none is None

    run(test())


def test_a_job_at_the_line_door_names_its_session_as_a_header_does() -> None:
    async def test() -> None:
        async with line_standing() as stand:
            heard = Hearing()
            stand.gateway.driver.observers.append(heard)
            peer = await stand.peer()
            for number, named in enumerate(({"session": "s1"}, {"session": "s2"}, {"session": "s1"}, {})):
                peer.send(upload(chat("hi"), f"J{number}", 65_536, **named))
                await peer.final()
            first, second, third, none = heard.sessions
            number = stand.gateway.door.entry.callers.session_number(b"s1")
            assert first == third == session_of_model(number, "m")
            assert second not in {first, None}
            assert none is None

    run(test())


def test_a_session_whose_name_is_longer_than_a_name_may_be_spoils_the_manifest() -> None:
    async def test() -> None:
        async with line_standing() as stand:
            peer = await stand.peer()
            peer.send(upload(chat("hi"), "J", 65_536, session="s" * 1_025))
            assert (await peer.reply()).need == "manifest_invalid"

    run(test())


class Hearing:
    """Notes the sessions of all arrivals."""

    def __init__(self) -> None:
        self.sessions: list[int | None] = []

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        if isinstance(event, Arrived):
            self.sessions.append(event.session)
