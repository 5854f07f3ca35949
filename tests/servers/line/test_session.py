"""The contract of the line protocol, exchange by exchange, on a session without a socket."""

import json
from typing import Any

import pytest

from millgate.dialects.line import LineReply, OutcomeReason, Status
from millgate.servers.line.contract import LineLimits, Readings
from servers.line.stand import Stand, brief, chunk, frame, manifest, ping, upload

PAYLOAD = b"0123456789"


def said(stand: Stand, data: bytes) -> list[str]:
    return [brief(reply) for reply in stand.send(data)]


def last(replies: list[LineReply]) -> LineReply:
    assert replies
    return replies[-1]


def test_an_upload_is_taken_chunk_by_chunk_and_asks_with_the_last() -> None:
    stand = Stand()
    assert said(stand, upload(PAYLOAD)) == ["clarify/ok J 2", "clarify/ok J 3", "clarify/ok J 4"]
    assert [bytes(ask.payload.data) for ask in stand.asks] == [PAYLOAD]
    assert [brief(reply) for reply in stand.done(stand.asks[0].job)] == ["confirm/done J 6"]
    assert not stand.session.busy
    assert stand.budget.held_bytes == 0


def test_every_reply_carries_the_six_receipts_and_echoes_the_time_to_live() -> None:
    stand = Stand()
    stand.readings = Readings(4, 4, 7, 9)
    line = ping(ttl_ms=42)
    (reply,) = stand.send(line)
    assert reply.ttl_ms == 42
    assert {each.kind: each.value for each in reply.receipts} == {
        "server.health": 0,
        "backend.inflight": 4,
        "backend.cap": 4,
        "server.executed_total": 7,
        "server.yielded_total": 9,
        "cdr.bytes_in": len(line),
    }


def test_a_yield_names_its_hint_and_the_last_chunk_alone_asks_again() -> None:
    """What the reference gets wrong: there the resent chunk is `chunk_expected_index` for ever."""
    stand = Stand()
    stand.send(upload(PAYLOAD))
    first = stand.asks[0]
    reply = last(stand.yielded(first.job, hint_s=1.2345))
    assert brief(reply) == "clarify/yield server_busy J 6"
    assert (reply.error, reply.retry_hint_ms) == ("busy", 1235)
    assert (reply.receipt("conn.outcome"), reply.receipt("conn.outcome_reason")) == (3, 1)
    assert reply.receipt("conn.retry_hint_ms") == 1235
    stand.now = 1.3
    assert said(stand, chunk(PAYLOAD, 2, seq=5)) == []
    again = stand.asks[1]
    assert (again.job, again.mark) == (first.job, first.mark)
    assert (first.first_asked_at, again.first_asked_at) == (None, 0.0)
    assert bytes(again.payload.data) == PAYLOAD
    done = last(stand.done(again.job))
    assert brief(done) == "confirm/done J 7"
    assert (done.receipt("conn.outcome"), done.receipt("cdr.backend.ms")) == (1, 7)


def test_another_last_chunk_after_a_yield_is_not_the_same_job() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    stand.yielded(stand.asks[0].job)
    assert said(stand, chunk(b"01234567XX", 2, seq=5)) == ["clarify/need chunk_hash_mismatch J 6"]
    assert said(stand, chunk(PAYLOAD, 1, seq=6)) == ["clarify/need chunk_expected_index J 7"]
    assert len(stand.asks) == 1


def test_pings_and_other_jobs_are_answered_while_a_job_works() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD, "A"))
    assert said(stand, ping()) == ["confirm/ok P 2"]
    assert said(stand, upload(PAYLOAD, "B"))[-1] == "clarify/ok B 4"
    assert [ask.job for ask in stand.asks] == [1, 2]
    assert said(stand, chunk(PAYLOAD, 2, "A", seq=9)) == ["clarify/ok A 10"]
    assert said(stand, chunk(PAYLOAD, 1, "A", seq=10)) == ["clarify/need chunk_expected_index A 11"]
    assert said(stand, manifest(PAYLOAD, "A", 11)) == ["clarify/need manifest_invalid A 12"]
    assert brief(last(stand.done(2))) == "confirm/done B 6"
    assert brief(last(stand.done(1))) == "confirm/done A 11"


