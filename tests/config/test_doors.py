"""Doors that take each other's address, engines that are one server, and addresses as people write them."""

from pathlib import Path

import pytest

from millgate.config.load import Loaded, load_config
from millgate.config.problems import ConfigError

ENGINE = 'engines: [{url: "http://e:1"}]\n'


def read(tmp_path: Path, text: str) -> Loaded:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    return load_config(path, {}, {})


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("doors", "said"),
    [
        (
            "listen: {port: 9000}\nadmin: {port: 9000}\n",
            ":3:9: admin.port: 127.0.0.1:9000 is taken by `listen.port`: give each door its own",
        ),
        ("listen: {port: 7777}\nline: {}\n", "line.port: 127.0.0.1:7777 is taken by `listen.port`"),
        (
            "admin: {port: 7777}\nline: {host: localhost}\n",
            "line.port: localhost:7777 is taken by `admin.port`",
        ),
        ("listen: {host: 0.0.0.0, port: 8081, insecure: true}\n", "admin.port: 127.0.0.1:8081 is taken by"),
        ("admin: {port: 9002}\nextproc: {}\n", "extproc.port: 127.0.0.1:9002 is taken by `admin.port`"),
        (
            "extproc: {health_port: 9002}\n",
            "extproc.health_port: 127.0.0.1:9002 is taken by `extproc.port`",
        ),
    ],
)
def test_two_doors_at_one_address_are_both_named(tmp_path: Path, doors: str, said: str) -> None:
    assert said in refusal(tmp_path, ENGINE + doors)


@pytest.mark.parametrize(
    "doors",
    [
        "listen: {port: 0}\nadmin: {port: 0}\n",
        "listen: {port: 9000}\nadmin: {host: 127.0.0.2, port: 9000}\n",
        'listen: {port: 9000}\nadmin: {host: "::1", port: 9000}\n',
        "listen: {port: 9002}\nextproc: {}\n",
    ],
)
def test_doors_that_do_not_meet_are_no_mistake(tmp_path: Path, doors: str) -> None:
    read(tmp_path, ENGINE + doors)


def test_an_objective_of_a_lane_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    typo = ENGINE + "extproc: {objectives: {batch: thruput}}\n"
    assert "extproc.objectives.batch: names no lane: thruput (there are agents" in refusal(tmp_path, typo)


def test_one_server_under_two_names_is_refused(tmp_path: Path) -> None:
    twins = 'engines: [{url: "http://e:1", name: a}, {url: "http://e:1/v1/", name: b}]\n'
    assert "engines[1].url: is that of a too, and would get both caps: name it once" in refusal(
        tmp_path, twins
    )


@pytest.mark.parametrize(
    "engines",
    [
        '{url: "https://p", name: a, account: {rpm: 1}}, {url: "https://p", name: b, account: {rpm: 2}}',
        '{url: "http://e:1", name: a, models: [m]}, {url: "http://e:1", name: b, models: [n]}',
        '{url: "http://e:1/x", name: a}, {url: "http://e:1/y", name: b}',
    ],
)
def test_accounts_and_lists_of_models_may_share_an_address(tmp_path: Path, engines: str) -> None:
    assert len(read(tmp_path, f"engines: [{engines}]\n").config.engines) == 2


def test_an_address_may_have_the_brackets_that_it_has_in_a_url(tmp_path: Path) -> None:
    config = read(tmp_path, ENGINE + 'listen: {host: "[::1]"}\nline: {host: "[::1]"}\n').config
    assert config.line is not None
    assert (config.listen.host, config.line.host) == ("::1", "::1")
    assert "listen.host: :: can be reached from outside" in refusal(
        tmp_path, ENGINE + 'listen: {host: "[::]"}\n'
    )
