"""`millgate key new`: a key is shown once, and its hash is what a configuration takes."""

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
    assert load_config(file).config.tenants[0].keys == (lines["sha256"],)


def test_keys_differ_and_are_of_a_length_that_the_door_takes(capsys: Captured) -> None:
    keys = set()
    for _ in range(5):
        main(["key", "new", "--json"])
        record = json.loads(capsys.readouterr().out)
        assert record["sha256"] == sha256(record["key"].encode()).hexdigest()
        keys.add(record["key"])

    assert len(keys) == 5
    assert all(key.startswith("hgk_") and 40 < len(key) < LONGEST_KEY for key in keys)


def test_a_tenant_that_is_no_name_is_refused(capsys: Captured) -> None:
    assert main(["key", "new", "--tenant", "a b"]) == ExitCode.USAGE

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("millgate: --tenant:")
