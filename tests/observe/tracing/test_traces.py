"""The spans of an attempt, whatever became of it and whatever it was called: text that a collector reads as JSON."""

import json
from typing import Any

import pytest

from millgate.core.decisions import Ended, Yield
from millgate.core.events import Arrived
from millgate.core.words import FailureKind, Outcome, Reason, Stage
from millgate.observe.ring import facts_of
from millgate.observe.tracing import TraceExporter, Traces, TracingSettings

INTERNAL, SERVER, CLIENT, ERROR = 1, 2, 3, 2
HOSTILE = 'a\r\nb"}],\\u0000\u202e\ud800%s{0}'


class Kept(TraceExporter):
    """Keeps what it should send."""

    def __init__(self) -> None:
        super().__init__(TracingSettings("http://127.0.0.1:9/"), "1")
        self.close()
        self.texts: list[bytes] = []
        self.attempts = 0

    def add(self, spans: bytes, attempts: int) -> None:
        self.texts.append(spans)
        self.attempts += attempts

    def spans(self) -> list[dict[str, Any]]:
        return [span for text in self.texts for span in json.loads(b"[%b]" % text)]


def spans_of(final: Ended | Yield, model: str = "m", max_tokens: int | None = None) -> list[dict[str, Any]]:
    kept = Kept()
    traces = Traces(kept, first_lane="first")
    traces.begin(1, None)
    traces.end(100.0, 103.0, facts_of(Arrived(1, model=model, max_tokens=max_tokens)), final)
    traces.hand_over()
    assert kept.attempts == 1
    return kept.spans()


def ended(
    outcome: Outcome = Outcome.GOOD, engine: str | None = "gpu", waited_s: float = 0.0, **others: Any
) -> Ended:
    fields: dict[str, Any] = {"ttft_s": None, "cause": None, "cached_tokens": None, **others}
    return Ended(1, outcome, "lane", engine, waited_s, 3.0, prompt_tokens=7, output_tokens=9, **fields)


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def micros(span: dict[str, Any], event: int | None = None) -> tuple[int, int]:
    """Return when it, or its event, was and when it ended, in microseconds since 1970."""
    at = span["startTimeUnixNano"] if event is None else span["events"][event]["timeUnixNano"]
    return int(at) // 1000, int(span["endTimeUnixNano"]) // 1000


@pytest.mark.parametrize("name", [HOSTILE, "m" * 500, "", "模型"])
def test_no_name_breaks_the_text(name: str) -> None:
    final = Ended(1, Outcome.GOOD, name, name or "gpu", 0.0, 3.0, None, 7, 9, None)
    own, stay = spans_of(final, model=name)
    assert own["name"] == stay["name"] == (f"chat {name[:128]}" if name else "chat")
    assert attributes(own)["gen_ai.request.model"] == name[:128]
    assert attributes(own)["millgate.lane"] == name
    assert attributes(stay) == {"server.address": name or "gpu"}


def test_a_request_waits_runs_and_has_its_first_token_in_its_trace_s_time() -> None:
    own, stay, queue = spans_of(ended(waited_s=0.5, ttft_s=1.25, cached_tokens=3), max_tokens=8)
    began, over = micros(own)
    assert over - began == 3_000_000
    assert (queue["kind"], micros(queue)) == (INTERNAL, (began, began + 500_000))
    assert (stay["kind"], micros(stay)) == (CLIENT, (began + 500_000, over))
    assert micros(stay, event=0)[0] == began + 1_250_000
    assert {span["parentSpanId"] for span in (stay, queue)} == {own["spanId"]}
    assert len({span["spanId"] for span in (own, stay, queue)}) == 3
    assert attributes(own) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": "7",
        "gen_ai.usage.output_tokens": "9",
        "gen_ai.usage.cache_read.input_tokens": "3",
        "millgate.lane": "lane",
        "millgate.outcome": "good",
    }


def test_embeddings_are_called_so() -> None:
    own, _ = spans_of(ended(), max_tokens=0)
    assert (own["name"], attributes(own)["gen_ai.operation.name"]) == ("embeddings m", "embeddings")


def test_a_failed_engine_is_an_error_of_both_spans_and_a_client_that_left_is_none() -> None:
    own, stay = spans_of(ended(Outcome.ENGINE_FAILED, cause=FailureKind.TIMEOUT, ttft_s=1.0))
    assert own["status"] == stay["status"] == {"code": ERROR, "message": "timeout"}
    assert attributes(own)["error.type"] == "timeout"
    own, stay = spans_of(ended(Outcome.CLIENT_GONE, cause=Stage.DECODE))
    assert "status" not in own
    assert "status" not in stay
    assert attributes(own)["error.type"] == Stage.DECODE.value


def test_what_left_the_queue_has_a_wait_and_no_stay() -> None:
    own, queue = spans_of(ended(Outcome.CLIENT_GONE, engine=None, cause=Stage.QUEUED))
    assert (own["kind"], queue["kind"]) == (SERVER, INTERNAL)
    assert micros(own) == micros(queue)
    assert "gen_ai.usage.input_tokens" not in attributes(own)


def test_a_refusal_is_an_error_with_its_hint() -> None:
    (own,) = spans_of(Yield(1, Reason.SATURATED, 1.5, retry=True))
    assert own["status"] == {"code": ERROR, "message": "saturated"}
    assert attributes(own)["millgate.retry_after_ms"] == "1500"
    assert attributes(own)["millgate.lane"] == "first"
    (own,) = spans_of(Yield(1, Reason.TOO_LARGE, 0.0, retry=False))
    assert "millgate.retry_after_ms" not in attributes(own)
