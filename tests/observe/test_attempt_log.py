"""The log of attempts: whole lines, nothing secret, and no disk or reader can hold the process up."""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.core.decisions import Yield
from headgate.core.events import Arrived
from headgate.core.words import Reason
from headgate.observe import attempt_log
from headgate.observe.attempt_log import AttemptLog, Finish
from headgate.observe.ring import facts_of

HOSTILE = 'a\r\nb\x1b[31m"}{${jndi:ldap://x}\u202e\x00'
PATIENCE_S = 5.0


def refused(number: int = 1, tenant: str = "", request_id: bytes | None = None) -> Finish:
    yielded = Yield(number, Reason.QUEUE_FULL, 3.25, retry=True)
    facts = facts_of(Arrived(number, tenant, fingerprint=lambda: 1))
    return Finish(time.monotonic(), facts, None, yielded, request_id)


def until(truth: Callable[[], object]) -> None:
    by = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < by, "this should have become true"
        time.sleep(0.005)


def test_a_refusal_is_one_line_with_its_reason_its_hint_and_the_time_of_day(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), boot="b007", first_lane="interactive")
    began = time.time()
    log.add(refused(255))
    log.close()

    line = json.loads((tmp_path / "log").read_text())
    assert (line["id"], line["attempt"], line["outcome"]) == ("b007-ff", 255, "yielded")
    assert (line["reason"], line["retry_after_s"], line["retry"]) == ("queue_full", 3.25, True)
    assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(began)) <= line["time"][:16]


def test_nothing_that_a_client_sent_breaks_a_line(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), tenants=[HOSTILE])
    log.add(refused(1, HOSTILE, HOSTILE.encode()))
    log.close()

    raw = (tmp_path / "log").read_bytes()
    assert raw.count(b"\n") == 1
    assert not any(byte < 0x20 for byte in raw[:-1])
    assert json.loads(raw)["tenant"] == HOSTILE


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AttemptLog(str(tmp_path / "nowhere" / "log"))


def test_a_file_is_continued_and_only_its_owner_and_group_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in (1, 2):
        log = AttemptLog(str(path))
        log.add(refused(number))
        log.close()

    assert [json.loads(line)["attempt"] for line in path.read_bytes().splitlines()] == [1, 2]
    assert path.stat().st_mode & 0o007 == 0


def test_a_rotated_file_is_opened_anew_and_no_line_is_lost(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    log = AttemptLog(str(path))
    log.add(refused(1))
    until(lambda: path.stat().st_size)
    path.rename(old)
    log.reopen()
    until(path.exists)
    log.add(refused(2))
    log.close()

    assert [json.loads(each.read_text())["attempt"] for each in (old, path)] == [1, 2]
    assert log.dropped == 0


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    log = AttemptLog("/dev/full")
    for number in range(3):
        log.add(refused(number))
    log.close()

    assert log.dropped == 3


def test_a_line_torn_by_a_full_disk_does_not_take_the_next_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = AttemptLog(str(path))
    write, left = os.write, [20]

    def write_with_little_room(descriptor: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "no space left")
        taken = write(descriptor, data[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write_with_little_room)
    log.add(refused(1))
    until(lambda: log.dropped)
    left[0] = 1_000_000
    log.add(refused(2))
    log.close()

    torn, whole = path.read_bytes().splitlines()
    assert len(torn) == 20
    assert json.loads(whole)["attempt"] == 2


def test_a_reader_that_stops_never_blocks_the_caller_and_what_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "MOST_WAITING_LINES", 2000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AttemptLog(str(pipe))
    finish = refused()
    for _ in range(5):
        for _ in range(2000):
            log.add(finish)
        time.sleep(0.15)

    assert log.dropped > 0
    os.close(reader)
    log.close()
