"""The log of the process: one valid line per event, and no reader can hold the process up."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millgate.observe.logs import MOST_WAITING_LINES, ProcessLog

HOSTILE = 'a\r\nb\x1b[31m"}{${jndi:ldap://x}\u202e\x00'


def lines_of(write: int, read: int) -> bytes:
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        return stream.read()


def test_an_event_is_one_line_of_json_whatever_is_in_it() -> None:
    read, write = os.pipe()
    log = ProcessLog(write)

    log.warning("reloaded", path=HOSTILE, count=2)
    log.close()
    line = lines_of(write, read)

    assert line.count(b"\n") == 1
    assert line.isascii()
    record = json.loads(line)
    assert (record["event"], record["level"], record["path"], record["count"]) == (
        "reloaded",
        "warning",
        HOSTILE,
        2,
    )
    assert record["timestamp"].endswith("Z")


def test_a_value_that_json_does_not_know_is_told_as_text_and_the_time_in_utc() -> None:
    read, write = os.pipe()
    log = ProcessLog(write)

    log.info("reloaded", file=Path("gate.yaml"))
    log.close()
    record = json.loads(lines_of(write, read))

    assert list(record) == ["file", "event", "level", "timestamp"]
    assert record["file"] == "gate.yaml"
    age = datetime.now(UTC) - datetime.fromisoformat(record["timestamp"])
    assert timedelta(0) <= age < timedelta(minutes=5)


def test_a_terminal_gets_words_and_no_control_characters() -> None:
    read, write = os.pipe()
    log = ProcessLog(write, plain=True)

    log.info("draining", left=3)
    log.error("failed", reason=HOSTILE)
    log.close()
    first, second = lines_of(write, read).decode().splitlines()

    assert first == "millgate: draining (left 3)"
    assert second.startswith("millgate: error: failed (reason a")
    assert second.isprintable()


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        log = ProcessLog(full.fileno())
        for _ in range(3):
            log.info("nobody reads this")
        log.close()

    assert log.dropped == 3


def test_a_closed_pipe_costs_lines_and_nothing_else() -> None:
    read, write = os.pipe()
    os.close(read)
    log = ProcessLog(write)

    log.info("nobody reads this")
    log.close()
    os.close(write)

    assert log.dropped == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_stops_never_blocks_the_caller() -> None:
    read, write = os.pipe()
    log = ProcessLog(write)
    count = MOST_WAITING_LINES + 2000

    began = time.monotonic()
    for _ in range(count):
        log.info("x" * 500)

    assert log.dropped > 0
    assert time.monotonic() - began < 10  # blocked, it would never end
    os.close(read)
    log.close()
    os.close(write)
