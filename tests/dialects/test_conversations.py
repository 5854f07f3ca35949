"""What of a request is hashed: recorded bodies of real clients turn by turn, and what clients write in several ways."""

import contextlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as some

from millgate.core.events import PrefixMarks
from millgate.dialects import BY_PATH, DIALECTS
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.conversations import MOST_PIECES, prefix_marks
from millgate.dialects.far_reading import Question, answer
from millgate.dialects.prefix_chain import mark_seed

_SEED = mark_seed(b"a secret")
_RECORDED = Path(__file__).parent / "conversations"
_CHAT, _MESSAGES, _RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
_CLIENTS = {
    "openai_sdk": _CHAT,
    "langchain": _CHAT,
    "openai_responses": _RESPONSES,
    "anthropic_sdk": _MESSAGES,
    "claude_code": _MESSAGES,
}


def _of_bytes(path: str, body: bytes) -> PrefixMarks:
    return prefix_marks(BY_PATH[path.encode()].conversations[path.encode()], body, _SEED)


def _marks(path: str, **body: Any) -> PrefixMarks:
    return _of_bytes(path, json.dumps({"model": "m", **body}).encode())


def _says(path: str, *contents: Any, **more: Any) -> PrefixMarks:
    """Return the marks of a conversation of these contents, by turns a user's and an assistant's."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]
    return _marks(path, **{"input" if path == _RESPONSES else "messages": turns}, **more)


# ---- real clients


@pytest.mark.parametrize("client", _CLIENTS)
def test_every_turn_of_a_real_client_finds_the_whole_turn_before_it(client: str) -> None:
    turns = (_RECORDED / f"{client}.jsonl").read_bytes().splitlines()
    marks = [_of_bytes(_CLIENTS[client], turn) for turn in turns]
    assert len(marks) >= 3
    for before, after in pairwise(marks):
        assert after[: len(before)] == before
        assert len(after) > len(before)


@pytest.mark.parametrize("client", _CLIENTS)
def test_their_readers_accept_what_clients_send(client: str) -> None:
    path = _CLIENTS[client].encode()
    for turn in (_RECORDED / f"{client}.jsonl").read_bytes().splitlines():
        assert BY_PATH[path].readers[path](turn).marks is None


# ---- the same in other words

_words = some.text(min_size=1, max_size=30)
_dialects = some.sampled_from((_CHAT, _MESSAGES, _RESPONSES))


@given(_dialects, some.lists(_words, min_size=1, max_size=8), some.lists(_words, max_size=8), _words)
def test_equal_messages_have_equal_marks_whatever_follows(
    path: str, common: list[str], more: list[str], system: str
) -> None:
    begun = _says(path, *common, tools=[{"name": system}])
    assert _says(path, *common, *more, tools=[{"name": system}], stream=True)[: len(begun)] == begun


@given(_dialects, some.lists(_words, min_size=2, max_size=9), some.data())
def test_another_message_changes_its_own_mark_and_all_later_ones(
    path: str, contents: list[str], data: some.DataObject
) -> None:
    at = data.draw(some.integers(0, len(contents) - 1))
    other = data.draw(_words.filter(lambda text: text != contents[at]))
    one, changed = _says(path, *contents), _says(path, *contents[:at], other, *contents[at + 1 :])
    assert one[:at] == changed[:at]
    assert not {mark for mark, _ in one[at:]} & {mark for mark, _ in changed[at:]}


@given(_dialects, some.lists(_words, min_size=1, max_size=8), some.randoms())
def test_text_in_parts_and_the_order_of_fields_change_nothing(
    path: str, contents: list[str], dice: random.Random
) -> None:
    kind = {_RESPONSES: "input_text"}.get(path, "text")
    plain = _says(path, *contents, tools=[{"name": "t"}])

    def shuffled(value: dict[str, Any]) -> dict[str, Any]:
        members = list(value.items())
        dice.shuffle(members)
        return dict(members)

    turns = []
    for at, text in enumerate(contents):
        part = shuffled({"type": kind, "text": text, "cache_control": {"type": "ephemeral"}})
        turns.append(
            shuffled(
                {
                    "role": ("user", "assistant")[at % 2],
                    "content": [part] if dice.random() < 0.5 else text,
                    "reasoning": "hm",
                    "reasoning_content": f"thought {at}",
                }
            )
        )
    body = {"model": "m", "tools": [{"name": "t"}], "input" if path == _RESPONSES else "messages": turns}
    assert (
        _of_bytes(
            path,
            json.dumps(shuffled(body), indent=1)
            .replace('[\n  {\n   "name": "t"\n  }\n ]', '[{"name": "t"}]')
            .encode(),
        )
        == plain
    )


@pytest.mark.parametrize("path", [_CHAT, _MESSAGES, _RESPONSES])
def test_a_turn_with_many_results_finds_the_turn_before_it(path: str) -> None:
    asked = [turn for at in range(30) for turn in _exchange(path, at, results=1)]
    field = "input" if path == _RESPONSES else "messages"
    before = _marks(path, **{field: asked})
    after = _marks(path, **{field: [*asked, *_exchange(path, 30, results=60)]})
    assert len(after) <= 32
    assert before[-1] in after


def _exchange(path: str, number: int, *, results: int) -> list[dict[str, Any]]:
    """Return an answer that calls tools, and their results, as this dialect writes them."""
    ids = [f"{number}.{at}" for at in range(results)]
    if path == _RESPONSES:
        calls = [{"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in ids]
        return [*calls, *({"type": "function_call_output", "call_id": each, "output": "x"} for each in ids)]
    if path == _MESSAGES:
        use = [{"type": "tool_use", "id": each, "name": "f", "input": {}} for each in ids]
        done = [{"type": "tool_result", "tool_use_id": each, "content": "x"} for each in ids]
        return [
            {"role": "assistant", "content": use},
            *({"role": "user", "content": [each]} for each in done),
        ]
    call = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    answer = {"role": "assistant", "content": None, "tool_calls": call}
    return [answer, *({"role": "tool", "tool_call_id": each, "content": "x"} for each in ids)]


def test_thinking_is_left_out_and_another_thing_is_not() -> None:
    said = {"type": "text", "text": "Yes."}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"n": 1}}
    assert _says(_MESSAGES, "Q", [thought, hidden, said]) == _says(_MESSAGES, "Q", "Yes.")
    assert _says(_MESSAGES, "Q", [said, use])[-1] != _says(_MESSAGES, "Q", "Yes.")[-1]


@pytest.mark.parametrize("path", [_CHAT, _MESSAGES, _RESPONSES])
@pytest.mark.parametrize(
    "changed",
    [
        {"model": "n"},
        {"cache_salt": "s"},
        {"extra_key": "s"},
        {"lora_path": "a"},
        {"chat_template": "t"},
        {"chat_template_kwargs": {"thinking": True}},
        {"reasoning_effort": "high"},
        {"tools": [{"name": "f"}]},
    ],
)
def test_what_stands_before_the_first_message_changes_every_mark(path: str, changed: dict[str, Any]) -> None:
    one, other = _says(path, "a", "b", "c"), _says(path, "a", "b", "c", **changed)
    assert not {mark for mark, _ in one} & {mark for mark, _ in other}


@pytest.mark.parametrize(
    "other", [{"temperature": 1}, {"stream": True}, {"max_tokens": 5}, {"metadata": {"user_id": "u"}}]
)
def test_what_no_template_writes_changes_nothing(other: dict[str, Any]) -> None:
    assert _says(_CHAT, "a", "b", **other) == _says(_CHAT, "a", "b")


def test_the_system_prompt_comes_first_wherever_it_stands() -> None:
    turns = [{"role": "user", "content": "a"}]
    system = [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert _marks(_MESSAGES, messages=turns, system="S") == _marks(_MESSAGES, system=system, messages=turns)
    assert _marks(_MESSAGES, messages=turns, system="S")[0] == _marks(_MESSAGES, system="S", messages=[])[0]
    assert _marks(_RESPONSES, input="a", instructions="S") == _marks(
        _RESPONSES, instructions="S", input=[{"role": "user", "content": "a", "type": "message"}]
    )


@pytest.mark.parametrize("line", ["cc_version=1; cch=aaaa;", "cc_version=2; cch=bbbb;"])
def test_a_billing_line_is_left_out_as_a_block_and_as_a_line(line: str) -> None:
    turns = [{"role": "user", "content": "a"}]
    billing = f"x-anthropic-billing-header: {line}"
    plain = _marks(_MESSAGES, messages=turns, system="S")
    blocks = [{"type": "text", "text": billing}, {"type": "text", "text": "S"}]
    assert _marks(_MESSAGES, messages=turns, system=blocks) == plain
    assert _marks(_MESSAGES, messages=turns, system=f"{billing}\nS") == plain
    assert _marks(_MESSAGES, messages=turns, system=billing) == _marks(_MESSAGES, messages=turns)


def test_a_result_of_a_tool_is_the_same_as_text_or_as_a_part() -> None:
    def result(content: Any, **more: Any) -> PrefixMarks:
        return _says(_MESSAGES, [{"type": "tool_result", "tool_use_id": "1", "content": content} | more])

    part = {"type": "text", "text": "done", "cache_control": {"type": "ephemeral"}}
    assert result("done") == result([part]) == result("done", cache_control={"type": "ephemeral"})
    assert result("done") == result("done", is_error=False)
    assert len({result("done"), result("done", is_error=True), result("gone"), result(None)}) == 4


def test_an_image_counts_by_its_bytes_in_the_hash_and_by_its_tokens_in_the_size() -> None:
    def image(data: str) -> PrefixMarks:
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
        return _says(_CHAT, [{"type": "text", "text": "What is it?"}, url], "A cat.")

    one, other = image("QUJD" * 50_000), image("QUJE" * 50_000)
    assert one[0][0] != other[0][0]
    assert one[0][1] == other[0][1] < 4_000


def test_token_ids_and_text_of_a_completion() -> None:
    path = "/v1/completions"
    assert _marks(path, prompt="Hello") == _marks(path, prompt=["Hello"])
    assert _marks(path, prompt=[1, 2, 3]) == _marks(path, prompt=[[1, 2, 3]]) != _marks(path, prompt=[1, 2])
    assert _marks(path, prompt=["a", "b"]) == _marks(path, prompt="") == ()
    begun, longer = _marks(path, prompt="x" * 20_000), _marks(path, prompt="x" * 20_000 + "y" * 9_000)
    assert begun[:-1] == longer[: len(begun) - 1] != ()


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/batch", "/v1/embeddings", "/v1/rerank", "/v1/audio/speech"]
)
def test_what_is_no_conversation_has_no_marks(path: str) -> None:
    assert path.encode() not in BY_PATH[path.encode()].conversations


def test_what_goes_on_from_a_stored_answer_has_none() -> None:
    assert _marks(_RESPONSES, input="a", previous_response_id="resp_1") == ()
    assert _marks(_RESPONSES, input="a", conversation={"id": "conv_1"}) == ()


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[1]}',
        b'{"messages":[{"role":5}]}',
        b'{"messages":[{"role":"user","content":[1]}]}',
        b'{"messages":"x"}',
        b"{}",
    ],
)
def test_what_an_engine_will_refuse_has_none(body: bytes) -> None:
    assert _of_bytes(_CHAT, body) == ()


@pytest.mark.parametrize("client", _CLIENTS)
def test_the_reader_of_long_bodies_makes_the_same_marks(client: str) -> None:
    path = _CLIENTS[client]
    body = (_RECORDED / f"{client}.jsonl").read_bytes().splitlines()[-1]
    facts = answer(Question(path.encode(), b"", len(body), _SEED), body).facts
    assert facts is not None
    assert RequestFacts(*facts).marks == _of_bytes(path, body) != ()
    unasked = answer(Question(path.encode(), b"", len(body)), body).facts
    assert unasked is not None
    assert RequestFacts(*unasked).marks is None


_json = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_names = some.sampled_from(
    ("role", "content", "type", "text", "tool_calls", "tool_call_id", "name", "tool_use_id", "cache_control")
)
_kinds = some.sampled_from(
    ("text", "tool_result", "thinking", "image", "function_call", "input_text", "user")
)
_part = some.dictionaries(_names, _kinds | _json, max_size=4)
_turn = some.dictionaries(_names, some.lists(_part, max_size=3) | _kinds | _json, max_size=4)


@settings(max_examples=300)
@given(_dialects, some.lists(_turn, min_size=1, max_size=4), some.lists(_part, max_size=2) | _json)
def test_whatever_a_reader_accepts_can_be_marked(path: str, turns: list[Any], system: Any) -> None:
    body = {"model": "m", "input" if path == _RESPONSES else "messages": turns, "system": system, "tools": []}
    data = json.dumps(body).encode()
    with contextlib.suppress(BadInputError):
        BY_PATH[path.encode()].readers[path.encode()](data)
        marks = _of_bytes(path, data)
        assert marks == _of_bytes(path, data)
        assert [size for _, size in marks] == sorted({size for _, size in marks})


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[%b{}]}' % (b"{}," * MOST_PIECES),
        b'{"messages":[{"role":"user","content":[%b{}]}]}' % (b"{}," * MOST_PIECES),
        b'{"messages":[%b{}]}' % (b'{"role":"user","content":[%b{}]},' % (b"{}," * 900) * 20),
        b'{"messages":[{"role":"user","content":[{"type":"tool_result","content":[%b{}]}]}]}'
        % (b"{}," * MOST_PIECES),
    ],
    ids=["messages", "parts of one", "parts of many", "parts of a result"],
)
def test_more_pieces_than_any_conversation_has_are_not_read(body: bytes) -> None:
    assert _of_bytes(_CHAT, body) == ()
    assert _of_bytes(_CHAT, b'{"messages":[%b{}]}' % (b"{}," * (MOST_PIECES - 1))) != ()


def test_every_conversation_belongs_to_a_path_that_is_read() -> None:
    for dialect in DIALECTS.values():
        assert set(dialect.conversations) <= set(dialect.readers)
