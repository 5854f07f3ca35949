"""The line clients and the two commands against a server that follows a script, and their exit codes."""

import asyncio
import hashlib
import json
import socketserver
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from millgate.cli.main import main
from millgate.client.line import AbortedError, AsyncLineClient, LineClient, LineError, SentJob, YieldedError
from millgate.dialects.line import NO_JOB, LineReply, Receipt, Status, read_request, write_reply
from millgate.dialects.line_requests import LineChunk, LineRequest, Manifest, Verb

Say = Callable[[LineRequest], list[LineReply]]
RESULT = b"the answer" * 10


def ok(request: LineRequest, **more: Any) -> LineReply:
    return LineReply(Verb.CLARIFY, request.job, request.seq + 1, Status.OK, **more)


def busy(request: LineRequest, hint_ms: int = 20) -> LineReply:
    return LineReply(Verb.CLARIFY, request.job, request.seq + 2, Status.YIELD, "server_busy", "busy", hint_ms)


def done(request: LineRequest) -> LineReply:
    receipts = [Receipt("cdr.backend.ms", 7)]
    return LineReply(Verb.CONFIRM, request.job, request.seq + 2, Status.DONE, receipts=receipts)


def result(request: LineRequest, data: bytes = RESULT, sha256: str = "") -> list[LineReply]:
    digest = sha256 or hashlib.sha256(data).hexdigest()
    manifest = Manifest("payload", "text/plain", "", "", len(data), len(data), 1, digest)
    chunk = LineChunk("payload", 0, 0, hashlib.sha256(data).hexdigest(), b64encode(data).decode())
    whole = LineReply(Verb.RESULT, request.job, request.seq + 1, Status.OK, manifest=manifest)
    return [whole, whole._replace(manifest=None, chunk=chunk)]


@contextmanager
def server(
    last: list[Callable[[LineRequest], list[LineReply]]], health: int = 1, port: int = 0
) -> Iterator[tuple[str, list[LineRequest]]]:
    """Take uploads; answer the n-th last chunk as the n-th of `last` says, and close after what names no job."""
    seen: list[LineRequest] = []
    said = iter(last)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            chunks = 0
            for line in self.rfile:
                request = read_request(line[:-1])
                assert isinstance(request, LineRequest)
                seen.append(request)
                if request.manifest is not None:
                    chunks = request.manifest.chunks
                for reply in self.answer(request, chunks):
                    self.wfile.write(write_reply(reply))
                    if reply.job == NO_JOB:
                        return

        def answer(self, request: LineRequest, chunks: int) -> list[LineReply]:
            if request.verb is Verb.PING:
                receipts = [Receipt("server.health", health)]
                return [LineReply(Verb.CONFIRM, request.job, request.seq + 1, Status.OK, receipts=receipts)]
            if request.chunk is not None and request.chunk.number == chunks - 1:
                return next(said)(request)
            return [ok(request)]

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", port), Handler) as listening:
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{listening.server_address[1]}", seen
        listening.shutdown()


def send_sync(address: str, payload: bytes, **more: Any) -> SentJob:
    sending = {name: more.pop(name) for name in ("want_result", "chunk_bytes", "session") if name in more}
    with LineClient(address, **more) as client:
        return client.send(payload, **sending)


def send_async(address: str, payload: bytes, **more: Any) -> SentJob:
    sending = {name: more.pop(name) for name in ("want_result", "chunk_bytes", "session") if name in more}

    async def body() -> SentJob:
        async with AsyncLineClient(address, **more) as client:
            return await client.send(payload, **sending)

    return asyncio.run(body())


@pytest.mark.parametrize("send", [send_sync, send_async])
def test_a_job_comes_back_with_its_last_chunk_until_it_is_done(send: Any) -> None:
    says = [lambda r: [busy(r)], lambda r: [ok(r), busy(r)], lambda r: [ok(r), *result(r), done(r)]]
    with server(says) as (address, seen):
        sent = send(address, b"0123456789", chunk_bytes=4, want_result=True, token="t", session="s1")
        assert (sent.result, sent.content_type, sent.yields, sent.backend_ms) == (RESULT, "text/plain", 2, 7)
        assert [each.seq for each in seen] == [1, 2, 3, 4, 5, 6]
        assert all(each.token == "t" for each in seen)
        assert [each.manifest.session for each in seen if each.manifest] == ["s1"]
        assert b"".join(b64decode(each.chunk.bytes_b64) for each in seen[1:4] if each.chunk) == b"0123456789"
        assert [each.chunk.number for each in seen[3:] if each.chunk] == [2, 2, 2]


