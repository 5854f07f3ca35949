"""README and tutorial run as they stand; every page names only commands, flags and settings that exist."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from examples.pages import ROOT, Block, Session, blocks, missing, run
from millgate.cli.main import command_line
from millgate.config.load import load_config

README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]

_ASK = (
    "ask() { curl -s -o /dev/null -w '%{http_code} %header{x-millgate-reason} %header{retry-after-ms}"
    " %header{x-request-id}\\n' \\"
)
"""The first line of the block that makes an overload."""
_CODE = re.compile(r"```(?!output)\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_SECRET = re.compile(r"_env: ([A-Z_]+)")
_COMMAND_LINE = re.compile(r"(?<![\w./-])millgate( [a-z][^\n|;#]*)")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    terminals = Session(tmp_path)
    yield terminals
    terminals.end()


def test_the_tutorial_runs_and_prints_what_it_shows(session: Session) -> None:
    """Numbers aside; a line that it shows and the commands do not print is a lie."""
    for block, printed in run(TUTORIAL, session):
        assert missing(block.output, printed) == [], f"{block.text}\nprinted\n{printed}"


def test_the_commands_of_the_readme_run(session: Session) -> None:
    is_fresh = ["make", "--question", f"--directory={ROOT}", ".venv/.installed"]
    if subprocess.run(is_fresh, capture_output=True, check=False).returncode:
        pytest.skip("the environment is older than its lock: `make run` would use the network")
    printed = {block.text.strip().partition("\n")[0]: text for block, text in run(README, session)}

    assert list(printed) == [
        "make run",
        "make test",
        "make install",
        "millgate engine",
        "millgate serve --upstream http://127.0.0.1:8000 --max-inflight 2 --max-queue 4",
        _ASK,
        """millgate why "$(grep ^503 asked | head -n 1 | grep -o '[^ ]*$')\"""",
        "millgate check guard.yaml",
        "millgate serve --config guard.yaml",
        "python jobs.py",
    ]
    statuses = [
        line[:3]
        for line in next(text for typed, text in printed.items() if typed.startswith("ask")).splitlines()
    ]
    assert len(statuses) == 30
    assert set(statuses) == {"200", "503"}
    assert "refused" in next(text for typed, text in printed.items() if typed.startswith("millgate why"))
    jobs = printed["python jobs.py"].splitlines()
    assert len(jobs) == 20
    assert "answered" in jobs
    assert any("come back in" in job for job in jobs)


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.name)
def test_every_block_is_of_a_kind_that_is_run_or_known_not_to(page: Path) -> None:
    assert {block.kind for block in blocks(page)} <= {"", "sh", "yaml", "python"}


def _configurations() -> list[tuple[Path, str]]:
    found = [(page, block.text) for page in PAGES for block in blocks(page) if block.kind == "yaml"]
    return [(page, text) for page, text in found if "sim:\n" not in text]


@pytest.mark.parametrize(("page", "text"), _configurations(), ids=lambda each: getattr(each, "stem", ""))
def test_every_configuration_on_a_page_is_valid(page: Path, text: str, tmp_path: Path) -> None:
    """A part of one is completed by what it takes for granted: an engine, a tenant `ann`, the usual lanes, its secrets."""
    usual = {
        "engines:\n": "engines: [{name: gpu, url: 'http://127.0.0.1:8000'}]\n",
        "lanes:\n": "lanes: [{name: interactive}, {name: throughput}, {name: long_context}]\n",
        "tenants:\n": f"tenants: [{{name: ann, keys: [{'a' * 64}]}}]\n",
    }
    if "tenant_from:" in text:  # it has tenants of another kind
        del usual["tenants:\n"]
    file = tmp_path / "gate.yaml"
    file.write_text(text + "".join(lines for section, lines in usual.items() if section not in text))

    secrets = dict.fromkeys(_SECRET.findall(text), "5e" * 32)
    assert load_config(file, secrets).config.engines


def _named_commands(page: Path) -> list[str]:
    spans = [fence or span for fence, span in _CODE.findall(page.read_text())]
    return [line for span in spans for line in _COMMAND_LINE.findall(span.replace("\\\n", " "))]


def _unknown(line: str, command: Any) -> list[str]:
    """Return what a command line names that there is not; what is no flag and no subcommand may be anything."""
    words = line.split()
    while isinstance(command, TyperGroup) and words and re.fullmatch(r"[a-z]+", words[0]):
        word = words.pop(0)
        if word not in command.commands:
            return [word]
        command = command.commands[word]
    flags = {"--help", *(flag for each in command.params for flag in each.opts)}
    return [
        word for word in words if word.startswith("--") and word.partition("=")[0].rstrip(",.)") not in flags
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_flag_on_a_page_exists(page: Path) -> None:
    root = typer.main.get_command(command_line())

    assert [(line, word) for line in _named_commands(page) for word in _unknown(line, root)] == []


def test_a_command_or_a_flag_that_does_not_exist_is_seen() -> None:
    root = typer.main.get_command(command_line())

    assert _unknown(" serve --upstreem URL", root) == ["--upstreem"]
    assert _unknown(" sim runn x.yaml", root) == ["runn"]
    assert _unknown(" sim run x.yaml --seeds 3", root) == []


def test_a_line_that_was_not_printed_is_seen_and_numbers_are_not() -> None:
    shown = "503 after 0.01 s queue_full 2245\n  limit   2\n...\ntold by 863e6c62-1f in 20 ms, ...\n"

    assert missing(shown, "503 after 1.2 s queue_full 17\nlimit 4\ntold by 0a0a0a0a-7 in 3 s, or so\n") == []
    assert missing(shown, "200 after 1.2 s\nlimit 4\ntold by 0a0a0a0a-7 in 3 s, or so\n") == [
        "503 after # s queue_full #"
    ]


def test_a_block_that_fails_fails_the_page(session: Session) -> None:
    with pytest.raises(AssertionError, match="ended with 3"):
        session.type("echo before\nexit 3\n")


def test_output_stands_with_its_command_and_a_choice_of_commands_is_taken_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nls\n```\n\n```output\na\n```\n```\nmake run    # starts\nmake test\n```\n```\n-> x\n```\n"
    )

    assert blocks(page) == [
        Block("sh", "ls\n", "a\n"),
        Block("sh", "make run\n"),
        Block("sh", "make test\n"),
        Block("", "-> x\n"),
    ]