def test_a_job_that_waits_long_is_kept_alive_every_ten_seconds() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    assert stand.session.due() == 10.0
    assert stand.tick(9.9) == []
    assert [brief(reply) for reply in stand.tick(10.0)] == ["clarify/ok J 5"]
    assert stand.tick(19.9) == []
    assert [brief(reply) for reply in stand.tick(1000.0)] == ["clarify/ok J 5"]
    assert not stand.closed


@pytest.mark.parametrize(
    "change",
    [
        {"payload_id": ""},
        {"total_bytes": 0},
        {"chunk_bytes": 0},
        {"chunks": 0},
        {"content_encoding": "gzip"},
        {"cipher": "aes"},
        {"total_bytes": 50 * 1024 * 1024 + 1, "chunk_bytes": 8192, "chunks": 6401},
    ],
)
def test_a_bad_manifest_is_to_be_fixed(change: dict[str, Any]) -> None:
    stand = Stand()
    (reply,) = stand.send(manifest(PAYLOAD, **change))
    assert brief(reply) == "clarify/need manifest_invalid J 2"
    assert reply.error == "need_manifest_fix"
    assert said(stand, manifest(PAYLOAD, seq=2)) == ["clarify/ok J 3"]


@pytest.mark.parametrize("change", [{"content_encoding": "identity"}, {"cipher": "none"}, {"sha256": ""}])
def test_what_a_manifest_may_say(change: dict[str, Any]) -> None:
    assert said(Stand(), manifest(PAYLOAD, **change)) == ["clarify/ok J 2"]


@pytest.mark.parametrize(
    ("line", "need"),
    [
        (chunk(PAYLOAD, 0, job="other"), "manifest_missing"),
        (chunk(PAYLOAD, 0, payload_id="q"), "payload_id_mismatch"),
        (chunk(PAYLOAD, 1), "chunk_expected_index"),
        (chunk(PAYLOAD, 0, bytes_b64="!!!"), "chunk_b64_invalid"),
        (chunk(PAYLOAD, 0, bytes_b64="\N{SNOWMAN}"), "chunk_b64_invalid"),
        (chunk(PAYLOAD, 0, step=5), "chunk_too_large"),
        (chunk(PAYLOAD, 0, sha256="0" * 64), "chunk_hash_mismatch"),
        (chunk(PAYLOAD, 0, sha256=""), "chunk_hash_mismatch"),
    ],
)
def test_a_bad_chunk_may_be_sent_again(line: bytes, need: str) -> None:
    stand = Stand()
    stand.send(manifest(PAYLOAD))
    (reply,) = stand.send(line)
    assert (reply.status, reply.need, reply.error) == ("need", need, "need_more")
    for index in range(3):
        stand.send(chunk(PAYLOAD, index))
    assert len(stand.asks) == 1


def test_sizes_and_the_digest_of_the_whole_are_checked_with_the_last_chunk() -> None:
    stand = Stand()
    stand.send(manifest(PAYLOAD, total_bytes=11))
    for index in range(2):
        stand.send(chunk(PAYLOAD, index))
    assert said(stand, chunk(PAYLOAD, 2)) == ["clarify/need payload_size_mismatch J 3"]
    stand.send(manifest(PAYLOAD, total_bytes=9))
    assert said(stand, chunk(PAYLOAD, 0) + chunk(PAYLOAD, 1)) == ["clarify/ok J 3", "clarify/ok J 3"]
    assert said(stand, chunk(PAYLOAD, 2)) == ["clarify/need payload_too_large J 3"]
    stand.send(manifest(PAYLOAD, sha256="0" * 64))
    for index in range(2):
        stand.send(chunk(PAYLOAD, index))
    assert said(stand, chunk(PAYLOAD, 2)) == ["clarify/need payload_hash_mismatch J 3"]
    assert stand.asks == []


