"""The configuration with what is not written in it: the engines that are found, and what they tell of their size."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from millgate.cli.exits import CommandError
from millgate.config.discovered import names_of, twins_of, with_adapters, with_addresses
from millgate.config.load import FileStamp, Loaded, stamp_of
from millgate.config.problems import ConfigError, Problem
from millgate.config.schema import Config, EngineConfig
from millgate.config.values import Section
from millgate.core.settings import EngineSettings, Settings
from millgate.gateway import (
    Configuration,
    Discovery,
    DiscoverySettings,
    EngineAddress,
    GatewaySettings,
    ReloadError,
    answers,
    ask_engine,
)
from millgate.runtime.adapters import Adapters
from millgate.runtime.gauges import Gauges
from millgate.wiring.chosen import EngineFacts
from millgate.wiring.settings import Built, build_settings, with_lacking

# A metrics page comes within milliseconds; an engine that is still loading is not waited for.
_ASK_WITHIN_S = 1.0

_Facts = dict[str, EngineFacts]


class SizedConfiguration:
    """The configuration in force, with the engines that were found and with what they have told of their size.

    What an engine has told stays while it is down, so that it keeps its limits.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings_of: Callable[[Loaded], GatewaySettings],
    ) -> None:
        self._settings_of = settings_of
        self.discovery = Discovery(_stamp)
        self._written = loaded
        self._loaded = loaded
        self._addresses: tuple[EngineAddress, ...] = ()
        self._facts: _Facts = {}
        self._adapters: dict[str, Adapters] = {}
        self._limits: Mapping[str, EngineSettings] = {}

    @property
    def text(self) -> str:
        """What the file said that is in force."""
        assert self._written.sources is not None
        return self._written.sources.text

    async def ask(self) -> tuple[GatewaySettings, Built]:
        """Find the engines, ask every one for its size once, and build; ConfigError where that cannot be done."""
        await self.discovery.find(names_of(self._written))
        self.discovery.aim(_targets(self._written))
        loaded, settings = self._found(self._written)
        told = await ask_engines(loaded.config, settings.engines)
        built = self._built(loaded, settings, told)
        self._takes(self._written, loaded, settings, built, told)
        return settings, built

    async def reload(self, read: Callable[[], Loaded]) -> Configuration:
        """Read the configuration anew, away from the loop: files may be large and disks slow; raises ReloadError."""
        try:
            written = await asyncio.to_thread(self._read, read)
            await self.discovery.find(names_of(written))
            loaded, settings = await self._look(written)
            told = await ask_engines(loaded.config, settings.engines)
            sized = {name: fact for name, fact in told.items() if fact.kv_tokens is not None}
            return self._change(written, loaded, settings, sized)._replace(resized=())
        except (ConfigError, CommandError, RuntimeError) as error:  # the last where no thread is left
            raise ReloadError(str(error)) from None

    def _read(self, read: Callable[[], Loaded]) -> Loaded:
        """Read the configuration and look at its certificates, so that a wrong one is refused before engines are asked."""
        loaded = read()
        self._settings_of(loaded)
        return loaded

    async def refill(self) -> Configuration:
        """Read the file of engines anew and nothing else, so not the key that workers have of their supervisor; raises ReloadError."""
        sources, key = self._written.sources, self._written.ticket_secret
        assert sources is not None
        return await self.reload(lambda: sources.read()._replace(ticket_secret=key))

    def told(self, engine: str, gauges: Gauges) -> bool:
        """Take what an engine says of its size; return whether its limits may be others now."""
        fact = EngineFacts(gauges.kv_tokens, gauges.model)
        if not any(each.name == engine for each in _unsure(self._loaded.config)):
            return False
        if self._facts.get(engine) == fact:
            return False
        self._facts[engine] = fact
        return True

    def lists(self, engine: str, adapters: Adapters) -> bool:
        """Take which adapters an engine says that it has; return whether that changes anything: without any in the fleet it does not."""
        before = self._adapters.get(engine)
        self._adapters[engine] = adapters
        return before != adapters and any((before, *self._adapters.values()))

    async def fit(self) -> Configuration:
        """Return the configuration in force with the engines that are found now, and the limits that they have told."""
        try:
            loaded, settings = await self._look(self._written)
            fresh = [each for each in settings.engines if each.name not in self._limits]
            return self._change(self._written, loaded, settings, await ask_engines(loaded.config, fresh))
        except ConfigError as error:
            raise ReloadError(str(error)) from None

    def _found(self, written: Loaded) -> tuple[Loaded, GatewaySettings]:
        """Return the configuration with the engines that were found; ConfigError where two have one name."""
        loaded = with_adapters(with_addresses(written, self.discovery.found), self._adapters)
        if twins := twins_of(loaded):
            raise ConfigError(
                Problem(None, ("engines",), f"two names have the same address: {', '.join(twins)}")
            )
        return loaded, self._settings_of(loaded)

    async def _look(self, written: Loaded) -> tuple[Loaded, GatewaySettings]:
        """Return the configuration with the engines that are found now; those that are new are looked at first."""
        loaded, settings = self._found(written)
        known = {each.name: each.place for each in self._addresses}
        fresh = [each for each in settings.engines if each.host and known.get(each.name) != each.place]
        well = await asyncio.gather(*(answers(each, _ASK_WITHIN_S) for each in fresh))
        unseen = {each.name for each, is_well in zip(fresh, well, strict=True) if not is_well}
        engines = tuple(
            replace(each, is_up=False) if each.name in unseen else each for each in settings.engines
        )
        return loaded, replace(settings, engines=engines)

    def _change(
        self, written: Loaded, loaded: Loaded, settings: GatewaySettings, told: _Facts
    ) -> Configuration:
        """Return this configuration, for engines that have told this of their size just now, with what differs from the one in force."""
        before, built = self._limits, self._built(loaded, settings, told)
        limits = _limits_of(built)
        resized = [
            _resized(before[each.name], each)
            for each in built.settings.engines
            if each.name in before and _size(each) != _size(before[each.name])
        ]
        came = tuple(name for name in limits if name not in before)
        gone = tuple(name for name in before if name not in limits)
        taken = partial(self._takes, written, loaded, settings, built, told)
        changed = (*changes(self._written.config, written.config), *self._written.other_keys(written))
        return Configuration(settings, built.settings, tuple(resized), came, gone, changed, taken)

    def _built(self, loaded: Loaded, settings: GatewaySettings, told: _Facts) -> Built:
        built = build_settings(loaded.config, {**self._facts, **told}, loaded.places)
        fitted = with_lacking(built.settings, self._adapters)
        return built._replace(settings=_standing(fitted, settings.engines))

    def _takes(
        self, written: Loaded, loaded: Loaded, settings: GatewaySettings, built: Built, told: _Facts
    ) -> None:
        """This is in force from now on, and the names in it are watched."""
        if written is not self._written:
            self.discovery.aim(_targets(written))
        self._written, self._loaded, self._addresses = written, loaded, settings.engines
        self._limits = limits = _limits_of(built)
        self._facts = {name: fact for name, fact in (self._facts | told).items() if name in limits}
        self._adapters = {name: each for name, each in self._adapters.items() if name in limits}


