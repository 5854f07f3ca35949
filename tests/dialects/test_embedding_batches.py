"""Requests for embeddings as one: what may be merged, what each gets of the answer, and usage that sums up."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from millgate.dialects.embedding_batches import TextsRequest, joined, parted, shares, texts_of


def request(given: Any, **more: Any) -> TextsRequest:
    read = texts_of(json.dumps({"model": "m", "input": given, **more}).encode())
    assert read is not None
    return read


def answer(count: int, tokens: int = 100, **more: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": place, "embedding": [place + 0.5]} for place in range(count)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "prompt_tokens_details": None}
    return {"object": "list", "model": "m", "data": data, "usage": usage, **more}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model":"m"}',
        b'{"input":[]}',
        b'{"input":[1,2]}',
        b'{"input":["a",[1]]}',
        b'{"input":{"text":"a"}}',
        b'{"messages":[{"role":"user","content":"a"}]}',
        b'{"input":null}',
    ],
)
def test_only_texts_are_merged(body: bytes) -> None:
    assert texts_of(body) is None


def test_requests_that_differ_in_their_texts_and_user_alone_are_of_one_kind() -> None:
    assert request("a", user="u").key == request(["b", "c"]).key
    assert request("a", dimensions=8).key != request("a").key
    assert request("a", encoding_format="base64").key != request("a").key


def test_members_of_another_order_are_of_one_kind() -> None:
    swapped = texts_of(b'{"input":"b","dimensions":8,"model":"m"}')
    assert swapped is not None
    assert swapped.key == request("a", dimensions=8).key


def test_one_request_has_all_texts_as_they_were_written() -> None:
    odd = texts_of('{"model":"m","user":"u","input":"é\\u00e9"}'.encode())
    assert odd is not None
    whole = joined([odd, request(["b", "c"])])
    assert json.loads(whole) == {"model": "m", "input": ["éé", "b", "c"]}
    assert "é\\u00e9".encode() in whole


def test_every_owner_gets_its_own_rows_numbered_anew_whatever_their_order() -> None:
    owners = [request("a"), request(["b", "c"]), request("d")]
    told = answer(4)
    told["data"].reverse()
    parts = parted(json.dumps(told).encode(), owners)
    assert parts is not None
    read = [json.loads(part) for part in parts]
    assert [[(row["index"], row["embedding"]) for row in each["data"]] for each in read] == [
        [(0, [0.5])],
        [(0, [1.5]), (1, [2.5])],
        [(0, [3.5])],
    ]
    assert [each["usage"]["prompt_tokens"] for each in read] == [25, 50, 25]
    assert all(each["model"] == "m" and each["usage"]["prompt_tokens_details"] is None for each in read)


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b'{"data":7}',
        json.dumps(answer(2)).encode(),
        json.dumps(answer(4)).encode(),
        json.dumps({**answer(3), "usage": 7}).encode(),
        json.dumps(answer(3)).replace('"index": 2', '"index": 1').encode(),
        json.dumps(answer(3)).replace('"index": 2', '"index": "x"').encode(),
        json.dumps(answer(3)).replace('"index": 2, ', "").encode(),
    ],
)
def test_what_is_no_answer_to_all_of_them_is_none_to_any(damaged: bytes) -> None:
    assert parted(damaged, [request("a"), request(["b", "c"])]) is None


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=32))
def test_shares_sum_up_and_are_off_by_less_than_one(total: int, weights: list[int]) -> None:
    parts = shares(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1.0