def test_digests_may_be_written_in_capitals() -> None:
    stand = Stand()
    for line in upload(PAYLOAD).splitlines():
        fields = json.loads(line)
        inner = fields.get("payload_manifest") or fields["payload_chunk"]
        inner["sha256"] = inner["sha256"].upper()
        stand.send(json.dumps(fields).encode() + b"\n")
    assert len(stand.asks) == 1


@pytest.mark.parametrize(
    ("line", "need"),
    [
        (b"GET / HTTP/1.1", "http_request"),
        (b"POST /v1 HTTP/1.1", "http_request"),
        (b"GIF89a...", "binary_gif"),
        (b"<!DOCTYPE html>", "html_document"),
        (b"<html>", "html_document"),
        (b'<?xml version="1.0"?>', "xml_document"),
        (b"[1,2]", "json_array"),
        (b"{", "json_malformed"),
        (b'{"v":0,"verb":"ping","job":"J","seq":1.0}', "json_malformed"),
        (b'{"v":0,"verb":"ping","job":"J","seq":"1"}', "json_malformed"),
        (b'{"v":0,"verb":"ping","job":"J","seq":-1}', "json_malformed"),
        (b'{"v":0,"verb":"ping","job":"J","seq":true}', "json_malformed"),
        (b'{"v":0,"verb":"ping","job":"J","seq":18446744073709551616}', "json_malformed"),
        (b'{"v":0,"verb":"ping","job":5,"seq":1}', "json_malformed"),
        (b'{"v":0,"verb":"share","job":"J","seq":1,"payload_chunk":[]}', "json_malformed"),
        (b'{"v":NaN}', "json_malformed"),
        (b"hello", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"[" * 100_000, "json_array"),
        (b'{"v":' + b"9" * 5000 + b"}", "json_malformed"),
    ],
)
def test_a_line_that_is_no_frame_is_named(line: bytes, need: str) -> None:
    stand = Stand()
    (reply,) = stand.send(line + b"\n")
    assert brief(reply) == f"clarify/need {need} J_? 1"
    assert reply.error == "bad_frame"
    assert said(stand, ping()) == ["confirm/ok P 2"]


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (frame("ping", seq=0), "J"),
        (b'{"v":0,"verb":"ping","job":"J","seq":null}\n', "J"),
        (frame("ping", job=""), "J_?"),
        (frame("confirm"), "J"),
        (frame("share"), "J"),
        (frame("ping", v=1), "J"),
        (frame("ping", status="ok"), "J"),
        (frame("ping", need_code="x"), "J"),
        (frame("ping", retry_hint_ms=1), "J"),
        (frame("ping", receipts=[{"kind": "a", "value_u64": 1}]), "J"),
        (frame("ping", job="x" * 2000), "J_?"),
    ],
)
def test_a_bad_envelope_is_named(line: bytes, job: str) -> None:
    (reply,) = Stand().send(line)
    assert (reply.job, reply.need, reply.error) == (job, "envelope_invalid", "bad_envelope")


def test_json_is_read_as_the_published_decoder_reads_it() -> None:
    stand = Stand()
    assert said(stand, b'{"V":0,"VERB":"share","Verb":"ping","Job":"x","JOB":"y","sEq":3,"what":{}}\r\n') == [
        "confirm/ok y 4"
    ]
    assert said(stand, b"\n\r\n  \n") == []
    assert said(stand, b'{"v":0,"verb":"ping","job":"m","seq":18446744073709551615}\n') == ["confirm/ok m 0"]


def test_a_line_over_the_cap_ends_the_connection() -> None:
    stand = Stand(LineLimits(line_bytes=100))
    assert said(stand, b"x" * 100) == []
    assert said(stand, b"x") == ["confirm/abort line_too_large J_? 1"]
    assert stand.closed
    assert len(stand.session._intake) == 0
    exact = Stand(LineLimits(line_bytes=100))
    assert said(exact, b"x" * 100 + b"\n") == ["clarify/need not_json J_? 1"]


