"""Rows 24, 26, 28 and 29 with keys: who asks is known by a key alone, and a wrong one learns nothing."""

import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.upstream import FakeUpstream

from faults.baseline import unchanged
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import Answer, chat, request

KEY = "mg-key-of-alice-0123456789"
ENGINE_KEY = "sk-the-engines-own-credential"
CONFIG = f"""
engines: [{{name: engine, url: "URL", api_key_env: ENGINE_KEY}}]
lanes: [{{name: interactive, ttft_slo: 1h}}, {{name: throughput, ttft_slo: 1h}}, {{name: vip, ttft_slo: 1h}}]
tenants:
  - name: alice
    keys: [{hashlib.sha256(KEY.encode()).hexdigest()}]
    lanes: [interactive, throughput]
"""


@pytest.fixture(scope="module")
def the_guarded(
    the_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GateProcess]:
    starter = Starter(tmp_path_factory.mktemp("guarded"))
    yield starter(config=CONFIG.replace("URL", the_upstream.url), environ={"ENGINE_KEY": ENGINE_KEY})
    starter.stop()


@pytest.fixture
def guarded(the_guarded: GateProcess, upstream: FakeUpstream) -> Iterator[GateProcess]:
    """A gateway that asks for keys; it remembers failures for a minute, so the order of these tests is theirs."""
    with unchanged(the_guarded, upstream):
        yield the_guarded


def ask(gate: GateProcess, *lines: str, body: bytes | None = None) -> Answer:
    talk = gate.connect()
    talk.try_send(request(chat() if body is None else body, *lines))
    answer = talk.answer()
    talk.close()
    return answer


WRONG = {
    "none": (),
    "wrong": ("Authorization: Bearer mg-key-of-no-tenant-1234567",),
    "truncated": (f"Authorization: Bearer {KEY[:-1]}",),
    "extended": (f"Authorization: Bearer {KEY}x",),
    "other case": (f"Authorization: Bearer {KEY.upper()}",),
    "empty bearer": ("Authorization: Bearer ",),
    "empty": ("Authorization:",),
    "basic": (f"Authorization: Basic {KEY}",),
    "no scheme": (f"Authorization: {KEY}",),
    "16 KB": ("Authorization: Bearer " + "x" * 16_000,),
    "two keys that differ": (f"Authorization: Bearer {KEY}", "x-api-key: other"),
    "two fields": (f"Authorization: Bearer {KEY}", "Authorization: Bearer other"),
    "two equal fields": (f"Authorization: Bearer {KEY}",) * 2,
    "its hash": (f"Authorization: Bearer {hashlib.sha256(KEY.encode()).hexdigest()}",),
    "a tenant's name": ("X-Millgate-Tenant: alice",),
    "quotes": ("Authorization: Bearer ' OR 1=1 --",),
}


def test_row_29_every_wrong_key_gets_the_same_answer_and_reaches_no_engine(
    guarded: GateProcess, upstream: FakeUpstream
) -> None:
    told = {name: ask(guarded, *lines) for name, lines in WRONG.items()}
    assert {answer.status for answer in told.values()} == {401}
    assert len({answer.body for answer in told.values()}) == 1
    assert told["none"].error["code"] == "invalid_api_key"
    assert upstream.received == []
    assert guarded.ended() == {}


def test_row_29_a_key_of_a_megabyte_is_refused_before_it_is_read(
    guarded: GateProcess, upstream: FakeUpstream
) -> None:
    assert ask(guarded, "Authorization: Bearer " + "x" * 1_000_000).status == 431
    assert upstream.received == []


def test_row_29_too_many_failures_of_one_address_are_told_to_stop_and_a_good_key_still_passes(
    guarded: GateProcess,
) -> None:
    statuses = [ask(guarded, "x-api-key: wrong").status for _ in range(60)]
    assert set(statuses) == {401, 429}
    assert statuses[-10:] == [429] * 10
    assert ask(guarded, f"x-api-key: {KEY}").status == 200


def test_row_29_keys_of_every_kind_take_the_same_class_of_time(guarded: GateProcess) -> None:
    """A smoke test: medians of a missing, a nearly right and a wrong key differ by less than a factor of three."""
    medians = []
    for lines in (WRONG["none"], WRONG["truncated"], WRONG["wrong"]):
        talk = guarded.connect()
        times = []
        for _ in range(40):
            began = time.perf_counter()
            talk.send(request(b"", *lines))
            talk.answer()
            times.append(time.perf_counter() - began)
        medians.append(statistics.median(times))
    assert max(medians) < 3 * min(medians)