def _limits_of(built: Built) -> Mapping[str, EngineSettings]:
    return {engine.name: engine for engine in built.settings.engines}


def _standing(settings: Settings, addresses: Iterable[EngineAddress]) -> Settings:
    """Return the core's settings with the engines that take no work at first."""
    down = {each.name for each in addresses if not each.is_up}
    engines = tuple(replace(each, is_up=False) if each.name in down else each for each in settings.engines)
    return replace(settings, engines=engines)


def _targets(loaded: Loaded) -> DiscoverySettings:
    section = loaded.config.discovery
    return DiscoverySettings(names_of(loaded), section.every, section.file, loaded.engines_stamp)


def _stamp(file: Path) -> FileStamp | None:
    try:
        return stamp_of(file.stat())
    except OSError:
        return None


def _size(engine: EngineSettings) -> tuple[int, int | None]:
    return engine.max_inflight, engine.kv_tokens


def _resized(before: EngineSettings, now: EngineSettings) -> Mapping[str, object]:
    return {
        "engine": now.name,
        "max_inflight": now.max_inflight,
        "kv_tokens": now.kv_tokens,
        "max_inflight_before": before.max_inflight,
        "kv_tokens_before": before.kv_tokens,
    }


async def ask_engines(config: Config, addresses: Iterable[EngineAddress]) -> dict[str, EngineFacts]:
    """Return what the engines tell of their size, by name; not asked are those whose limits are given, or that have no metrics."""
    names = {engine.name for engine in _unsure(config) if engine.metrics is not None}
    unsure = [address for address in addresses if address.name in names and address.host]
    answers = await asyncio.gather(*(ask_engine(address, _ASK_WITHIN_S) for address in unsure))
    return {
        address.name: EngineFacts(is_seen=False)
        if answer is None
        else EngineFacts(answer.kv_tokens, answer.model)
        for address, answer in zip(unsure, answers, strict=True)
    }


def _unsure(config: Config) -> list[EngineConfig]:
    """Return the engines whose limits are not all given."""
    return [
        engine
        for engine in config.engines
        if engine.account is None and (engine.max_inflight is None or engine.kv_tokens is None)
    ]


def changes(before: object, now: object, path: str = "") -> list[str]:
    """Return the path of each setting with another value; an item that has come, or is gone, is one (`tenants.acme`)."""
    if before == now:
        return []
    old, new = _parts(before), _parts(now)
    names = {**old, **new} if old and new else {}
    within = [
        each for name in names for each in changes(old.get(name), new.get(name), f"{path}.{name}".strip("."))
    ]
    return within or [path]


def _parts(value: object) -> dict[str, object]:
    """Return the settings of a section, or the items of a list by name; nothing of what has no parts, or items without names."""
    if isinstance(value, Section):
        return {name: getattr(value, name) for name in type(value).model_fields}
    items = value if isinstance(value, tuple) else ()
    parts = {getattr(item, "name", None): item for item in items}
    return {} if None in parts else {str(name): item for name, item in parts.items()}
