"""Who keeps an answer is remembered within a bound, and for its own tenant."""

import pytest

from millgate.servers.http.kept_answers import Keeper, KeptAnswers
from millgate.servers.http.paths import kept_answer, methods, wants_stream


def test_the_answer_named_longest_ago_is_forgotten() -> None:
    kept = KeptAnswers(most=2)
    for name in ("a", "b"):
        kept.add(name, Keeper("engine", ""))
    assert kept.find("a") == Keeper("engine", "")
    kept.add("c", Keeper("engine", ""))
    assert kept.find("b") is None
    assert kept.find("a") is not None
    assert len(kept) == 2


def test_an_id_stays_with_the_tenant_that_had_it_first() -> None:
    """An engine that numbers its answers, or an attacker with an engine of their own, takes nobody's over."""
    kept = KeptAnswers()
    kept.add("a", Keeper("one", "alice"))
    kept.add("a", Keeper("two", "mallory"))
    assert kept.find("a") == Keeper("one", "alice")


def test_other_processes_are_told_of_what_is_new_here_and_not_of_what_they_have_told() -> None:
    told: list[tuple[str, Keeper]] = []
    kept = KeptAnswers()
    kept.on_new = lambda answer_id, keeper: told.append((answer_id, keeper))
    mine, theirs = Keeper("one", "alice"), Keeper("two", "bob")

    kept.add("a", mine)
    kept.add("a", mine)
    kept.add("a", theirs)
    kept.add("b", theirs, is_news=False)

    assert told == [("a", mine)]
    assert list(kept) == [("a", mine), ("b", theirs)]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (b"/v1/responses", (b"POST",)),
        (b"/v1/responses/resp_1", (b"GET", b"DELETE")),
        (b"/v1/responses/resp_1/cancel", (b"POST",)),
        (b"/v1/responses/resp_1/input_items", (b"GET",)),
        (b"/v1/responses/input_tokens", (b"POST",)),
        (b"/v1/responses/compact", ()),
        (b"/v1/responses/compact_1", (b"GET", b"DELETE")),
        (b"/v1/responses/", ()),
        (b"/v1/responses/..", ()),
        (b"/v1/responses/a/b", ()),
        (b"/v1/responses/" + b"x" * 200, ()),
        (b"/v1/models", (b"GET",)),
        (b"/v1/messages", (b"POST",)),
        (b"/rerank", (b"POST",)),
        (b"/metrics", ()),
    ],
)
def test_the_list_of_paths_is_closed(path: bytes, allowed: tuple[bytes, ...]) -> None:
    assert methods(path) == allowed


def test_what_is_asked_of_a_kept_answer() -> None:
    assert kept_answer(b"/v1/responses/resp_1/cancel") == "resp_1"
    assert kept_answer(b"/v1/models/x") is None
    assert kept_answer(b"/v1/responses/input_tokens") is None
    assert kept_answer(b"/v1/responses/input_tokens_1") == "input_tokens_1"
    assert wants_stream(b"/v1/responses/resp_1?starting_after=3&stream=true")
    assert not wants_stream(b"/v1/responses/resp_1?upstream=true")
