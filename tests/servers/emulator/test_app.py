"""The embedded engine over real sockets: it behaves as vLLM does where a gateway can tell."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from millgate.servers.emulator import EmulatorSettings, RunningEngine, start_engine

FAST = EmulatorSettings(port=0, time_scale=10.0)
MESSAGES = [{"role": "user", "content": "x" * 400}]


@asynccontextmanager
async def engine(settings: EmulatorSettings = FAST) -> AsyncIterator[RunningEngine]:
    running = await start_engine(settings)
    try:
        yield running
    finally:
        await running.stop()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    uvloop.run(bounded())


@dataclass
class Client:
    """One connection that speaks just enough HTTP."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, running: RunningEngine) -> "Client":
        return cls(*await asyncio.open_connection(running.host, running.port))

    async def send(self, method: str, path: str, body: dict[str, object] | None = None) -> int:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        return await self.head()

    async def head(self) -> int:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        self.length = next((int(line[16:]) for line in lines if line.startswith("content-length: ")), None)
        return int(lines[0].split()[1])

    async def body(self) -> bytes:
        if self.length is not None:
            return await self.reader.readexactly(self.length)
        chunks = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(chunks)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readline()
        return data

    def close(self) -> None:
        self.writer.close()


async def ask(
    running: RunningEngine, method: str, path: str, body: dict[str, object] | None = None
) -> tuple[int, Any]:
    client = await Client.to(running)
    status = await client.send(method, path, body)
    data = await client.body()
    client.close()
    return status, json.loads(data) if data.startswith(b"{") else data.decode()


async def stats(running: RunningEngine) -> dict[str, Any]:
    _, answer = await ask(running, "GET", "/stats")
    assert isinstance(answer, dict)
    return answer


async def until(running: RunningEngine, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not holds(seen := await stats(running)):  # noqa: ASYNC110 - the engine is asked as a gateway would
        await asyncio.sleep(0.005)
    return seen


def events(stream: bytes) -> list[Any]:
    parts = stream.decode().split("\n\n")
    assert parts[-1] == ""
    assert parts[-2] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def chat(**fields: object) -> dict[str, object]:
    return {"model": "any", "messages": MESSAGES, **fields}


def test_a_chat_stream_has_role_tokens_finish_reason_and_usage() -> None:
    async def story() -> None:
        async with engine() as running:
            client = await Client.to(running)
            body = chat(stream=True, max_tokens=6, stream_options={"include_usage": True})
            assert await client.send("POST", "/v1/chat/completions", body) == 200
            seen = events(await client.body())
            client.close()
            assert seen[0]["choices"][0]["delta"]["role"] == "assistant"
            said = "".join(event["choices"][0]["delta"]["content"] for event in seen[:-1])
            assert said == " tok" * 6
            assert seen[1]["choices"][0]["delta"]["content"] == " tok"
            assert seen[-2]["choices"][0]["finish_reason"] == "length"
            assert seen[-1]["usage"] == {"prompt_tokens": 100, "completion_tokens": 6, "total_tokens": 106}

    run(story)


def test_a_whole_completion_has_all_choices_and_a_kept_alive_connection_serves_the_next() -> None:
    async def story() -> None:
        async with engine() as running:
            client = await Client.to(running)
            for _ in range(2):
                body: dict[str, object] = {"prompt": [[1, 2], [3, 4, 5]], "n": 2, "max_tokens": 3}
                assert await client.send("POST", "/v1/completions", body) == 200
                answer = json.loads(await client.body())
                assert [choice["text"] for choice in answer["choices"]] == [" tok tok tok"] * 4
                assert answer["usage"]["prompt_tokens"] == 5
                assert answer["usage"]["completion_tokens"] == 12
            client.close()

    run(story)


def test_a_stream_with_several_answers_ends_each_and_closes_once() -> None:
    async def story() -> None:
        async with engine() as running:
            client = await Client.to(running)
            await client.send(
                "POST", "/v1/completions", {"prompt": "abcd", "n": 3, "max_tokens": 4, "stream": True}
            )
            seen = [event["choices"][0] for event in events(await client.body())]
            client.close()
            for index in range(3):
                own = [choice for choice in seen if choice["index"] == index]
                assert "".join(choice["text"] for choice in own) == " tok" * 4
                assert [choice["finish_reason"] for choice in own][-1] == "length"

    run(story)


def test_one_event_may_carry_several_tokens_after_the_first() -> None:
    async def story() -> None:
        async with engine() as running:
            client = await Client.to(running)
            body = chat(stream=True, max_tokens=41, millgate_output_tokens=25, millgate_tokens_per_event=8)
            await client.send("POST", "/v1/chat/completions", body)
            seen = [event["choices"][0] for event in events(await client.body())][1:]
            client.close()
            sizes = [len(choice["delta"]["content"]) // 4 for choice in seen]
            assert sum(sizes) == 25
            assert sizes[0] == 1
            assert len(sizes) <= 4
            assert seen[-1]["finish_reason"] == "stop"

    run(story)


def test_status_and_headers_come_at_once_while_the_request_waits() -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, max_num_seqs=1)) as running:
            first, second = await Client.to(running), await Client.to(running)
            assert await first.send("POST", "/v1/chat/completions", chat(stream=True, max_tokens=500)) == 200
            assert await second.send("POST", "/v1/chat/completions", chat(stream=True, max_tokens=5)) == 200
            seen = await stats(running)
            assert (seen["running"], seen["waiting"]) == (1, 1)
            first.close()
            assert len(events(await second.body())) >= 2
            second.close()

    run(story)