@pytest.mark.parametrize("send", [send_sync, send_async])
def test_what_goes_wrong_has_a_name(send: Any) -> None:
    with server([lambda r: [busy(r, 1500)]]) as (address, _), pytest.raises(YieldedError) as yielded:
        send(address, b"x", retries=0)
    assert yielded.value.hint_s == 1.5
    abort = LineReply(Verb.CONFIRM, "J_1", 4, Status.ABORT, "backend_error", "backend_error")
    abort = abort._replace(message="no such\x1b model", request_id="ab-1")
    words = "backend_error; no such model; request id ab-1"
    with server([lambda _: [abort]]) as (address, _), pytest.raises(AbortedError, match=words):
        send(address, b"x")
    need = LineReply(Verb.CLARIFY, "J_1", 4, Status.NEED, "payload_hash_mismatch", "need_more")
    with server([lambda _: [need]]) as (address, _), pytest.raises(LineError, match="payload_hash_mismatch"):
        send(address, b"x")
    says = [lambda r: [*result(r, sha256="0" * 64), done(r)]]
    with server(says) as (address, _), pytest.raises(LineError, match="digest"):
        send(address, b"x", want_result=True)
    with server([lambda _: []]) as (address, _), pytest.raises(LineError, match="failed"):
        send(address, b"x", timeout_s=0.1)
    with pytest.raises(LineError, match="cannot connect"):
        send("127.0.0.1:9", b"x")
    with pytest.raises(LineError, match="not an address"):
        send("host:port", b"x")


