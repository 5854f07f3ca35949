"""The adapters of an engine are read off its list of models, and what cannot be read changes nothing."""

import json

import pytest

from gateway.harness import Asked, run, standing, until
from millgate.runtime import adapters
from millgate.runtime.adapters import read_adapters
from runtime.test_engines import PAGE

LAW = {"id": "law", "object": "model", "root": "/adapters/law", "parent": "base"}
BASE = {"id": "base", "object": "model", "root": "base", "parent": None, "max_model_len": 4096}


def page(*cards: object) -> bytes:
    return json.dumps({"object": "list", "data": cards}).encode()


def test_what_has_a_parent_is_an_adapter() -> None:
    assert read_adapters(page(BASE, LAW)) == {"law": "base"}
    assert read_adapters(page(BASE)) == {}


@pytest.mark.parametrize(
    "unreadable",
    [
        b"",
        b"{}",
        b"not JSON",
        b'{"data": 3}',
        b'{"data": [{"parent": "base"}]}',
        b'{"data": [{"id": "\\ud800", "parent": "base"}]}',
        b'{"data": [{"id": "law", "parent": 7}]}',
        b'{"data": ' + b"[" * 100_000,
        page(),
        page({"id": "base", "object": "model"}),
    ],
    ids=range(10),
)
def test_a_page_that_does_not_tell_adapters_from_models_says_nothing(unreadable: bytes) -> None:
    assert read_adapters(unreadable) is None


def test_a_name_that_could_not_be_shown_is_left_out_and_so_is_the_thousand_and_first() -> None:
    bad = [LAW | {"id": name} for name in ("", "a\nb", "x" * 201, "<b>")]
    many = [LAW | {"id": f"law-{number}"} for number in range(1_500)]
    assert read_adapters(page(BASE, *bad, LAW)) == {"law": "base"}
    assert len(read_adapters(page(BASE, *many)) or ()) == 1_000


def test_a_list_that_fails_changes_nothing_and_two_looks_that_agree_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "POLL_S", 0.02)
    monkeypatch.setattr(adapters, "LOOK_S", 0.05)
    tax = LAW | {"id": "tax"}
    script = [
        (200, page(BASE, LAW)),
        (500, b""),
        (200, b"?"),
        (401, b"{}"),
        (200, page(BASE)),
        (200, page(BASE, LAW)),
    ]
    script += [(200, page(BASE, LAW, tax))] * 2
    asked_for: list[str] = []

    async def listing(asked: Asked) -> None:
        asked_for.append(asked.line.decode())
        status, body = script.pop(0) if len(script) > 1 else script[0]
        asked.reply(body, status)

    async def body() -> None:
        async with standing(listing, metrics=PAGE) as stand:
            told: list[tuple[str, adapters.Adapters]] = []
            stand.gateway.fleet.on_adapters = lambda engine, found: told.append((engine, found))
            await until(lambda: len(told) == 2)
            assert told == [("engine", {"law": "base"}), ("engine", {"law": "base", "tax": "base"})]
            assert set(asked_for) == {"GET /v1/models HTTP/1.1"}
            assert len(asked_for) >= 8

    run(body())
