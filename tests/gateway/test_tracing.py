"""Traces end to end: spans as a collector reads them, the context at the engine, the id in log and `why`."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gateway.harness import Asked, Stand, chat, run, until
from gateway.stand import core_settings, gating
from millgate.core.settings import LaneSettings
from millgate.observe.observers import ObserverSettings
from millgate.observe.tracing import TraceExporter, TracingSettings

Span = dict[str, Any]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SERVER, CLIENT, INTERNAL, ERROR = 2, 3, 1, 2
"""Kinds of spans, and the code of a status that is an error, by opentelemetry/proto/trace/v1/trace.proto."""
_REQUIRED = {"traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes"}
_OPTIONAL = {"parentSpanId", "events", "status"}
PROMPT = "a-prompt-that-no-span-may-hold"


class Collector(ThreadingHTTPServer):
    """Reads exports as a collector does; answers with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reader)
        self.status, self.closes = 200, False
        self.exports: list[list[Span]] = []
        self.raw: list[bytes] = []
        self.headers: list[str | None] = []

    @property
    def spans(self) -> list[Span]:
        return [span for each in self.exports for span in each]


class Reader(BaseHTTPRequestHandler):
    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.raw.append(body)
        self.server.headers.append(self.headers["x-collector-key"])
        if self.server.status == 200 and not self.server.closes:
            self.server.exports.append(read(body))
        self.send_response(self.server.status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = self.server.closes

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def read(body: bytes) -> list[Span]:
    """Return the spans of an export; AssertionError where it is not as OTLP writes it in JSON: a collector would refuse it."""
    (of,) = json.loads(body)["resourceSpans"]
    resource = {each["key"]: each["value"]["stringValue"] for each in of["resource"]["attributes"]}
    assert resource["service.name"] == "millgate"
    (scope,) = of["scopeSpans"]
    spans: list[Span] = scope["spans"]
    for span in spans:
        assert set(span) <= _OPTIONAL | _REQUIRED, span
        assert set(span) >= _REQUIRED, span
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert re.fullmatch("[0-9a-f]{16}|", span.get("parentSpanId", ""))
        assert all(span[name].isdecimal() for name in ("startTimeUnixNano", "endTimeUnixNano"))
    return spans


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def told(collector: Collector, log: Path | None = None, **changes: Any) -> ObserverSettings:
    port = collector.server_address[1]
    settings = TracingSettings(
        f"http://127.0.0.1:{port}/v1/traces", headers={"x-collector-key": "k"}, **changes
    )
    return ObserverSettings(None if log is None else str(log), tracing=settings)


def attributes(span: Span) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


async def ask(stand: Stand, **fields: Any) -> None:
    await stand.ask(chat(PROMPT, stream=True), **fields)
    await stand.settle()


def test_a_request_is_one_tree_from_the_client_through_the_gate_to_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def test(collector: Collector) -> None:
        async with gating(observers=told(collector, log)) as stand:
            await ask(stand, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1")
            engine_saw = await stand.engine.next()
            found = stand.gateway.observers.why(TRACE)
        await until(lambda: len(collector.spans) == 2)
        sent = {span["kind"]: span for span in collector.spans}
        own, stay = sent[SERVER], sent[CLIENT]
        assert own["traceId"] == stay["traceId"] == TRACE
        assert own["parentSpanId"] == PARENT
        assert stay["parentSpanId"] == own["spanId"]
        assert engine_saw.headers["traceparent"] == f"00-{TRACE}-{stay['spanId']}-01"
        assert engine_saw.headers["tracestate"] == "vendor=1"
        assert int(own["startTimeUnixNano"]) <= int(stay["startTimeUnixNano"]) < int(stay["endTimeUnixNano"])
        assert stay["endTimeUnixNano"] == own["endTimeUnixNano"]
        assert [each["name"] for each in stay["events"]] == ["first_token"]
        assert attributes(own)["gen_ai.operation.name"] == "chat"
        assert attributes(own)["gen_ai.usage.output_tokens"] == "2"
        assert attributes(own)["millgate.outcome"] == "good"
        assert found[0].trace == TRACE

    with collecting() as collector:
        run(test(collector))
        assert collector.headers == ["k"]
        assert PROMPT.encode() not in b"".join(collector.raw)
    assert json.loads(log.read_text())["trace_id"] == TRACE


def test_a_request_that_waits_has_a_span_of_its_wait_and_a_refused_one_is_an_error() -> None:
    go = asyncio.Event()

    async def hold(asked: Asked) -> None:
        await go.wait()
        asked.reply(b'{"usage":{"prompt_tokens":1,"completion_tokens":1},"choices":[{}]}')

    async def test(collector: Collector) -> None:
        core = core_settings(max_inflight=1, lanes=(LaneSettings("interactive", max_queue=1),))
        async with gating(hold, core=core, observers=told(collector)) as stand:
            asking = [asyncio.create_task(stand.ask(chat())) for _ in range(3)]
            await asyncio.sleep(0)
            await until(lambda: stand.snapshot.lanes[0].queued == 1 and any(task.done() for task in asking))
            go.set()
            await asyncio.gather(*asking)
            await stand.settle()
        await until(
            lambda: len(collector.spans) == 6
        )  # three attempts, two at the engine, one of which had to wait
        names = sorted(span["name"] for span in collector.spans if span["kind"] == INTERNAL)
        assert names == ["queue"]
        refused = [span for span in collector.spans if span.get("status", {}).get("code") == ERROR]
        assert [attributes(span)["error.type"] for span in refused] == ["queue_full"]
        assert int(attributes(refused[0])["millgate.retry_after_ms"]) > 0

    with collecting() as collector:
        run(test(collector))


def test_a_trace_that_is_not_sampled_passes_on_and_leaves_no_span() -> None:
    async def test(collector: Collector) -> None:
        async with gating(observers=told(collector, share=0.0)) as stand:
            await ask(stand)
            await ask(stand, traceparent=f"00-{TRACE}-{PARENT}-00")
            seen = stand.engine.asked[1].headers["traceparent"]
        assert seen.startswith(f"00-{TRACE}-")
        assert seen.endswith("-00")
        assert collector.raw == []

    with collecting() as collector:
        run(test(collector))


def test_a_collector_that_refuses_or_is_away_costs_spans_and_no_request() -> None:
    heard: list[str] = []

    async def test(collector: Collector) -> None:
        collector.status = 503
        async with gating(observers=told(collector)) as stand:
            assert stand.gateway.observers.traces is not None
            stand.gateway.observers.traces.on_turn(heard.append)
            await ask(stand)
            await until(lambda: stand.gateway.observers.traces_dropped == 1)
            assert stand.outcomes() == {"good": 1}

    with collecting() as collector:
        run(test(collector))
        assert heard == ["status 503"]


def test_a_connection_that_the_collector_has_closed_since_costs_no_spans() -> None:
    """Collectors close what is idle for a minute: of a quiet gate every second export was lost."""
    with collecting() as collector:
        exporter = TraceExporter(TracingSettings(f"http://127.0.0.1:{collector.server_address[1]}/"), "1")
        collector.closes = True
        for number in (1, 2, 3):
            exporter.add(b"", 1)
            by = time.monotonic() + 30.0
            while len(collector.raw) < number and not exporter.dropped and time.monotonic() < by:
                time.sleep(0.01)
        exporter.close()
        assert (len(collector.raw), exporter.dropped) == (3, 0)


def test_a_collector_whose_address_is_none_costs_spans_and_does_not_end_the_thread() -> None:
    exporter = TraceExporter(TracingSettings("http://a..b/v1/traces"), "1")
    exporter.add(b"", 1)
    exporter.close()
    assert exporter.dropped == 1


def test_without_tracing_a_client_s_trace_passes_untouched() -> None:
    async def test() -> None:
        async with gating() as stand:
            await ask(stand, traceparent=f"00-{TRACE}-{PARENT}-01")
            assert (await stand.engine.next()).headers["traceparent"] == f"00-{TRACE}-{PARENT}-01"
            assert stand.gateway.observers.traces is None

    run(test())
