"""A reload compares what was built of the configuration: what changes in the file has to change there."""

import asyncio

import pytest

from millgate.cli.compose import extproc_settings, gateway_settings, worker_settings
from millgate.cli.settings import load_or_fail
from millgate.cli.sized_configuration import SizedConfiguration
from millgate.config.load import Loaded
from millgate.config.schema import Config
from millgate.gateway import ReloadError
from millgate.wiring.settings import build_settings

_CHANGES = {
    "listen": "listen.port=1",
    "admin": "admin.port=2",
    "engines": "engines.0.max_inflight=3",
    "discovery": "discovery.every=3s",
    "lanes": "lanes.0.max_queue=3",
    "tenants": "tenants=[{name: acme, keys: [{sha256: " + "a" * 64 + "}]}]",
    "workers": "workers=3",
    "mode": "mode=observe",
    "hard_cap": "hard_cap=true",
    "tenant_from": "tenant_from=key",
    "quotas": "quotas=[{name: all, rpm: 3}]",
    "quotas_file": "quotas_file=quotas.json",
    "retries": "retries.appointments=1000",
    "records": "records.kept_attempts=1000",
    "tracing": "tracing.endpoint=http://127.0.0.1:4318/v1/traces",
    "line": "line={}",
    "cluster": "cluster.store=redis://127.0.0.1:6379",
    "extproc": "extproc.port=3",
    "limits": "limits.body=1MiB",
}


def _built(monkeypatch: pytest.MonkeyPatch, *assignments: str) -> tuple[object, ...]:
    monkeypatch.setenv("TICKET_KEY", "ab" * 32)
    usual = ("engines.0.url=http://127.0.0.1:8000", "retries.ticket_key_env=TICKET_KEY")
    loaded = load_or_fail(None, (*usual, *assignments))
    return extproc_settings(loaded), build_settings(loaded.config).settings, loaded.config.discovery


def test_each_part_of_the_file_shows_in_what_a_reload_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    assert list(_CHANGES) == list(Config.model_fields)
    usual = _built(monkeypatch)
    assert _built(monkeypatch) == usual
    for name, change in _CHANGES.items():
        assert _built(monkeypatch, change) != usual, name


def test_a_reload_says_which_settings_have_changed() -> None:
    """An operator sees in the log what the file was taken for: a tenant that a half-written one lacks is named."""

    def read(*more: str, tenants: tuple[str, ...] = ("acme", "beta")) -> Loaded:
        named = [f"{{name: {name}, keys: [{name[0] * 64}]}}" for name in tenants]
        engine = "engines.0.url=http://127.0.0.1:9"
        return load_or_fail(None, (engine, f"tenants=[{', '.join(named)}]", *more))

    def change(after: Loaded) -> tuple[str, ...]:
        async def reloaded() -> tuple[str, ...]:
            sized = SizedConfiguration(before, gateway_settings)
            await sized.ask()
            return (await sized.reload(lambda: after)).changed

        return asyncio.run(reloaded())

    before = read()
    assert change(read()) == ()
    assert change(read(tenants=("acme",))) == ("tenants.beta",)
    paths = ("engines.127.0.0.1:9.max_inflight", "lanes.interactive.max_queue", "limits.body")
    assert change(read("engines.0.max_inflight=3", "lanes.0.max_queue=3", "limits.body=1MiB")) == paths


def test_a_worker_knows_the_admin_door_of_its_supervisor_and_how_many_workers_there_are() -> None:
    loaded = load_or_fail(None, ("engines.0.url=http://127.0.0.1:8000", "admin.port=2", "workers=3"))
    settings = worker_settings(loaded)
    assert settings.admin is not None
    assert (settings.admin.port, settings.workers) == (2, 3)


def test_what_a_gateway_refuses_is_not_what_engines_that_come_later_are_added_to() -> None:
    """Behind Envoy a gateway refuses an engine whose name has no address; a name that changes its addresses later changes no more than that."""
    before, wanted = [load_or_fail(None, (f"engines.0.url=http://127.0.0.1:{port}",)) for port in (9, 10)]

    async def ports() -> list[int]:
        sized, seen = SizedConfiguration(before, gateway_settings), []
        await sized.ask()
        change = await sized.reload(lambda: wanted)
        for configuration in (await sized.fit(), change):
            seen += [each.port for each in configuration.gateway.engines]
        change.taken()
        return seen + [each.port for each in (await sized.fit()).gateway.engines]

    assert asyncio.run(ports()) == [9, 10, 10]


def test_a_host_without_a_thread_left_refuses_a_reload_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was neither counted nor told, and the gate said that the reload was over."""
    loaded = load_or_fail(None, ("engines.0.url=http://127.0.0.1:9",))

    async def crowded(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", crowded)
    with pytest.raises(ReloadError, match="new thread"):
        asyncio.run(SizedConfiguration(loaded, gateway_settings).reload(lambda: loaded))