def test_send_exits_0_done_2_aborted_1_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload, answer = tmp_path / "payload.bin", tmp_path / "answer"
    payload.write_bytes(b"hello")
    with server([lambda r: [busy(r), ok(r)], lambda r: [*result(r), done(r)]]) as (address, _):
        assert main(["send", str(payload), "--addr", address, "--result", str(answer)]) == 0
    assert answer.read_bytes() == RESULT
    assert "recv v=0 verb=confirm job=J_payload.bin seq=5 status=done need= err=" in capsys.readouterr().out
    with server([lambda r: [busy(r)]]) as (address, _):
        assert main(["send", str(payload), "--addr", address, "--retries", "0", "--csv", "--csv-header"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "ts_unix_ms,verb,job,seq,status,need_code,retry_hint_ms,error"
    assert out[-1].split(",")[1:] == ["clarify", "J_payload.bin", "4", "yield", "server_busy", "20", "busy"]
    abort = LineReply(Verb.CONFIRM, "J_payload.bin", 4, Status.ABORT, "backend_error", "backend_error")
    with server([lambda _: [abort]]) as (address, _):
        assert main(["send", str(payload), "--addr", address, "--quiet"]) == 2
    assert main(["send", str(tmp_path / "absent")]) == 1
    assert main(["send", str(payload), "--addr", "127.0.0.1:9"]) == 1


def test_what_cannot_be_sent_is_said_before_anything_is() -> None:
    with server([]) as (address, seen), LineClient(address) as client:
        with pytest.raises(LineError, match="the payload is empty"):
            client.send(b"")
        with pytest.raises(LineError, match="chunk_bytes is 0, the least is 1"):
            client.send(b"{}", chunk_bytes=0)
    assert not seen


def test_a_task_that_survived_a_cancellation_hears_that_its_server_is_late() -> None:
    """A task group whose member failed leaves its task so in Python 3.11.2, and the end of its wait was a CancelledError."""

    async def survivor(address: str) -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        async with AsyncLineClient(address, timeout_s=0.1) as client:
            with pytest.raises(LineError, match="has failed"):
                await client.send(b"x")

    async def body(address: str) -> None:
        await asyncio.create_task(survivor(address))

    def late(request: LineRequest) -> list[LineReply]:
        time.sleep(0.4)
        return [done(request)]

    with server([late]) as (address, _):
        asyncio.run(body(address))


def test_a_ping_is_not_answered_by_a_job_that_was_given_up() -> None:
    """A caller gave its job up at its own timeout; the job was done later, and the next ping took that for its answer."""

    async def body(address: str) -> bool:
        async with AsyncLineClient(address) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.send(b"x"), 0.2)
            return (await client.ping()).ready

    def late(request: LineRequest) -> list[LineReply]:
        time.sleep(0.4)
        return [done(request)]

    with server([late]) as (address, _):
        assert asyncio.run(body(address))


@pytest.mark.parametrize("send", [send_sync, send_async])
def test_a_job_comes_back_on_a_new_connection_when_a_gate_that_drains_sends_its_own_away(send: Any) -> None:
    away = LineReply(Verb.CLARIFY, NO_JOB, 2, Status.YIELD, "server_busy", "busy", 20)
    says = [lambda r: [busy(r), away], lambda r: [*result(r), done(r)]]
    with server(says) as (address, seen):
        sent = send(address, b"0123456789", chunk_bytes=4, want_result=True)
        assert (sent.result, sent.yields) == (RESULT, 2)
        # On the first connection the last chunk came once; all of it is sent on the second one.
        assert [each.chunk.number if each.chunk else "manifest" for each in seen[-4:]] == [
            "manifest",
            0,
            1,
            2,
        ]
    with server([lambda _: [away], lambda _: [away]]) as (address, _), pytest.raises(YieldedError):
        send(address, b"x", retries=1)


@pytest.mark.parametrize("send", [send_sync, send_async])
def test_a_job_waits_for_the_gate_that_starts_where_another_one_has_drained(send: Any) -> None:
    away = LineReply(Verb.CLARIFY, NO_JOB, 2, Status.YIELD, "server_busy", "busy", 200)
    with ThreadPoolExecutor() as pool:
        with server([lambda _: [away]]) as (address, seen):
            sent = pool.submit(send, address, b"x")
            while len(seen) < 2:
                time.sleep(0.001)
        time.sleep(0.3)  # nothing listens
        with server([lambda r: [done(r)]], port=int(address.partition(":")[2])):
            assert sent.result(10).yields > 1
        with server([lambda _: [away]]) as (address, seen):
            sent = pool.submit(send, address, b"x", retries=3)
            while len(seen) < 2:
                time.sleep(0.001)
        with pytest.raises(LineError, match="cannot connect"):
            sent.result(10)


def test_a_refused_job_leaves_its_name_to_the_next_and_its_end_is_not_the_end_of_another() -> None:
    """The door holds 64 unfinished jobs of a connection; a client without retries filled it, and had its next job aborted."""
    late = LineReply(Verb.CONFIRM, "J_7", 4, Status.ABORT, "idle_timeout", "timeout")
    says = [lambda r: [busy(r)], lambda r: [late, late._replace(status=Status.NEED), done(r)]]
    with server(says) as (address, seen), LineClient(address, retries=0) as client:
        with pytest.raises(YieldedError):
            client.send(b"one")
        assert client.send(b"two").yields == 0
    assert {each.job for each in seen} == {"J_1"}


def _slowly(request: LineRequest) -> list[LineReply]:
    """The replies come in two turns, in which another job's may be asked for."""
    time.sleep(0.05)
    return [ok(request), done(request)]


def test_jobs_that_tasks_send_at_once_over_one_client_are_all_executed() -> None:
    """All but one ended with a RuntimeError of asyncio's streams, and had been executed."""

    async def body(address: str) -> list[SentJob]:
        async with AsyncLineClient(address) as client:
            return await asyncio.gather(*(client.send(b"x") for _job in range(4)))

    with server([_slowly] * 4) as (address, seen):
        assert len(asyncio.run(body(address))) == 4
        assert len({request.job for request in seen}) == 4


def test_jobs_that_threads_send_at_once_over_one_client_are_all_executed() -> None:
    """Each read replies to the others', and waited in vain for its own."""
    with (
        server([_slowly] * 4) as (address, _seen),
        LineClient(address, timeout_s=2.0) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        assert len(list(threads.map(client.send, [b"x"] * 4))) == 4


def test_ping_exits_0_ready_2_saturated_1_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    with server([]) as (address, _):
        assert main(["ping", "--addr", address]) == 0
    assert json.dumps("status=ok")[1:-1] in capsys.readouterr().out
    with server([], health=0) as (address, _):
        assert main(["ping", "--addr", address, "--quiet"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["ping", "--addr", "127.0.0.1:9"]) == 1