@pytest.mark.parametrize(
    "line", [f"Authorization: Bearer {KEY}", f"x-api-key: {KEY}", f"authorization: bearer {KEY}"]
)
def test_row_28_the_callers_key_stops_here_and_the_engine_gets_its_own(
    guarded: GateProcess, upstream: FakeUpstream, line: str
) -> None:
    assert ask(guarded, line).status == 200
    (received,) = upstream.received
    assert received.header(b"authorization") == f"Bearer {ENGINE_KEY}".encode()
    assert received.header(b"x-api-key") is None
    shown = [guarded.ask(path)[1].decode() for path in ("/api/state", "/metrics", "/readyz")]
    for text in (*shown, guarded.errors()):
        assert KEY not in text
        assert ENGINE_KEY not in text


@pytest.mark.parametrize(
    ("line", "lane"),
    [
        ("X-Millgate-Lane: throughput", "throughput"),
        ("X-Millgate-Lane: vip", "interactive"),
        ("X-Millgate-Lane: nonsense", "interactive"),
        ("X-Millgate-Priority: 0", "interactive"),
        ("X-Millgate-Tenant: bob", "interactive"),
    ],
)
def test_row_24_a_caller_chooses_only_among_the_lanes_of_its_key(
    guarded: GateProcess, upstream: FakeUpstream, line: str, lane: str
) -> None:
    before = {each["name"]: each["arrived"] for each in guarded.state()["lanes"]}
    assert ask(guarded, f"x-api-key: {KEY}", line).status == 200
    arrived = {each["name"]: each["arrived"] - before[each["name"]] for each in guarded.state()["lanes"]}
    assert arrived == {"interactive": 0, "throughput": 0, "vip": 0, lane: 1}
    assert upstream.received[0].header(line.partition(":")[0].lower().encode()) is None


def test_row_24_a_trusted_peer_is_believed_but_a_key_says_who_asks(
    start: Starter, upstream: FakeUpstream, tmp_path: Path
) -> None:
    log = tmp_path / "attempts.jsonl"
    other = f"  - {{name: bob, keys: [{hashlib.sha256(b'bob').hexdigest()}], lanes: [throughput]}}\n"
    peers = "listen: {trusted_peers: [127.0.0.0/8]}\n"
    config = CONFIG.replace("URL", upstream.url) + other + peers + f"records: {{log_attempts: {log}}}\n"
    gate = start(config=config, environ={"ENGINE_KEY": ENGINE_KEY})
    key, bob = f"x-api-key: {KEY}", "X-Millgate-Tenant: bob"
    assert ask(gate, bob).status == 200, "the peer speaks for a tenant that has no key to show"
    assert ask(gate, bob, "X-Millgate-Lane: vip").status == 200
    assert ask(gate, key, bob).status == 200
    assert ask(gate, key, "X-Millgate-Lane: vip").status == 200
    assert ask(gate, "X-Millgate-Tenant: nobody").status == 401
    assert ask(gate, bob, "X-Millgate-Tenant: alice").status == 401, "one of two may be the client's own"
    assert ask(gate, bob, "x-api-key: wrong").status == 401
    assert gate.ended() == {"good": 4}
    until(lambda: log.exists() and log.read_bytes().count(b"\n") == 4)
    said = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(line["tenant"], line["lane"]) for line in said] == [
        ("bob", "throughput"),
        ("bob", "vip"),
        ("alice", "interactive"),
        ("alice", "vip"),
    ]
    assert all(received.header(b"x-millgate-tenant") is None for received in upstream.received)


def _series(gate: GateProcess) -> set[bytes]:
    """Return the names and labels of everything that the gate exports about tenants."""
    lines = gate.ask("/metrics")[1].splitlines()
    return {line.rpartition(b" ")[0] for line in lines if b"tenant=" in line}


def test_row_26_thousands_of_credentials_leave_memory_and_labels_flat(
    start: Starter, upstream: FakeUpstream
) -> None:
    # What is remembered of single attempts is bounded by a setting, not by who asks.
    settings: dict[str, Any] = {"tenant_from": "key", "records": {"kept_attempts": 100}}
    gate = start(upstream.url, settings=settings)
    talk = gate.connect()

    def served(begin: int, end: int) -> None:
        for first in range(begin, end, 100):
            talk.send(
                b"".join(request(chat(), f"x-api-key: key-{number}") for number in range(first, first + 100))
            )
            assert [talk.answer().status for _ in range(100)] == [200] * 100

    served(0, 1500)  # tenants are known apart up to a thousand: until then each costs its record
    names, grown_bytes = _series(gate), []
    for begin in (1500, 2500, 3500):
        before = gate.resident_bytes
        served(begin, begin + 1000)
        grown_bytes.append(gate.resident_bytes - before)
    assert _series(gate) == names
    # Memory comes from the system in large pieces, but what a record of each tenant took would be taken every time.
    assert min(grown_bytes) < 1_000 * 512, grown_bytes
    tenants = {name.partition(b'tenant="')[2].partition(b'"')[0] for name in names}
    assert len(tenants) <= 102, "a hundred, the rest as one, and whoever has none"
    assert b"other" in tenants
