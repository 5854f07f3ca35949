"""What the embedded engine writes: every event and body is JSON in OpenAI's shape."""

import json

import pytest

from millgate.servers.emulator.answers import DONE, AnswerText, error_body
from millgate.servers.emulator.requests import EmulatedSequence, GenerationRequest, Surface


def text(*, chat: bool = True, include_usage: bool = False) -> AnswerText:
    request = GenerationRequest(
        surface=Surface.CHAT if chat else Surface.COMPLETION,
        model='mo"del',
        stream=True,
        include_usage=include_usage,
        tokens_per_event=1,
        prompt_tokens=7,
        answers=(EmulatedSequence(7, 3, "length"),),
    )
    return AnswerText(request, 11, 1_700_000_000)


def event(data: bytes) -> dict[str, object]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    decoded: dict[str, object] = json.loads(data[6:])
    return decoded


def test_a_chat_stream_opens_with_the_role_and_goes_on_with_content() -> None:
    answer = text()

    assert event(answer.opening(0))["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    ]
    tokens = event(answer.tokens(1, 2))
    assert tokens["object"] == "chat.completion.chunk"
    assert tokens["model"] == 'mo"del'
    assert tokens["choices"] == [
        {"index": 1, "delta": {"content": " tok tok"}, "logprobs": None, "finish_reason": None}
    ]


def test_a_completion_stream_has_text_and_no_opening() -> None:
    answer = text(chat=False)

    assert answer.opening(0) == b""
    last = event(answer.last_tokens(0, 1, "stop"))
    assert last["object"] == "text_completion"
    assert last["choices"] == [{"index": 0, "text": " tok", "logprobs": None, "finish_reason": "stop"}]


def test_events_of_one_size_are_encoded_once() -> None:
    answer = text()

    assert answer.tokens(0, 4) is answer.tokens(0, 4)


def test_usage_comes_last_and_only_when_asked_for() -> None:
    with_usage = text(include_usage=True)
    usage, done = with_usage.closing(3).split(b"\n\n", 1)

    assert event(usage + b"\n\n")["usage"] == {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}
    assert event(usage + b"\n\n")["choices"] == []
    assert done == DONE
    assert event(with_usage.tokens(0, 1))["usage"] is None
    assert text().closing(3) == DONE
    assert "usage" not in event(text().tokens(0, 1))


@pytest.mark.parametrize(("chat", "kind"), [(True, "chat.completion"), (False, "text_completion")])
def test_a_whole_answer_has_all_choices_and_the_sum_of_their_tokens(chat: bool, kind: str) -> None:
    whole = json.loads(text(chat=chat).whole([(2, "length"), (1, "stop")]))

    assert whole["object"] == kind
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["length", "stop"]
    said = [choice["message"]["content"] if chat else choice["text"] for choice in whole["choices"]]
    assert said == [" tok tok", " tok"]
    assert whole["usage"] == {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}


def test_an_error_repeats_its_status_as_a_number() -> None:
    assert json.loads(error_body(503, "full", "Service Unavailable")) == {
        "error": {"message": "full", "type": "Service Unavailable", "param": None, "code": 503}
    }
