"""`millgate key new`: a key is shown once, and its hash is what a configuration takes."""

import io
import json
from hashlib import sha256
from pathlib import Path

import pytest

from millgate.cli.exits import ExitCode
from millgate.cli.main import main
from millgate.config.document import read_document
from millgate.config.load import load_config
from millgate.runtime.callers import LONGEST_KEY

Captured = pytest.CaptureFixture[str]


def test_a_key_is_printed_with_its_hash_and_the_lines_to_paste(capsys: Captured, tmp_path: Path) -> None:
    assert main(["key", "new", "--tenant", "team-a"]) == ExitCode.OK

    out, err = capsys.readouterr()
    lines = dict(line.split() for line in out.splitlines())
    assert sha256(lines["key"].encode()).hexdigest() == lines["sha256"]
    assert lines["key"] not in err
    pasted = err[err.index("tenants:") :]
    assert read_document(pasted, "stderr").data["tenants"][0]["name"] == "team-a"
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://h:1'}]\n" + pasted, encoding="utf-8")
    assert load_config(file).config.tenants[0].keys[0].sha256 == lines["sha256"]


@pytest.mark.parametrize("name", ["123", "1.5", "no", "null", "12:30", "0x1F"])
def test_a_name_that_reads_as_something_else_is_quoted_in_the_lines(capsys: Captured, name: str) -> None:
    """The configuration refused the lines that were pasted: the name must be a string."""
    main(["key", "new", "--tenant", name])
    err = capsys.readouterr().err
    assert read_document(err[err.index("tenants:") :], "stderr").data["tenants"][0]["name"] == name


def test_keys_differ_and_are_of_a_length_that_the_door_takes(capsys: Captured) -> None:
    keys = set()
    for _ in range(5):
        main(["key", "new", "--json"])
        record = json.loads(capsys.readouterr().out)
        assert record["sha256"] == sha256(record["key"].encode()).hexdigest()
        keys.add(record["key"])

    assert len(keys) == 5
    assert all(key.startswith("mgk_") and 40 < len(key) < LONGEST_KEY for key in keys)


def test_a_tenant_that_is_no_name_is_refused(capsys: Captured) -> None:
    assert main(["key", "new", "--tenant", "a b"]) == ExitCode.USAGE

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("millgate: --tenant:")


@pytest.mark.parametrize("past", ["2020-01-31", "2024-12-31T23:59:59Z"])
def test_a_key_that_has_expired_before_it_is_given_away_is_refused(capsys: Captured, past: str) -> None:
    assert main(["key", "new", "--expires", past]) == ExitCode.USAGE

    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"millgate: --expires: {past} is past: the key would be refused\n"


KEY = "mgk_a-key-that-is-only-for-this-test"
DIGEST = sha256(KEY.encode()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    text = f"""engines: [{{url: 'http://h:1'}}]
tenants:
  - name: team-a
    keys:
      - {DIGEST}
      - {{sha256: {"ab" * 32}, name: laptop, expires: 2020-01-31}}
  - {{name: team-b, keys: [{{sha256: {"cd" * 32}, expires: 2999-01-31T18:00:00+02:00}}]}}
"""
    path = tmp_path / "gate.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_list_says_whose_keys_there_are_and_when_they_end_but_no_hash(
    capsys: Captured, file: Path
) -> None:
    assert main(["key", "list", "--config", str(file)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["team-a", "team-a", "team-b"]
    assert lines[0].endswith("does not expire")
    assert lines[1].endswith("expired 2020-01-31T00:00:00+00:00, called laptop")
    assert lines[2].endswith("expires 2999-01-31T16:00:00+00:00")
    assert DIGEST not in "".join(lines)


@pytest.mark.parametrize(
    ("key", "code", "words"),
    [
        (KEY, ExitCode.OK, "a key of the tenant team-a, does not expire"),
        ("mgk_another", ExitCode.FAILURE, "a key of no tenant"),
        (KEY + "x" * LONGEST_KEY, ExitCode.FAILURE, "a key of no tenant"),
        ("mgk_\xe9", ExitCode.FAILURE, "a key of no tenant"),
    ],
)
def test_a_key_is_checked_from_standard_input(
    capsys: Captured, file: Path, monkeypatch: pytest.MonkeyPatch, key: str, code: ExitCode, words: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{key}\n".encode("latin-1"))))
    assert main(["key", "check", "--config", str(file)]) == code
    out, err = capsys.readouterr()
    assert words in out + err
    assert key not in out + err


def test_without_a_standard_input_there_is_no_key(
    capsys: Captured, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["key", "check", "--config", str(file)]) == ExitCode.USAGE
    assert "no standard input" in capsys.readouterr().err


def test_a_key_that_ends_at_no_time_is_refused(capsys: Captured) -> None:
    assert main(["key", "new", "--expires", "tomorrow"]) == ExitCode.USAGE
    assert "--expires: must be a date or a time" in capsys.readouterr().err
