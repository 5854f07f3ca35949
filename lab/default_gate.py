"""A simulated gate as one without a configuration is: its lanes, and the meter of prompt tokens."""

from collections.abc import Container
from dataclasses import replace
from typing import Final

from millgate.config.lanes import DEFAULT_LANES
from millgate.config.schema import Config
from millgate.core.settings import LaneSettings
from millgate.sim.fleet import SimulatedFleet
from millgate.wiring.chosen import default_prefill_tokens
from millgate.wiring.settings import build_settings

LANES: Final[tuple[str, ...]] = tuple([lane["name"] for lane in DEFAULT_LANES])
"""The names of the default lanes."""


def default_lanes(names: Container[str] = LANES, **first_lane: str) -> tuple[LaneSettings, ...]:
    """Return the first of the default lanes, with these settings as a file writes them, and of the others those of these names."""
    first, *others = DEFAULT_LANES
    lanes = [{**first, **first_lane}, *[lane for lane in others if lane["name"] in names]]
    config = {"engines": [{"url": "http://engine"}], "lanes": lanes}
    return build_settings(Config.model_validate(config)).settings.lanes


def metered(fleet: SimulatedFleet) -> SimulatedFleet:
    """Return this fleet with the meter of prompt tokens that a gate has by default; `uniform_fleet` has none."""
    engines = tuple(
        [replace(each, prefill_tokens=default_prefill_tokens(each.role)) for each in fleet.settings.engines]
    )
    return replace(fleet, settings=replace(fleet.settings, engines=engines))
