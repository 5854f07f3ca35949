"""Proxies of engines: written down without credentials, or in a variable with them, and never shown."""

import json
from pathlib import Path

import pytest

from millgate.config.load import Loaded, load_config
from millgate.config.problems import ConfigError

SECRET = "PLANTED"


def load(directory: Path, engine: str, **environ: str) -> Loaded:
    file = directory / "gate.yaml"
    file.write_text(
        f"engines:\n  - url: https://provider.test\n    name: one\n    {engine}\n", encoding="utf-8"
    )
    return load_config(file, environ)


def test_an_engine_has_the_proxy_that_is_written_down(tmp_path: Path) -> None:
    loaded = load(tmp_path, "proxy: http://proxy.test:3128")

    assert loaded.engine_proxies["one"].get_secret_value() == "http://proxy.test:3128"


@pytest.mark.parametrize(
    "url",
    [f"http://gate:{SECRET}@proxy.test:3128/", f" http://a:{SECRET}@b@[::1]:80\n", "http://10.0.0.1:8080"],
)
def test_an_engine_has_the_proxy_of_the_variable_that_it_names_and_its_login_shows_nowhere(
    tmp_path: Path, url: str
) -> None:
    loaded = load(tmp_path, "proxy_env: HTTPS_PROXY", HTTPS_PROXY=url)

    assert loaded.engine_proxies["one"].get_secret_value() == url.strip()
    assert SECRET not in repr(loaded) + json.dumps(loaded.config.model_dump(mode="json"))


def test_a_proxy_in_the_environment_is_no_engines_unless_it_is_named(tmp_path: Path) -> None:
    proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY"), "http://proxy.test:3128")

    assert load(tmp_path, "max_inflight: 8", **proxies).engine_proxies == {}


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (
            f"http://gate:{SECRET}@proxy.test:3128",
            "carries credentials: put it into the variable",
        ),
        (f"gate:{SECRET}@proxy.test:3128", "carries credentials"),
        ("proxy.test:3128", "must be http://host:port"),
        ("http://proxy.test", "must be http://host:port"),
        ("https://proxy.test:3128", "must be http://host:port"),
        ("socks5://proxy.test:1080", "must be http://host:port"),
        ("http://proxy.test:3128/path", "must be http://host:port"),
        ("http://proxy.test:65536", "must be http://host:port"),
        ("'http://proxy test:3128'", "must be http://host:port"),
        ("7", "must be text"),
    ],
)
def test_what_is_no_proxy_is_refused_and_not_repeated(tmp_path: Path, url: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"proxy: {url}")

    assert "gate.yaml:4:5: engines[0].proxy: " in str(caught.value)
    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "the environment variable EGRESS is not set"),
        (f"gate:{SECRET}@proxy.test:3128", "must hold http://[user:password@]host:port"),
        (f"https://gate:{SECRET}@proxy.test:3128", "must hold http://[user:password@]host:port"),
        (f"http://gate:{SECRET}@proxy.test", "must hold http://[user:password@]host:port"),
        (f"http://gate:{SECRET}\r\nx: y@proxy.test:1", "must hold http://[user:password@]host:port"),
    ],
)
def test_a_variable_that_holds_no_proxy_is_refused_and_not_repeated(
    tmp_path: Path, url: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "proxy_env: EGRESS", EGRESS=url)

    assert "gate.yaml:4:5: engines[0].proxy_env: the environment variable EGRESS " in str(caught.value)
    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "engine",
    [
        "proxy: http://p:1\n    proxy_env: EGRESS",
        "proxy: http://p:1\n    discover: dns",
        "proxy_env: EGRESS\n    discover: dns",
    ],
)
def test_one_way_to_find_an_engine_is_given(tmp_path: Path, engine: str) -> None:
    with pytest.raises(ConfigError, match="each say how its host is found: give one"):
        load(tmp_path, engine)