def test_a_silent_connection_ends_and_dribbling_is_silence() -> None:
    stand = Stand(LineLimits(idle_s=60))
    for second in range(59):
        stand.now = float(second)
        stand.send(b"x")
    stand.send(b"\n")
    (reply,) = stand.tick(60.0)
    assert brief(reply) == "confirm/abort idle_timeout J_? 1"
    assert (reply.error, reply.receipt("conn.outcome"), reply.receipt("conn.outcome_reason")) == (
        "timeout",
        4,
        9,
    )
    assert stand.closed


def test_an_upload_that_stalls_is_given_up_though_pings_come() -> None:
    stand = Stand()
    stand.send(manifest(PAYLOAD) + chunk(PAYLOAD, 0))
    assert stand.budget.held_bytes == 4
    for second in range(0, 60, 10):
        stand.now = float(second)
        stand.send(ping())
    assert [brief(reply) for reply in stand.tick(61.0)] == ["confirm/abort idle_timeout J 4"]
    assert stand.budget.held_bytes == 0
    assert not stand.closed


def test_an_upload_that_dribbles_is_given_up() -> None:
    payload = bytes(400)
    stand = Stand()
    stand.send(manifest(payload))
    for index in range(4):
        stand.now = index * 59.0
        stand.send(chunk(payload, index))
        stand.tick(stand.now)
    assert brief(stand.replies[-1]) == "clarify/need manifest_missing J 3"
    assert stand.budget.held_bytes == 0


def test_a_peer_that_leaves_withdraws_the_jobs_that_were_yielded_and_drops_those_that_wait() -> None:
    stand = Stand()
    stand.send(upload(b"payload", "away"))
    stand.send(upload(b"payload", "waits"))
    stand.yielded(stand.asks[0].job)
    stand.take(stand.session.leave())
    assert stand.withdrawn == [stand.asks[0].mark]
    assert stand.drops == [stand.asks[1].job]
    stand.take(stand.session.leave())
    assert stand.withdrawn == [stand.asks[0].mark]


def test_a_yielded_job_that_has_come_back_is_not_withdrawn() -> None:
    stand = Stand()
    stand.send(upload(b"payload"))
    stand.yielded(stand.asks[0].job)
    stand.send(chunk(b"payload", 1))
    assert len(stand.asks) == 2
    stand.take(stand.session.leave())
    assert stand.withdrawn == []


def test_a_yielded_job_is_waited_for_beyond_its_hint() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    stand.yielded(stand.asks[0].job, hint_s=60.0)
    assert stand.tick(119.0) == []
    stand.send(chunk(PAYLOAD, 2))
    assert len(stand.asks) == 2


def test_too_many_jobs_end_the_connection() -> None:
    stand = Stand(LineLimits(jobs=2))
    stand.send(manifest(PAYLOAD, "A") + manifest(PAYLOAD, "B") + manifest(PAYLOAD, "A"))
    (reply,) = stand.send(manifest(PAYLOAD, "C"))
    assert brief(reply) == "confirm/abort too_many_jobs C 3"
    assert (reply.error, reply.receipt("conn.outcome_reason")) == ("quota", 5)
    assert stand.closed


def test_finished_jobs_do_not_count() -> None:
    stand = Stand(LineLimits(jobs=1))
    for number in range(5):
        stand.send(upload(PAYLOAD, f"J{number}"))
        stand.done(stand.asks[-1].job)
    assert [reply.status for reply in stand.replies].count(Status.DONE) == 5


def test_without_memory_a_chunk_is_yielded_and_may_be_sent_again() -> None:
    stand = Stand(budget_bytes=14)
    stand.budget.reserve(8)
    stand.send(manifest(PAYLOAD))
    for turn in range(7):  # the time in which it finds no room is no stall
        assert stand.tick(19.0 * turn) == []
        (reply,) = stand.send(chunk(PAYLOAD, 0))
        assert brief(reply) == "clarify/yield server_busy J 4"
        assert reply.retry_hint_ms == 1000 * min(turn + 1, 5)  # its client asks 50 times
        assert stand.budget.held_bytes == 8
    stand.budget.release(8)
    assert said(stand, chunk(PAYLOAD, 0) + chunk(PAYLOAD, 1) + chunk(PAYLOAD, 2)) == ["clarify/ok J 3"] * 2
    assert len(stand.asks) == 1


