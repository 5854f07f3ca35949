"""Lines are written whole, and no disk or reader can hold the process up."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millgate.observe.line_writer import LineWriter, try_path

LINE = b"line %d" + b"." * 300 + b"\n"
PATIENCE_S = 30.0


def until(truth: Callable[[], object]) -> None:
    by = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < by, "this should have become true"
        time.sleep(0.005)


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LineWriter(str(tmp_path / "nowhere" / "log"))


def test_a_pipe_that_no_program_reads_is_said_at_once_and_one_with_a_reader_is_written_as_any(
    tmp_path: Path,
) -> None:
    """The gate waited for a reader before its first word, without a line in its log."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        LineWriter(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = LineWriter(str(pipe))
    assert writer._descriptor is not None
    assert os.get_blocking(writer._descriptor)
    writer.add(LINE % 1, 1)
    writer.close()
    assert os.read(reader, 4096) == LINE % 1
    os.close(reader)


def test_a_file_is_continued_and_only_its_owner_and_group_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in (1, 2):
        writer = LineWriter(str(path))
        writer.add(LINE % number, 1)
        writer.close()

    assert path.read_bytes() == LINE % 1 + LINE % 2
    assert path.stat().st_mode & 0o007 == 0


def test_a_rotated_file_is_opened_anew_and_no_line_is_lost(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    writer = LineWriter(str(path))
    writer.add(LINE % 1, 1)
    until(lambda: path.stat().st_size)
    path.rename(old)
    writer.reopen()
    until(path.exists)
    writer.add(LINE % 2, 1)
    writer.close()

    assert [each.read_bytes() for each in (old, path)] == [LINE % 1, LINE % 2]
    assert writer.dropped == 0


def test_a_file_server_that_is_full_at_the_close_does_not_end_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close(2): NFS may say so then. The thread was dead, and no line was written or counted any more."""
    path, close = tmp_path / "log", os.close
    writer = LineWriter(str(path))
    first = writer._descriptor

    def full(descriptor: int) -> None:
        close(descriptor)
        if descriptor == first:
            monkeypatch.undo()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "close", full)
    writer.reopen()
    until(lambda: os.close is close and not writer._reopening)
    writer.add(LINE % 1, 1)
    writer.close()
    assert path.read_bytes() == LINE % 1


def test_a_link_to_a_file_that_is_not_there_yet_stays_when_it_is_tried(tmp_path: Path) -> None:
    """The link was taken away, and the file behind it was left."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    try_path(str(link))
    assert (link.is_symlink(), file.exists()) == (True, False)


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    writer = LineWriter("/dev/full")
    for number in range(3):
        writer.add(LINE % number, 1)
    writer.close()

    assert writer.dropped == 3


def test_lines_that_come_together_are_lost_and_counted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = LineWriter(str(pipe), 10)
    more_than_a_pipe_holds = 6 * (b"." * 50_000 + b"\n")
    writer.add(more_than_a_pipe_holds, 6)
    writer.add(5 * LINE % (1, 2, 3, 4, 5), 5)
    assert writer.dropped == 5
    writer.add(4 * LINE % (1, 2, 3, 4), 4)
    assert writer.dropped == 5

    os.close(reader)
    writer.close()
    assert writer.dropped == 5 + 6 + 4


def test_a_line_torn_by_a_full_disk_does_not_take_the_next_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    writer = LineWriter(str(path))
    write, left = os.write, [20]

    def write_with_little_room(descriptor: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "no space left")
        taken = write(descriptor, data[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write_with_little_room)
    writer.add(LINE % 1, 1)
    until(lambda: writer.dropped)
    left[0] = 1_000_000
    writer.add(LINE % 2, 1)
    writer.close()

    torn, whole = path.read_bytes().splitlines(keepends=True)
    assert len(torn) == 21
    assert whole == LINE % 2


def test_a_reader_that_stops_never_blocks_the_caller_and_what_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = LineWriter(str(pipe), 2000)
    for _ in range(5):
        for _ in range(2000):
            writer.add(LINE % 1, 1)
        time.sleep(0.15)

    assert writer.dropped > 0
    os.close(reader)
    writer.close()


_WORKER = """
import json, sys, time
from millgate.observe.line_writer import LineWriter
writer = LineWriter("-")
for batch in range(30):
    lines = (json.dumps({"worker": sys.argv[1], "batch": batch, "fill": "x" * 400}) for _ in range(64))
    writer.add("".join(line + "\\n" for line in lines).encode(), 64)
    time.sleep(0.005)
writer.close()
"""


def test_two_workers_of_a_container_tear_no_line_where_its_reader_is_slow() -> None:
    """A container's standard output is a pipe, and a full pipe takes a long write in parts, with others between them."""
    reader, pipe = os.pipe()
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, name], stdout=pipe) for name in "ab"]
    os.close(pipe)
    read = bytearray()
    while piece := os.read(reader, 7_000):
        read += piece
        time.sleep(0.001)
    os.close(reader)

    assert [worker.wait() for worker in workers] == [0, 0]
    lines = [json.loads(line) for line in read.splitlines()]
    assert len(lines) == 2 * 30 * 64
