"""`/api/why`: an id in, the attempts under it in order and in words out."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from millgate.http1.server.contract import RequestHead
from millgate.observe.explanation import ExplainedAttempt, ExplainedStep
from millgate.servers.admin.answers import AdminRequest
from millgate.servers.admin.page import Ask, why_route
from millgate.servers.admin.source import Find

TOLD = ExplainedAttempt(
    7,
    1e9,
    whole=True,
    steps=(ExplainedStep(0.0, "queue", "queued at place 1", {"place": 1}),),
    upstream_ids=("req_011",),
    trace="",
)


def ask(query: str, find: Find = lambda wanted: [TOLD] if wanted == "7" else []) -> tuple[int, Any]:
    """Put one question to the route, without a socket."""
    head = RequestHead(b"GET", b"/api/why?" + query.encode(), b"/api/why", (), None, "127.0.0.1")
    coroutine = why_route(answering(find)).handler(AdminRequest(head, b""))
    with pytest.raises(StopIteration) as ended:
        coroutine.__await__().send(None)  # nothing in it waits
    answer = ended.value.value
    return answer.status, json.loads(answer.body)


def answering(find: Find) -> Ask:
    """Return the same as the route asks it."""

    async def attempts(wanted: str) -> Sequence[ExplainedAttempt]:
        return find(wanted)

    return attempts


def test_an_attempt_is_told_with_its_steps_and_their_numbers() -> None:
    status, answer = ask("id=7")

    assert status == 200
    assert answer == {
        "id": "7",
        "attempts": [
            {
                "attempt": 7,
                "at": 1e9,
                "whole": True,
                "steps": [
                    {"after_s": 0.0, "kind": "queue", "words": "queued at place 1", "numbers": {"place": 1}}
                ],
                "upstream_ids": ["req_011"],
                "trace": "",
            }
        ],
    }


def test_what_is_not_kept_is_404_and_says_that_it_may_be_too_long_ago() -> None:
    status, answer = ask("id=8")

    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert "too long ago" in answer["error"]["message"]


@pytest.mark.parametrize("query", ["", "id=", "id=" + "x" * 129])
def test_a_question_without_a_sensible_id_is_400_and_names_the_limit(query: str) -> None:
    status, answer = ask(query)

    assert (status, answer["error"]["code"]) == (400, "invalid_query")
    assert "128" in answer["error"]["message"]


def test_the_id_is_taken_as_it_was_before_it_was_encoded() -> None:
    asked: list[str] = []

    def find(wanted: str) -> list[ExplainedAttempt]:
        asked.append(wanted)
        return []

    ask("id=a%2Fb%2Bc%20", find)

    assert asked == ["a/b+c "]
