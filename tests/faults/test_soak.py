"""Row 74, soak: everything goes wrong at once, and the accounts are exact; `make soak` is the long version of it."""

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from faults.soak.connection import NOTHING, Seen
from faults.soak.engines import FAULTS, OUTAGES, WEATHER
from faults.soak.ledger import Entry, Ledger
from faults.soak.report import as_json, as_table, growth
from faults.soak.run import Soak
from faults.soak.strangers import unfit
from faults.soak.users import User
from faults.soak.watch import Course
from faults.soak_scenes import SCENES

SECONDS = 20.0
SCENE_SECONDS = 8.0
WHOLE = Seen(200, "", whole=True, retry_after_s=0.0, kept=True)
REFUSED = Seen(503, "too_late", whole=True, retry_after_s=1.0, kept=True)
FAILED = Seen(502, "", whole=True, retry_after_s=0.0, kept=True)
BROKEN_OFF = Seen(200, "", whole=False, retry_after_s=0.0, kept=False)
GOOD = {"id": "a", "outcome": "good"}
YIELDED = {"id": "a", "outcome": "yielded", "reason": "too_late"}


def test_row_74_a_soak_in_every_fault_leaves_exact_accounts(tmp_path: Path) -> None:
    report = asyncio.run(Soak(tmp_path, seed=1).run(SECONDS))
    assert not report.findings, as_table(report)
    assert report.written == sum(report.outcomes.values())
    # Who resets at once may be gone before the gate has read a request.
    assert report.sent - report.unsure <= report.written <= report.sent
    # It was one: faults of nearly every kind, and users who were served, refused, queued and cut.
    assert len(report.faults) > 0.8 * len([*FAULTS, *WEATHER, *OUTAGES])
    assert {
        "good",
        "yielded/queue_full",
        "client_gone/queued",
        "client_gone/decode",
    } <= report.outcomes.keys()
    assert {kind.partition("/")[0] for kind in report.outcomes} >= {"engine_failed", "client_gone"}
    assert json.loads(as_json(report))["sent"] == report.sent


@pytest.mark.parametrize(
    "name",
    [
        "one engine",
        "all engines dead",
        "hostile engines",
        "hostile pages",
        "300 descriptors",
        "strangers at the line door",
        "strangers at the admin door",
    ],
)
def test_a_scene_of_the_soak_leaves_exact_accounts_and_everything_at_rest(tmp_path: Path, name: str) -> None:
    """Permits, queue, appointments, budget and descriptors are back to zero; dead engines were known as dead."""
    report = asyncio.run(Soak(tmp_path, 1, SCENES[name]).run(SCENE_SECONDS))
    assert not report.findings, as_table(report)
    assert report.written == sum(report.outcomes.values())
    # A gate without room for a connection may cut it before it has read a request.
    most_unread = report.unsure if SCENES[name].idle_clients else 0
    assert report.sent - most_unread <= report.written <= report.sent
    assert report.outcomes["good"]


# ---- the accounts themselves: what they must notice


