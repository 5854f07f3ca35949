"""Engines that are found: by a file of their own, and by the addresses of a name."""

import json
from pathlib import Path

import pytest

from millgate.config.discovered import names_of, twins_of, with_addresses
from millgate.config.load import Loaded, load_config
from millgate.config.overrides import from_assignment
from millgate.config.problems import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return a configuration that names a file of engines, and that file, which is not there yet."""
    engines = tmp_path / "engines.yaml"
    gate = tmp_path / "gate.yaml"
    gate.write_text(f"discovery: {{file: {engines}}}\n", encoding="utf-8")
    return gate, engines


def written(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Loaded:
    file = tmp_path / "gate.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environ)


def urls(loaded: Loaded) -> list[tuple[str, str]]:
    return [(engine.name, engine.url) for engine in loaded.config.engines]


def test_engines_of_their_file_join_those_of_the_configuration(files: tuple[Path, Path]) -> None:
    gate, engines = files
    gate.write_text(gate.read_text(encoding="utf-8") + "engines: [{url: 'http://a:1'}]\n", encoding="utf-8")
    engines.write_text(json.dumps([{"url": "http://b:2", "models": ["m"]}]), encoding="utf-8")

    loaded = load_config(gate, {}, [from_assignment("engines.*.max_inflight=7")])

    assert urls(loaded) == [("a:1", "http://a:1"), ("b:2", "http://b:2")]
    assert [engine.max_inflight for engine in loaded.config.engines] == [7, 7]
    assert loaded.origin("engines", 1, "url") == f"{engines}:1:3"
    assert loaded.origin("engines", 0, "url") == f"{gate}:2:12"


def test_their_file_is_read_again_without_the_rest(files: tuple[Path, Path]) -> None:
    gate, engines = files
    engines.write_text("- url: http://b:2\n", encoding="utf-8")
    first = load_config(gate, {"MILLGATE_LISTEN__PORT": "9"})
    gate.write_text("nonsense", encoding="utf-8")
    engines.write_text("- url: http://c:3\n- url: http://d:4\n", encoding="utf-8")

    assert first.sources is not None
    again = first.sources.read()

    assert [engine.url for engine in again.config.engines] == ["http://c:3", "http://d:4"]
    assert again.config.listen.port == 9
    assert again.engines_stamp != first.engines_stamp
    assert "environ" not in repr(again)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ":1:1: must be a list of engines with at least one item, such as `- url: http://host:port`"),
        ("[]", ":1:1: must be a list of engines with at least one item, such as `- url: http://host:port`"),
        (
            "url: http://b:2",
            ":1:1: must be a list of engines with at least one item, such as `- url: http://host:port`",
        ),
        (
            "- url: http://b:2\n- {url: 'http://c:3', max_inflght: 3}\n",
            ":2:23: engines[1].max_inflght: is not a setting; did you mean `max_inflight`?",
        ),
        ("- url: b\n", ":1:3: engines[0].url: 'b' is not an address: write http://host:port"),
        ("- {url: ]", ":1:9: is not YAML: expected the node content, but found ']'"),
    ],
)
def test_what_is_wrong_in_it_is_named_where_it_stands(
    files: tuple[Path, Path], text: str, problem: str
) -> None:
    gate, engines = files
    engines.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(gate)
    assert str(caught.value) == f"{engines}{problem}"


def test_a_file_of_engines_that_is_not_there_is_named(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"engines\.yaml: cannot be read: No such file"):
        load_config(files[0])


def test_the_short_form_of_an_upstream_by_name() -> None:
    (engine,) = load_config(
        None, {}, [from_assignment("engines.0.url=dns://vllm.default.svc:8000")]
    ).config.engines
    assert (engine.url, engine.discover, engine.name) == (
        "http://vllm.default.svc:8000",
        "dns",
        "vllm.default.svc:8000",
    )


def test_each_address_of_a_name_is_an_engine_with_its_settings(tmp_path: Path) -> None:
    text = (
        "engines:\n"
        "  - {url: 'http://fixed:1', name: fixed}\n"
        "  - {url: 'https://vllm.svc:8000/base', discover: dns, max_inflight: 9, api_key_env: KEY}\n"
        "  - {url: 'dns://other.svc', name: other}\n"
    )
    loaded = written(tmp_path, text, {"KEY": "sk-1"})
    assert names_of(loaded) == ("vllm.svc", "other.svc")

    found = with_addresses(loaded, {"vllm.svc": ("10.0.0.1", "fd00::2"), "other.svc": ("10.0.0.1",)})

    assert urls(found) == [
        ("fixed", "http://fixed:1"),
        ("10.0.0.1:8000", "https://10.0.0.1:8000/base"),
        ("fd00::2:8000", "https://[fd00::2]:8000/base"),
        ("other-10.0.0.1", "http://10.0.0.1"),
    ]
    assert [engine.max_inflight for engine in found.config.engines] == [None, 9, 9, None]
    assert [engine.discover for engine in found.config.engines] == [None] * 4
    # Certificates are made for names.
    assert [engine.tls and engine.tls.server_name for engine in found.config.engines] == [
        None,
        "vllm.svc",
        "vllm.svc",
        None,
    ]
    assert sorted(found.engine_keys) == ["10.0.0.1:8000", "fd00::2:8000"]
    column = text.splitlines()[2].index("max_inflight") + 1
    assert found.origin("engines", 2, "max_inflight") == f"{tmp_path / 'gate.yaml'}:3:{column}"
    assert twins_of(found) == []


def test_a_name_that_nothing_was_found_for_stays_and_is_nowhere(tmp_path: Path) -> None:
    loaded = written(tmp_path, "engines: [{url: 'dns://a:1'}, {url: 'dns://b:1'}]\n")
    found = with_addresses(loaded, {"b": ("10.0.0.1",)})
    assert [(engine.name, engine.discover) for engine in found.config.engines] == [
        ("a:1", "dns"),
        ("10.0.0.1:1", None),
    ]


def test_two_names_with_one_address_are_twins(tmp_path: Path) -> None:
    loaded = written(tmp_path, "engines: [{url: 'dns://a:1'}, {url: 'dns://b:1'}]\n")
    assert twins_of(with_addresses(loaded, {"a": ("10.0.0.1",), "b": ("10.0.0.1",)})) == ["10.0.0.1:1"]


def test_no_more_engines_are_found_than_a_gate_may_have(tmp_path: Path) -> None:
    loaded = written(tmp_path, "engines: [{url: 'dns://a:1'}]\n")
    found = with_addresses(loaded, {"a": [f"10.0.0.{number}" for number in range(100)]})
    assert len(found.config.engines) == 64


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (
            "{url: 'http://10.0.0.1:8000', discover: dns}",
            "`discover` looks a name up, and `url` holds an address",
        ),
        ("{url: 'dns://[fd00::1]:8000'}", "`discover` looks a name up, and `url` holds an address"),
        ("{url: 'http://a', discover: srv}", "discover: must be one of 'dns', not 'srv'"),
        (
            "{url: 'dns://a', account: {rpm: 5}}",
            "`discover` finds several engines, and `account` is of one: give one of the two",
        ),
    ],
)
def test_what_cannot_be_looked_up_is_refused(tmp_path: Path, engine: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, f"engines: [{engine}]\n")
    assert problem in str(caught.value)
