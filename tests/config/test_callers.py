"""Tenants, credentials and TLS in a configuration: contradictions are refused, and no secret is ever repeated."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from millgate.config.load import Loaded, load_config
from millgate.config.problems import ConfigError

ENGINE = "engines: [{url: 'http://127.0.0.1:8000', name: one}]\n"
SECRET = "mgk_planted-secret-that-stays-hidden"
HASH = sha256(SECRET.encode()).hexdigest()
Write = Callable[[str], Path]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Loaded]:
    def load_text(text: str, **environ: str) -> Loaded:
        file = tmp_path / "gate.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(file, environ)

    return load_text


Load = Callable[..., Loaded]


def test_a_tenant_is_a_name_hashes_and_lanes(load: Load) -> None:
    text = f"{ENGINE}lanes: [{{name: a}}, {{name: b}}]\ntenants: [{{name: t, keys: [{HASH.upper()}], lanes: [b, a]}}]\n"

    tenant = load(text).config.tenants[0]

    assert (tenant.name, [key.sha256 for key in tenant.keys], tenant.lanes, tenant.default_lane) == (
        "t",
        [HASH],
        ("b", "a"),
        None,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            f"tenants: [{{name: t, keys: [{SECRET}]}}]",
            "tenants[0].keys[0].sha256: must be a SHA-256 in 64 hex",
        ),
        ("tenants: [{name: t, keys: [1234]}]", "tenants[0].keys[0].sha256: must be a SHA-256"),
        ("tenants: [{name: t, keys: []}]", "tenants[0].keys: must have at least 1 items"),
        (f"tenants: [{{name: t, key: {SECRET}}}]", "tenants[0].key: is not a setting; did you mean `keys`?"),
        (f"tenants: [{{name: t, keys: [{HASH}], lanes: [fast]}}]", "tenants[0].lanes: names no lane: fast"),
        (
            f"tenants: [{{name: t, keys: [{HASH}], default_lane: x}}]",
            "tenants[0].default_lane: names no lane: x",
        ),
        (
            f"tenants: [{{name: a, keys: [{HASH}]}}, {{name: b, keys: [{HASH}]}}]",
            "tenants[1].keys[0]: is a key of the tenant a already",
        ),
        (
            f"tenants: [{{name: a, keys: [{HASH}, {{sha256: {HASH}, expires: 2027-01-31}}]}}]",
            "tenants[0].keys[1]: is a key of the tenant a already",
        ),
        (
            f"tenants: [{{name: a, keys: [{HASH}]}}, {{name: a, keys: [{'ab' * 32}]}}]",
            "tenants have the same name: a",
        ),
        (
            f"tenant_from: key\ntenants: [{{name: a, keys: [{HASH}]}}]",
            "tenant_from: makes tenants of unknown",
        ),
        ("tenant_from: header", "tenant_from: must be one of 'key'"),
        ("listen: {trusted_peers: [10.0.0.0/33]}", "listen.trusted_peers[0]: '10.0.0.0/33' is not a network"),
        ("listen: {trusted_peers: [10.0.0.1/8]}", "'10.0.0.1/8' is not a network"),
        ("listen: {tls: {cert: x}}", "listen.tls.key: is missing"),
        (
            "lanes: [{name: a, paths: [/x]}, {name: b, paths: [/x]}]",
            "lanes[1].paths[0]: is a path of the lane a",
        ),
    ],
)
def test_a_contradiction_is_refused_without_repeating_a_secret(load: Load, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ENGINE + text + "\n")

    assert complaint in str(caught.value)
    assert "gate.yaml:2:" in str(caught.value) or "same name" in complaint
    assert SECRET not in str(caught.value)


def test_an_address_for_everybody_is_taken_with_keys(load: Load) -> None:
    text = f"{ENGINE}listen: {{host: 0.0.0.0}}\ntenants: [{{name: t, keys: [{HASH}]}}]\n"

    assert load(text).config.listen.host == "0.0.0.0"


def test_an_address_for_everybody_is_not_taken_with_any_key_at_all(load: Load) -> None:
    """`tenant_from: key` lets every credential in; it guards nothing."""
    with pytest.raises(ConfigError, match="can be reached from outside"):
        load(f"{ENGINE}listen: {{host: '::'}}\ntenant_from: key\n")


def test_an_engine_credential_comes_from_the_environment_and_shows_nowhere(load: Load) -> None:
    text = "engines: [{url: 'http://127.0.0.1:8000', name: one, api_key_env: ONE_KEY}]\n"

    loaded = load(text, ONE_KEY=SECRET)

    assert loaded.engine_keys["one"].get_secret_value() == SECRET
    assert SECRET not in repr(loaded) + json.dumps(loaded.config.model_dump(mode="json"))


@pytest.mark.parametrize(("value", "complaint"), [("", "is not set"), ("a\nb", "cannot stand in a header")])
def test_a_missing_or_impossible_engine_credential_is_refused(load: Load, value: str, complaint: str) -> None:
    text = "engines:\n  - url: http://127.0.0.1:8000\n    api_key_env: ONE_KEY\n"

    with pytest.raises(ConfigError) as caught:
        load(text, ONE_KEY=value)

    assert "gate.yaml:3:5: engines[0].api_key_env: the environment variable ONE_KEY" in str(caught.value)
    assert complaint in str(caught.value)


def test_a_secret_may_be_in_a_file_that_is_read_with_each_configuration(load: Load, tmp_path: Path) -> None:
    text = "engines: [{url: 'http://127.0.0.1:8000', name: one, api_key_env: ONE_KEY}]\n"
    file = tmp_path / "key"

    file.write_text(f"{SECRET}\n")
    before = load(text, ONE_KEY_FILE=str(file))
    file.write_text("another-one")
    after = load(text, ONE_KEY_FILE=str(file))

    assert before.engine_keys["one"].get_secret_value() == SECRET
    assert after.engine_keys["one"].get_secret_value() == "another-one"
    assert before.other_keys(after) == ["engines.one.api_key_env"]
    assert after.other_keys(after) == []


def test_a_file_of_a_secret_that_cannot_be_used_is_told_without_a_word_of_it(
    load: Load, tmp_path: Path
) -> None:
    text = "engines: [{url: 'http://127.0.0.1:8000', name: one, api_key_env: ONE_KEY}]\n"
    file = tmp_path / "key"
    file.write_bytes(b"sk-\xff")
    wrong = {
        "names a file that is no UTF-8 text": {"ONE_KEY_FILE": str(file)},
        "names a file that cannot be read: No such file or directory": {"ONE_KEY_FILE": SECRET},
        "is set, and so is the variable of that name": {"ONE_KEY_FILE": str(file), "ONE_KEY": SECRET},
    }
    for complaint, environ in wrong.items():
        with pytest.raises(ConfigError) as caught:
            load(text, **environ)
        assert f"the environment variable ONE_KEY_FILE {complaint}" in str(caught.value)
        assert SECRET not in str(caught.value)


def test_a_dump_shows_which_keys_there_are_and_not_their_hashes(load: Load) -> None:
    dump = json.dumps(
        load(f"{ENGINE}tenants: [{{name: t, keys: [{HASH}]}}]\n").config.model_dump(mode="json")
    )

    assert f"{HASH[:8]}..." in dump
    assert HASH not in dump


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ("{url: 'http://h:1', tls: {ca: x}}", "engines[0]: `tls` is for an address that begins with https"),
        ("{url: 'https://h:1', tls: {cert: x}}", "engines[0].tls: `cert` and `key` belong together"),
    ],
)
def test_tls_of_an_engine_is_whole_or_refused(load: Load, engine: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"engines: [{engine}]\n")

    assert complaint in str(caught.value)