def compared(
    folder: Path,
    entries: Mapping[str, Entry],
    *lines: Mapping[str, str],
    executed: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    ledger = Ledger()
    ledger.entries.update(entries)
    log = folder / "attempts.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(ledger.compare(log, executed or {}))


@pytest.mark.parametrize(
    ("saw", "line"),
    [
        (WHOLE, GOOD),
        (WHOLE, {"id": "a", "outcome": "late"}),
        (REFUSED, YIELDED),
        (FAILED, {"id": "a", "outcome": "engine_failed", "reason": "broken"}),
        (BROKEN_OFF, {"id": "a", "outcome": "client_gone", "reason": "decode"}),
        (None, {"id": "a", "outcome": "client_gone", "reason": "queued"}),
        (None, GOOD),
    ],
)
def test_what_agrees_is_no_finding(tmp_path: Path, saw: Seen | None, line: dict[str, str]) -> None:
    assert compared(tmp_path, {"a": Entry(sure=True, saw=saw)}, line) == []


@pytest.mark.parametrize(
    ("saw", "line"),
    [
        (WHOLE, YIELDED),
        (WHOLE, {"id": "a", "outcome": "client_gone", "reason": "decode"}),
        (REFUSED, GOOD),
        (REFUSED, {"id": "a", "outcome": "yielded", "reason": "queue_full"}),
        (FAILED, GOOD),
        (BROKEN_OFF, GOOD),
        (NOTHING, GOOD),
    ],
)
def test_an_outcome_that_its_user_did_not_see_is_found(
    tmp_path: Path, saw: Seen, line: dict[str, str]
) -> None:
    (finding,) = compared(tmp_path, {"a": Entry(sure=True, saw=saw)}, line)
    assert finding.startswith("a ")


def test_an_attempt_without_an_outcome_is_found_unless_it_may_not_have_been_read(tmp_path: Path) -> None:
    (finding,) = compared(tmp_path, {"a": Entry(sure=True, saw=None)})
    assert finding.startswith("a has no outcome")
    assert compared(tmp_path, {"a": Entry(sure=False, saw=None)}) == []
    assert compared(tmp_path, {"a": Entry(sure=True, saw=FAILED._replace(status=408))}) == []


async def _left_behind(answer: bytes | None) -> Entry:
    """Return what a user writes down who leaves a gate that says this, and then closes, or nothing at all."""

    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    ledger, over = Ledger(), asyncio.Event()
    server = await asyncio.start_server(gate, "127.0.0.1", 0)
    async with server:
        user = User(server.sockets[0].getsockname()[1], "a", random.Random(1), ledger)
        await user.leaves_soon()
        await over.wait()
    (entry,) = ledger.entries.values()
    return entry


@pytest.mark.parametrize(
    ("answer", "sure"),
    [
        (b"HTTP/1.1 408 Request Timeout\r\n\r\n", False),
        (b"", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (None, True),
    ],
)
def test_who_sends_when_the_gate_has_given_up_on_his_connection_may_not_have_been_read(
    answer: bytes | None, sure: bool
) -> None:
    assert asyncio.run(_left_behind(answer)) == Entry(sure, saw=None)


def test_two_outcomes_and_one_of_nobody_are_found(tmp_path: Path) -> None:
    entries = {"a": Entry(sure=True, saw=WHOLE)}
    (finding,) = compared(tmp_path, entries, GOOD, GOOD)
    assert finding.startswith("a has two outcomes")
    (finding,) = compared(tmp_path, entries, GOOD, {"id": "b", "outcome": "good"})
    assert finding.startswith("b was never sent whole")


def test_an_engine_that_works_for_the_refused_or_again_and_again_is_found(tmp_path: Path) -> None:
    entries = {"a": Entry(sure=True, saw=REFUSED)}
    (finding,) = compared(tmp_path, entries, YIELDED, executed={"a": ["answered"]})
    assert "reached an engine" in finding
    entries = {"a": Entry(sure=True, saw=WHOLE)}
    served = GOOD | {"engine": "one"}
    assert compared(tmp_path, entries, served, executed={"a": ["answered"] * 4}) == []
    (finding,) = compared(tmp_path, entries, served, executed={"a": ["answered"] * 5})
    assert "5 times" in finding


def test_who_was_given_to_an_engine_and_then_refused_is_no_finding(tmp_path: Path) -> None:
    """Its answer was lost, the second engine could not be reached, and nobody else had room."""
    entries = {"a": Entry(sure=True, saw=REFUSED)}
    assert compared(tmp_path, entries, YIELDED | {"engine": "one"}, executed={"a": ["answered"]}) == []


def test_what_a_stranger_may_not_be_told_is_found() -> None:
    told = b'{"receipts":[{"kind":"%b","value_u64":1}]}\n'
    assert list(unfit(b"")) == list(unfit(told % b"conn.outcome")) == []
    assert list(unfit(told % b"backend.cap")) == ["a stranger was told backend.cap"]
    assert list(unfit(told % b"conn.outcome" * 3)) == ["3 lines came back"]


def test_what_grows_is_found() -> None:
    steady = Course(start=20, warm=60, end=62, quiet=24, slope_per_minute=0)
    assert list(growth(steady, steady, 5)) == []
    (finding,) = growth(steady._replace(quiet=80), steady, 5)
    assert finding.startswith("memory has grown from 60.0 to 80.0 MB")
    (finding,) = growth(steady, steady._replace(quiet=26), 5)
    assert finding == "26 descriptors when all was quiet, 25 at most"
