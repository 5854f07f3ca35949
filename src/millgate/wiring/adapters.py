"""What engines have told of their adapters, put into the core's settings."""

from collections.abc import Container
from dataclasses import replace

from millgate.core.settings import Settings


def with_lacking(settings: Settings, told: Container[str]) -> Settings:
    """Return settings in which the engines that have told their adapters, by name, are not asked for those of others."""
    every = frozenset(name for engine in settings.engines for name in engine.adapters)
    engines = tuple(
        replace(engine, lacks=every.difference(engine.adapters)) if engine.name in told else engine
        for engine in settings.engines
    )
    return replace(settings, engines=engines)
