"""Roles of engines in a configuration: what goes together, and what is refused with the field's name."""

from math import inf
from pathlib import Path

import pytest

from millgate.cli.compose import gateway_settings
from millgate.config.load import load_config
from millgate.config.problems import ConfigError
from millgate.core.words import KvTransfer, Role
from millgate.wiring.settings import build_settings

BOTH = """
engines:
  - {url: "http://p:1", name: reads, role: prefill, kv_lease: 20s}
  - {url: "http://d:1", name: writes, role: decode}
  - {url: "http://u:1", name: whole, overflow: true}
"""


SGLANG = """
engines:
  - {url: "http://p:1", name: reads, role: prefill, kv_transfer: sglang, bootstrap_port: 9001}
  - {url: "http://q:1", name: also-reads, role: prefill, kv_transfer: sglang}
  - {url: "http://d:1", name: writes, role: decode, kv_transfer: sglang}
"""


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    return str(caught.value)


def test_both_roles_arrive_in_the_core_with_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(BOTH)
    built = build_settings(load_config(path, {}, {}).config)
    reads, writes, whole = built.settings.engines
    assert (reads.role, reads.kv_lease_s) == (Role.PREFILL, 20.0)
    assert (writes.role, whole.role) == (Role.DECODE, Role.UNIFIED)
    assert (writes.overflow, whole.overflow) == (False, True)
    assert reads.limit.kind == "fixed", "one token of each answer says nothing of a pace"
    assert reads.prefill_tokens == 8 * 16_384, "what it keeps out is read between answers"
    assert writes.prefill_tokens == whole.prefill_tokens == 16_384
    told = {name: (value, why) for name, value, why in built.choices}
    assert told["reads role"][0] == "prefill"
    assert "20s" in told["reads role"][1]
    assert "whole role" not in told


def test_sglangs_engines_arrive_with_the_port_where_they_meet(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(SGLANG)
    loaded = load_config(path, {}, {})
    built = build_settings(loaded.config)
    assert {engine.kv_transfer for engine in built.settings.engines} == {KvTransfer.SGLANG}
    assert [engine.needs_reader for engine in built.settings.engines] == [False, False, True]
    addresses = gateway_settings(loaded).engines
    assert [address.bootstrap_port for address in addresses] == [9001, 8998, None]
    told = {name: why for name, _, why in built.choices}
    assert "SGLang" in told["writes role"]
    assert "whole requests" not in told["writes role"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'engines: [{url: "http://p:1", role: prefill}]',
            "engines[0].role: prefill needs an engine with `role: decode`",
        ),
        (
            'engines: [{url: "http://d:1", role: decode}]',
            "engines[0].role: decode needs an engine with `role: prefill`",
        ),
        (
            'engines: [{url: "http://p:1", role: prefill, models: [a]}, {url: "http://d:1", role: decode, models: [b]}]',
            "engines[0].role: prefill needs an engine with `role: decode` and the same `models`",
        ),
        (
            'engines: [{url: "http://p:1", role: prefill, account: {rpm: 5}}, {url: "http://d:1", role: decode}]',
            "engines[0].role: is for engines of your own",
        ),
        (
            'engines: [{url: "http://p:1", kv_transfer: sglang}]',
            "engines[0].kv_transfer: needs `role: prefill` or `role: decode`",
        ),
        (
            'engines: [{url: "http://p:1", role: prefill, kv_transfer: sglang}, {url: "http://d:1", role: decode}]',
            "engines[0].kv_transfer: sglang needs an engine with `role: decode` and the same `kv_transfer`",
        ),
        (
            'engines: [{url: "http://p:1", role: prefill, bootstrap_port: 8998}, {url: "http://d:1", role: decode}]',
            "engines[0].bootstrap_port: needs `role: prefill` and `kv_transfer: sglang`",
        ),
        (
            'engines: [{url: "http://d:1", role: decode, kv_transfer: sglang, bootstrap_port: 8998}]',
            "engines[0].bootstrap_port: needs `role: prefill` and `kv_transfer: sglang`",
        ),
        (
            'engines: [{url: "http://p:1", role: prefill, overflow: true}, {url: "http://d:1", role: decode}]',
            "engines[0].overflow: is for engines with `role: unified`",
        ),
        ('engines: [{url: "http://p:1", role: prefill, bootstrap_port: 0}]', "engines[0].bootstrap_port"),
        ('engines: [{url: "http://p:1", role: prefill, kv_transfer: mooncake}]', "engines[0].kv_transfer"),
        ('engines: [{url: "http://p:1", role: prefil}]', "engines[0].role"),
        ('engines: [{url: "http://p:1", kv_lease: 0s}]', "engines[0].kv_lease"),
    ],
)
def test_half_of_a_pair_is_refused_by_the_name_of_the_field(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("written", "after_s"), [("", 2.0), ("overflow_after: 0s", 0.0), ("overflow_after: never", inf)]
)
def test_a_lane_waits_a_fifth_of_its_deadline_for_other_engines_unless_it_says_otherwise(
    tmp_path: Path, written: str, after_s: float
) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(f"{BOTH}lanes: [{{name: lane, ttft_slo: 5s, deadline: 10s, {written}}}]\n")
    assert build_settings(load_config(path, {}, {}).config).settings.lanes[0].overflow_after_s == after_s


def test_a_wait_that_is_no_time_is_refused_with_both_things_that_it_may_be(tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{BOTH}lanes: [{{name: lane, overflow_after: soon}}]\n")
    assert (
        "lanes[0].overflow_after: 'soon' is not a duration: write it like 30s, 250ms, 5m or 1h, or `never`"
        in said
    )
