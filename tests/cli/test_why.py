"""`millgate why`: what was decided about one request, in sentences or as JSON, or one line that says why not."""

import json
import re
from typing import Any

import pytest
import typer

from cli.admin_door import Door, admin_door
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.explain import why
from millgate.config.problems import ConfigError
from millgate.core.events import Arrived, Failed, Finished, Released
from millgate.core.words import FailureKind, Sent

Captured = pytest.CaptureFixture[str]


def ask(*arguments: str) -> None:
    """Run the command alone, as its place in `millgate` does."""
    app = typer.Typer(add_completion=False)
    app.command()(why)
    app([*arguments], standalone_mode=False)


def two_requests(door: Door) -> None:
    """Let one request run and refuse another, which its client gave an id."""
    door.post(0.0, Arrived(1, prompt_bytes=400, max_tokens=10))
    door.observers.accounting.named(2, b"mine/2")
    door.post(1.0, Arrived(2))
    door.post(3.0, Finished(1, 90, 10), Released(1))


def test_a_request_is_told_in_order_with_the_time_of_each_step(capsys: Captured) -> None:
    with admin_door() as door:
        two_requests(door)
        ask("b007-1", "--admin", door.url)

    head, *steps = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"attempt 1, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00", head)
    assert [step.split()[0] for step in steps] == ["+0.000", "+0.000", "+3.000"]
    assert "arrived: 400 bytes of prompt, max_tokens 10, streaming" in steps[0]
    assert "admitted at once to gpu-0" in steps[1]
    assert "ended good on gpu-0" in steps[2]


def test_the_id_that_a_provider_gave_finds_the_attempt_and_stands_in_its_head(capsys: Captured) -> None:
    with admin_door() as door:
        two_requests(door)
        door.observers.accounting.upstream_named(1, b"req_011")
        ask("req_011", "--admin", door.url)

    assert capsys.readouterr().out.splitlines()[0].endswith(", req_011 at its engine")


def test_a_failure_has_the_cause_that_the_connection_gave(capsys: Captured) -> None:
    with admin_door() as door:
        door.post(0.0, Arrived(1, prompt_bytes=400, max_tokens=10))
        door.observers.accounting.failed_because(1, "cannot connect to gpu:8000: refused")
        door.post(1.0, Failed(1, FailureKind.CONNECT, Sent.REQUEST), Released(1))
        ask("1", "--admin", door.url)

    last = capsys.readouterr().out.splitlines()[-1]
    assert "ended engine_failed (connect) on gpu-0" in last
    assert last.endswith("; cannot connect to gpu:8000: refused")


def test_a_client_s_own_id_finds_its_refusal_and_json_is_one_line(capsys: Captured) -> None:
    with admin_door() as door:
        two_requests(door)
        ask("mine/2", "--admin", door.url, "--json")

    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["id"] == "mine/2"
    (attempt,) = answer["attempts"]
    assert [step["kind"] for step in attempt["steps"]] == ["arrived", "yield"]
    assert attempt["steps"][1]["words"].startswith(
        "refused saturated: 1 of 1 streams are out; told to come back in "
    )


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        (["nobody"], "nobody: no decision is kept under this id", ExitCode.FAILURE),
        (["x" * 129], "id: give a request id or an attempt's number, at most 128", ExitCode.FAILURE),
        (["1", "--admin", "ftp://x"], "--admin: 'ftp://x' is not an address", ExitCode.USAGE),
        (
            ["1", "--admin", "http://127.0.0.1:99999"],
            "--admin: 'http://127.0.0.1:99999' has no",
            ExitCode.USAGE,
        ),
        (["1", "--admin", "http://[::1"], "--admin: Invalid IPv6 URL", ExitCode.USAGE),
        (["1", "--admin", "http://a b:1"], "--admin: 'http://a b:1' is not an address", ExitCode.USAGE),
        (["\udcff"], "\udcff: no decision is kept under this id", ExitCode.FAILURE),
        (["1", "--admin", "http://127.0.0.1:1"], "nothing listens at http://127.0.0.1:1", ExitCode.FAILURE),
    ],
)
def test_what_cannot_be_told_is_one_line(arguments: list[str], complaint: str, code: ExitCode) -> None:
    with admin_door() as door, pytest.raises(CommandError) as raised:
        ask("--admin", door.url, *arguments)

    assert complaint in str(raised.value)
    assert raised.value.code == code


def test_the_token_of_the_environment_is_shown_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLGATE_ADMIN_TOKEN", raising=False)
    with admin_door(token="a-secret-token-of-an-operator") as door:
        two_requests(door)
        with pytest.raises(CommandError, match="answered 401") as raised:
            ask("1", "--admin", door.url)
        monkeypatch.setenv("MILLGATE_ADMIN_TOKEN", "a-secret-token-of-an-operator")
        ask("1", "--admin", door.url)

        monkeypatch.setenv("MILLGATE_ADMIN_TOKEN", "a-secret-token\nof-an-operator")
        with pytest.raises(
            ConfigError, match="MILLGATE_ADMIN_TOKEN holds what cannot stand in a header"
        ) as unfit:
            ask("1", "--admin", door.url)

    assert "MILLGATE_ADMIN_TOKEN" in str(raised.value)
    assert "secret" not in f"{raised.value} {unfit.value}"
