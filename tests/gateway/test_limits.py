"""Limits from a configuration arrive where they act."""

import time

import pytest

from gateway.harness import Asked, chat, run, until
from gateway.stand import gating
from millgate.cli.compose import gateway_settings
from millgate.config.load import load_config
from millgate.config.overrides import from_assignment
from millgate.http1.server import ServerLimits
from millgate.servers.http import DoorSettings
from millgate.servers.http.whole_bound import CLIENT, FIRST_EVENT, GivenUp

GIVEN = {
    "body": ("2KiB", "server.body_bytes", 2048),
    "headers": ("3KiB", "server.header_bytes", 3072),
    "header_field": ("512", "server.field_bytes", 512),
    "header_count": ("11", "server.fields", 11),
    "url": ("300", "server.target_bytes", 300),
    "connections": ("12", "server.connections", 12),
    "byte_budget": ("2MiB", "byte_budget", 2 * 1024 * 1024),
    "header_deadline": ("13s", "server.head_s", 13.0),
    "body_deadline": ("14s", "server.body_s", 14.0),
    "body_rate": ("15KiB", "server.body_rate", 15 * 1024),
    "idle": ("16s", "server.idle_s", 16.0),
    "write_stall": ("17s", "server.write_stall_s", 17.0),
    "upstream_connect": ("18s", "upstream.connect_s", 18.0),
    "upstream_idle": ("19s", "upstream.chunk_idle_s", 19.0),
    "first_event": ("20s", "door.first_event_s", 20.0),
    "loop_lag": ("210ms", "door.loop_lag_s", 0.21),
    "keep_alive": ('{"/v1/chat/completions": "5s"}', "door.keep_alive_s", {"/v1/chat/completions": 5.0}),
    "light_requests": ("22", "door.light_at_once", 22),
    "drain_grace": ("23s", "drain_grace_s", 23.0),
}


def test_every_limit_of_the_configuration_reaches_its_place() -> None:
    flags = [from_assignment(f"limits.{name}={text}") for name, (text, _path, _value) in GIVEN.items()]
    flags.append(from_assignment("engines.0.url=http://127.0.0.1:1"))
    loaded = load_config(None, {}, flags)

    settings = gateway_settings(loaded)

    # The longest answer is the core's to know.
    assert set(GIVEN) | {"longest_answer"} == set(type(loaded.config.limits).model_fields)
    for name, (_text, path, value) in GIVEN.items():
        found: object = settings
        for part in path.split("."):
            found = getattr(found, part)
        assert found == value, name


def test_a_connection_over_the_cap_is_refused_and_is_no_bad_request() -> None:
    async def body() -> None:
        async with gating(server=ServerLimits(connections=1)) as stand:
            told: list[str] = []
            stand.gateway.door.on_bad_request = told.append
            first = await stand.client()
            await until(lambda: stand.gateway.server.connections == 1)
            assert (await stand.ask(chat())).status == 503
            assert stand.gateway.server.refused_connections == 1
            assert (stand.gateway.door.error_responses.rejected, told) == (0, [])
            first.leave()

    run(body())


def test_pages_that_the_configuration_opens_reach_the_door() -> None:
    flags = [from_assignment("engines.0.url=http://127.0.0.1:1")]
    assert gateway_settings(load_config(None, {}, flags)).door.pages == frozenset()
    flags.append(from_assignment("listen.pass_through=[/ping, /metrics]"))
    assert gateway_settings(load_config(None, {}, flags)).door.pages == {b"/ping", b"/metrics"}


def test_an_engine_that_does_not_begin_in_time_is_given_up() -> None:
    async def silent(asked: Asked) -> None:
        await asked.hung_up(60)

    async def headed(asked: Asked) -> None:
        asked.open_stream()
        await asked.hung_up(60)

    async def body() -> None:
        for script, stream in ((silent, False), (silent, True), (headed, True)):
            async with gating(script, door=DoorSettings(first_event_s=0.2)) as stand:
                began = time.monotonic()
                assert (await stand.ask(chat(stream=stream))).status == 504
                assert time.monotonic() - began >= 0.2
                await until(lambda: stand.engine.asked[0].gone)
                await stand.settle()

    run(body())


@pytest.mark.parametrize(
    ("door", "deadline_ms", "setting", "bound_s"),
    [
        (DoorSettings(first_event_s=0.3), "60000", FIRST_EVENT, 0.3),
        (DoorSettings(), "400", CLIENT, 0.4),
    ],
)
def test_the_bound_that_gives_up_a_whole_answer_is_told_by_name(
    door: DoorSettings, deadline_ms: str, setting: str, bound_s: float
) -> None:
    """Its engine takes the request and stands still."""

    async def silent(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        async with gating(silent, door=door) as stand:
            told: list[GivenUp] = []
            stand.gateway.door.on_given_up = told.append
            got = await stand.ask(
                chat(), x_request_id="seen-by-the-client", x_millgate_deadline_ms=deadline_ms
            )
            assert got.status == 504
            (given_up,) = told
            assert given_up[:3] == ("seen-by-the-client", "engine", setting)
            assert given_up.bound_s == pytest.approx(bound_s, abs=0.05)

    run(body())


@pytest.mark.parametrize(
    ("lists", "known"),
    [
        (["m", "n"], {"m", "n"}),
        (["m, n", "n"], {"m", "n"}),
        (["m, n", "n, m"], None),
        (["m", "m"], None),
        (["m", ""], None),
        (["m"], None),
    ],
)
def test_names_that_nobody_answers_for_are_known_where_engines_serve_different_models(
    lists: list[str], known: set[str] | None
) -> None:
    flags = [from_assignment(f"engines.{at}.url=http://127.0.0.1:{at + 1}") for at in range(len(lists))]
    flags += [from_assignment(f"engines.{at}.name=e{at}") for at in range(len(lists))]
    flags += [from_assignment(f"engines.{at}.models=[{names}]") for at, names in enumerate(lists)]

    assert gateway_settings(load_config(None, {}, flags)).door.models == known


def test_a_model_that_nobody_answers_for_is_not_found_and_nobody_is_asked() -> None:
    async def body() -> None:
        async with gating(door=DoorSettings(models=frozenset({"m"}))) as stand:
            assert (await stand.ask(chat())).status == 200
            got = await stand.ask(chat(model="mm"))
            assert (got.status, got.error["code"], got.error["param"]) == (404, "model_not_found", "model")
            assert got.headers["x-should-retry"] == "false"
            assert len(stand.engine.asked) == 1

    run(body())