def test_a_full_queue_refuses_with_503() -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, max_num_seqs=1, max_num_queued_reqs=1)) as running:
            clients = [await Client.to(running) for _ in range(2)]
            for client in clients:
                assert (
                    await client.send("POST", "/v1/chat/completions", chat(stream=True, max_tokens=500))
                    == 200
                )
            status, answer = await ask(running, "POST", "/v1/chat/completions", chat(max_tokens=5))
            assert status == 503
            assert answer["error"]["type"] == "Service Unavailable"
            assert answer["error"]["code"] == 503
            assert (await stats(running))["refused"] == 1
            for client in clients:
                client.close()

    run(story)


@pytest.mark.parametrize("stream", [True, False])
def test_a_hang_up_aborts_what_runs_and_what_waits(stream: bool) -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, max_num_seqs=1)) as running:
            clients = [await Client.to(running) for _ in range(2)]
            for client in clients:
                data = json.dumps(chat(stream=stream, max_tokens=2000)).encode()
                client.writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(data), data)
                )
            await until(running, lambda seen: seen["output_tokens"] >= 3 and seen["waiting"] == 1)
            for client in clients:
                client.close()
            seen = await until(running, lambda seen: seen["running"] + seen["waiting"] == 0)
            assert (seen["aborted"], seen["client_gone"], seen["finished"]) == (2, 2, 0)
            assert seen["wasted_tokens"] == seen["output_tokens"] < 1000
            assert seen["orphan_tokens"] <= 1
            assert seen["kv_share"] == 0.0

    run(story)


def test_an_engine_that_ignores_hang_ups_finishes_for_nobody_and_counts_it() -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, time_scale=10.0, ignore_hangups=True)) as running:
            client = await Client.to(running)
            await client.send("POST", "/v1/chat/completions", chat(stream=True, max_tokens=1000))
            await client.chunk()
            client.close()
            seen = await until(running, lambda seen: seen["finished"] == 1)
            assert (seen["aborted"], seen["client_gone"]) == (0, 1)
            assert seen["wasted_tokens"] == 1000
            assert 0 < seen["orphan_tokens"] < 1000

    run(story)


def test_tokens_for_a_slow_reader_come_together_once_it_reads_again() -> None:
    async def story() -> None:
        async with engine() as running:
            client = await Client.to(running)
            await client.send(
                "POST", "/v1/completions", {"prompt": "abcd", "max_tokens": 300, "stream": True}
            )
            first = await client.chunk()
            (exchange,) = running.application._open
            running.application.on_slow(exchange, True)
            await until(running, lambda seen: seen["output_tokens"] > 30)
            running.application.on_slow(exchange, False)
            sizes = [len(event["choices"][0]["text"]) // 4 for event in events(first + await client.body())]
            client.close()
            assert sum(sizes) == 300
            assert max(sizes) > 10

    run(story)


def test_a_stop_ends_streams_with_abort_and_done() -> None:
    async def story() -> None:
        running = await start_engine(EmulatorSettings(port=0, max_num_seqs=1))
        clients = [await Client.to(running) for _ in range(2)]
        for client in clients:
            await client.send("POST", "/v1/chat/completions", chat(stream=True, max_tokens=500))
        await clients[0].chunk()
        stopping = asyncio.ensure_future(running.stop())
        for client in clients:
            assert events(await client.body())[-1]["choices"][0]["finish_reason"] == "abort"
            client.close()
        await stopping

    run(story)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
def test_unknown_paths_and_wrong_methods_are_refused(method: str, path: str, status: int) -> None:
    async def story() -> None:
        async with engine() as running:
            seen, answer = await ask(running, method, path)
            assert seen == status
            assert answer["error"]["code"] == status

    run(story)


def test_bad_input_is_400_with_the_field_and_starts_nothing() -> None:
    async def story() -> None:
        async with engine() as running:
            status, answer = await ask(running, "POST", "/v1/chat/completions", chat(max_tokens=10**6))
            assert status == 400
            assert answer["error"]["param"] == "max_tokens"
            assert (await stats(running))["executed"] == 0

    run(story)


def test_models_health_metrics_and_reset_answer() -> None:
    async def story() -> None:
        async with engine() as running:
            await ask(running, "POST", "/v1/chat/completions", chat(max_tokens=3))
            status, models = await ask(running, "GET", "/v1/models")
            assert (status, models["data"][0]["id"]) == (200, "millgate-engine")
            assert (await ask(running, "GET", "/health"))[0] == 200
            _, metrics = await ask(running, "GET", "/metrics")
            assert (
                'vllm:time_to_first_token_seconds_count{engine="0",model_name="millgate-engine"} 1' in metrics
            )
            assert (
                'vllm:inter_token_latency_seconds_count{engine="0",model_name="millgate-engine"} 2' in metrics
            )
            assert (await stats(running))["executed"] == 1
            assert (await ask(running, "POST", "/stats/reset"))[1]["executed"] == 0

    run(story)


def test_twenty_at_once_run_within_the_limit_and_all_finish() -> None:
    async def story() -> None:
        async with engine(EmulatorSettings(port=0, time_scale=10.0, max_num_seqs=4)) as running:
            answers = await asyncio.gather(
                *(ask(running, "POST", "/v1/chat/completions", chat(max_tokens=100)) for _ in range(20))
            )
            assert {status for status, _ in answers} == {200}
            seen = await stats(running)
            assert (seen["finished"], seen["peak_running"]) == (20, 4)
            assert seen["output_tokens"] == 2000
            assert seen["wasted_tokens"] == 0

    run(story)


def test_as_a_process_it_says_where_it_serves_and_exits_cleanly_on_a_signal() -> None:
    code = "from millgate.servers.emulator import EmulatorSettings, run; run(EmulatorSettings(port=0))"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        record = json.loads(line)
        assert (record["event"], record["host"]) == ("engine ready", "127.0.0.1")
        assert record["port"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
