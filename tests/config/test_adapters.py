"""Adapters of engines in a configuration: they reach the core, and one that is a model too is refused by name."""

from pathlib import Path

import pytest

from millgate.cli.compose import gateway_settings
from millgate.config.discovered import with_adapters
from millgate.config.load import load_config
from millgate.config.problems import ConfigError
from millgate.wiring.settings import build_settings

TEXT = """
engines:
  - {url: "http://a:1", name: a, models: [base], adapters: [law, tax], adapter_slots: 4, adapter_load: 2s}
"""


def test_adapters_arrive_in_the_core_with_their_slots(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT)

    (engine,) = build_settings(load_config(path, {}, {}).config).settings.engines

    assert (engine.models, engine.adapters) == (("base",), ("law", "tax"))
    assert (engine.adapter_slots, engine.adapter_load_s) == (4, 2.0)


def test_an_adapter_that_is_a_model_too_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT.replace("tax", "base"))

    with pytest.raises(
        ConfigError, match=r"engines\[0\]\.adapters\[1\].*is among the engine's `models` too: base"
    ):
        load_config(path, {}, {})


def test_where_engines_serve_different_models_their_adapters_are_known_at_the_door(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT + '  - {url: "http://b:1", name: b, models: [other]}\n')

    models = gateway_settings(load_config(path, {}, {})).door.models
    assert models == frozenset({"base", "other", "law", "tax"})


def test_what_an_engine_tells_joins_what_is_configured(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(TEXT + '  - {url: "http://b:1", name: b}\n')
    told = {"a": {"tax": "base", "tea": "base", "far": "other"}, "b": {"far": "other"}}

    a, b = with_adapters(load_config(path, {}, {}), told).config.engines

    assert a.adapters == ("law", "tax", "tea"), "adapters of a model that it is not to serve are none of ours"
    assert b.adapters == ("far",)