def test_a_peer_that_leaves_ends_its_job_and_what_it_sent_is_wiped() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    payload = stand.asks[0].payload.data
    stand.take(stand.session.leave())
    assert stand.drops == [1]
    assert payload == b""
    assert stand.budget.held_bytes == 0
    assert stand.done(1) == []


def test_an_unterminated_last_line_is_a_line() -> None:
    stand = Stand()
    stand.send(ping()[:-1])
    assert [brief(reply) for reply in stand.take(stand.session.end_input(0.0))] == ["confirm/ok P 2"]
    assert stand.closed


def test_a_wanted_result_comes_in_checked_pieces_before_the_end() -> None:
    import hashlib
    from base64 import b64decode

    stand = Stand()
    stand.send(upload(PAYLOAD, want_result=True))
    assert stand.asks[0].manifest.want_result
    result = bytes(range(256)) * 500
    replies = stand.done(1, result)
    assert [brief(reply) for reply in replies] == [*["result/ok J 5"] * 4, "confirm/done J 6"]
    head = replies[0].manifest
    assert head is not None
    assert (head.total_bytes, head.chunks, head.sha256) == (128_000, 3, hashlib.sha256(result).hexdigest())
    chunks = [reply.chunk for reply in replies[1:4]]
    pieces = [b64decode(each.bytes_b64) for each in chunks if each]
    assert b"".join(pieces) == result
    assert [each.sha256 for each in chunks if each] == [hashlib.sha256(piece).hexdigest() for piece in pieces]
    assert stand.budget.held_bytes == 0


def test_a_failed_job_is_aborted_and_gone() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    reply = last(stand.failed(1))
    assert brief(reply) == "confirm/abort backend_error J 6"
    assert (reply.receipt("conn.outcome"), reply.receipt("conn.outcome_reason")) == (
        2,
        OutcomeReason.BACKEND_ERROR,
    )
    assert said(stand, chunk(PAYLOAD, 2)) == ["clarify/need manifest_missing J 3"]


def test_the_token_is_asked_for_once_and_a_wrong_one_ends_the_connection() -> None:
    stand = Stand(token="secret")
    assert said(stand, ping(token="secret") + ping(seq=2)) == ["confirm/ok P 2", "confirm/ok P 3"]
    for line in (ping(), ping(token="wrong"), manifest(PAYLOAD)):
        stranger = Stand(token="secret")
        (reply,) = stranger.send(line)
        assert (reply.status, reply.need) == ("abort", "unauthorized")
        assert stranger.closed
        assert stranger.budget.held_bytes == 0


def test_a_job_that_is_begun_anew_after_a_yield_has_no_appointment_any_more() -> None:
    stand = Stand()
    stand.send(upload(PAYLOAD))
    stand.yielded(1)
    assert stand.withdrawn == []
    stand.send(upload(PAYLOAD))
    assert stand.withdrawn == [1]
    assert [ask.mark for ask in stand.asks] == [1, 2]


def test_draining_sends_away_a_connection_whose_jobs_have_not_begun() -> None:
    yielded, uploading, idle = Stand(), Stand(), Stand()
    yielded.send(upload(PAYLOAD))
    yielded.yielded(1)
    uploading.send(manifest(PAYLOAD))
    for stand in (yielded, uploading, idle):
        away = last(stand.take(stand.session.drain()))
        assert (away.status, away.job, away.retry_hint_ms) == ("yield", "J_?", 1000)
        assert stand.closed
        assert stand.budget.held_bytes == 0


def test_draining_closes_when_the_last_job_has_ended() -> None:
    """Its client may have sent the next job by then: it is told that this one has not run."""
    busy = Stand()
    busy.send(upload(PAYLOAD))
    busy.take(busy.session.drain())
    assert not busy.closed
    assert [brief(each) for each in busy.done(1)] == ["confirm/done J 6", "clarify/yield server_busy J_? 2"]
    assert busy.closed
