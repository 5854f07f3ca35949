"""The banner: plain lines into a file, emphasis and broken lines on a terminal, as wide as that is."""

import fcntl
import io
import json
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from millgate import __version__
from millgate.cli.banner import Running, show_banner
from millgate.wiring.chosen import ChosenNumber

RUNNING = Running(
    url="http://127.0.0.1:8080",
    admin_url="http://127.0.0.1:8081",
    engines=[("gpu-0", "http://10.0.0.7:8000")],
    choices=[
        ChosenNumber("gpu-0 max_inflight", "256", "default: the engine does not tell its KV tokens"),
        ChosenNumber("lane interactive", "ttft_slo 10s", ""),
    ],
    model="any",
    engine_note=" (profile demo)",
    line_address="127.0.0.1:7777",
)
COLUMNS = 60
_END = "\x1a"
"""Stands in no banner."""


class Terminal:
    """A terminal of so many columns, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")

    def shown(self) -> str:
        """Return what it shows, up to some kilobytes: the kernel hands a terminal's output over piece by piece."""
        self.stream.write(_END)
        self.stream.flush()
        text = b""
        while not text.endswith(_END.encode()):
            text += os.read(self._master, 65_536)
        return text.decode().removesuffix(_END).replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Terminal]]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def on_terminal(terminals: list[Terminal], columns: int = COLUMNS) -> str:
    terminals.append(Terminal(columns))
    show_banner(RUNNING, terminals[-1].stream)
    return terminals[-1].shown()


def plain(terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("NO_COLOR", "1")
    return on_terminal(terminals, columns=0).splitlines()


def test_a_file_gets_one_line_of_json() -> None:
    stream = io.StringIO()

    show_banner(RUNNING, stream)

    said = stream.getvalue()
    assert said.endswith("}\n")
    assert said.count("\n") == 1
    record = json.loads(said)
    assert (record["event"], record["level"], record["version"]) == ("serving", "info", __version__)
    assert (record["url"], record["admin_url"]) == ("http://127.0.0.1:8080", "http://127.0.0.1:8081")
    assert record["engines"] == [{"name": "gpu-0", "url": "http://10.0.0.7:8000"}]
    assert record["limits"][1] == {"name": "lane interactive", "value": "ttft_slo 10s", "why": ""}


def test_a_terminal_is_told_where_everything_is(
    terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain(terminals, monkeypatch)[1:5] == [
        "  listening  http://127.0.0.1:8080",
        "  admin      http://127.0.0.1:8081",
        "  line       127.0.0.1:7777",
        "  engine     gpu-0 at http://10.0.0.7:8000 (profile demo)",
    ]


def test_an_engine_whose_name_was_not_found_has_no_address(terminals: list[Terminal]) -> None:
    terminals.append(Terminal(COLUMNS))
    show_banner(RUNNING._replace(engines=[("pool", "")], engine_note=""), terminals[-1].stream)

    assert "pool at no address yet" in terminals[-1].shown()


def test_where_a_token_is_asked_for_the_commands_to_try_carry_it(terminals: list[Terminal]) -> None:
    terminals.append(Terminal(COLUMNS))
    show_banner(RUNNING._replace(token_env="MILLGATE_ADMIN_TOKEN"), terminals[-1].stream)

    assert 'curl -H "authorization: Bearer $MILLGATE_ADMIN_TOKEN" http' in terminals[-1].shown()


def test_every_limit_stands_below_its_header(
    terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = plain(terminals, monkeypatch)
    header = lines.index(next(line for line in lines if line.startswith("limit")))

    value_at, why_at = lines[header].index("value"), lines[header].index("why")
    first, second = lines[header + 1 : header + 3]
    assert (first[:value_at].rstrip(), first[value_at:why_at].rstrip()) == ("gpu-0 max_inflight", "256")
    assert first[why_at:] == RUNNING.choices[0].why
    assert second[value_at:].rstrip() == "ttft_slo 10s"


def test_a_narrow_terminal_gets_long_reasons_on_lines_of_their_own(terminals: list[Terminal]) -> None:
    lines = on_terminal(terminals).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("gpu-0 max_inflight"))

    first, more = lines[start : start + 2]
    why_at = first.index("default:")
    assert max(len(first), len(more)) <= COLUMNS
    assert more[:why_at].isspace()
    assert f"{first[why_at:]} {more[why_at:]}".startswith("default: the engine does not")


def test_what_is_to_be_copied_is_never_broken(
    terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = on_terminal(terminals).splitlines()

    assert [line for line in plain(terminals, monkeypatch) if line.startswith("  curl")] == [
        line for line in narrow if line.startswith("  curl")
    ]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_emphasis_is_for_terminals_that_want_it(
    name: str, value: str, terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    emphasised = on_terminal(terminals)
    monkeypatch.setenv(name, value)
    plain = on_terminal(terminals)

    assert emphasised.startswith("\x1b[1mmillgate ")
    assert "\x1b" not in plain
    assert emphasised.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") == plain


def test_a_terminal_without_a_width_is_taken_for_a_wide_one(terminals: list[Terminal]) -> None:
    assert RUNNING.choices[0].why in on_terminal(terminals, columns=0)
