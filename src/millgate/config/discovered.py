"""A configuration whose engines by name have become engines by address: what look-ups found, as if written down."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from millgate.config.callers import EngineTlsConfig
from millgate.config.load import Loaded
from millgate.config.problems import SettingPath, ValueOrigin
from millgate.config.schema import MAX_ENGINES, EngineConfig
from millgate.config.values import name_of_url


class _Found(NamedTuple):
    """One engine, and the number of the written one that it was made of."""

    engine: EngineConfig
    written: int


def names_of(loaded: Loaded) -> tuple[str, ...]:
    """Return the host names whose addresses are engines, each once, in the order of the configuration."""
    return tuple(dict.fromkeys(_host(each) for each in loaded.config.engines if each.discover is not None))


def with_addresses(loaded: Loaded, addresses: Mapping[str, Sequence[str]]) -> Loaded:
    """Return the configuration with one engine for each of the `addresses` of its names, by host name.

    A name without an address stays one engine with `discover`, which is nowhere. Of more than `MAX_ENGINES` engines the
    first ones are taken.
    """
    found: list[_Found] = []
    for index, engine in enumerate(loaded.config.engines):
        known = () if engine.discover is None else addresses.get(_host(engine), ())
        found += [_Found(_at(engine, each), index) for each in known] or [_Found(engine, index)]
    del found[MAX_ENGINES:]
    engines = tuple(each.engine for each in found)
    keys = loaded.engine_keys
    named = {each.engine.name: loaded.config.engines[each.written].name for each in found}
    return loaded._replace(
        config=loaded.config.model_copy(update={"engines": engines}),
        places=_moved(loaded.places, [each.written for each in found]),
        engine_keys={name: keys[written] for name, written in named.items() if written in keys},
    )


def with_adapters(loaded: Loaded, told: Mapping[str, Mapping[str, str]]) -> Loaded:
    """Return the configuration with the adapters that engines have told of, and the model of each, by engine.

    Where the `models` of an engine are given, those of other models are none of ours.
    """
    engines = tuple(_adapted(engine, told.get(engine.name, {})) for engine in loaded.config.engines)
    return loaded._replace(config=loaded.config.model_copy(update={"engines": engines}))


def _adapted(engine: EngineConfig, told: Mapping[str, str]) -> EngineConfig:
    known = {*engine.models, *engine.adapters}
    fresh = [
        name
        for name, model in told.items()
        if name not in known and (not engine.models or model in engine.models)
    ]
    return engine.model_copy(update={"adapters": (*engine.adapters, *fresh)}) if fresh else engine


def twins_of(loaded: Loaded) -> list[str]:
    """Return the names that several engines have: two written ones have found the same address."""
    names = [engine.name for engine in loaded.config.engines]
    return sorted({name for name in names if names.count(name) > 1})


def _host(engine: EngineConfig) -> str:
    return urlsplit(engine.url).hostname or ""


def _at(engine: EngineConfig, address: str) -> EngineConfig:
    """Return this engine at one address; its certificate is still the one of the name."""
    parts = urlsplit(engine.url)
    url = _with_host(parts, address)
    name = name_of_url(url)
    if engine.name != name_of_url(engine.url):
        name = f"{engine.name}-{address}".replace("%", ".")[:64]
    update: dict[str, object] = {"url": url, "name": name, "discover": None}
    if parts.scheme == "https":
        files = engine.tls or EngineTlsConfig()
        update["tls"] = files.model_copy(update={"server_name": files.server_name or parts.hostname})
    return engine.model_copy(update=update)


def _with_host(parts: SplitResult, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()


def _moved(
    places: Mapping[SettingPath, ValueOrigin], written: Sequence[int]
) -> dict[SettingPath, ValueOrigin]:
    """Return the places of what was written, with the engines' numbers as they are now."""
    moved = {path: place for path, place in places.items() if path[:1] != ("engines",) or len(path) == 1}
    for number, index in enumerate(written):
        for path, place in places.items():
            if path[:2] == ("engines", index):
                moved["engines", number, *path[2:]] = place
    return moved
