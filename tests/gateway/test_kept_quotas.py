"""What is used of quotas outlives a restart: in a file that is always whole, of one process or of several workers."""

import asyncio
import json
import time
from itertools import count
from pathlib import Path

import pytest

from gateway.harness import run, until
from millgate.core.events import Arrived, Finished
from millgate.core.settings import EngineSettings, LaneSettings, QuotaLimit, QuotaRule, Settings
from millgate.core.words import QuotaKind
from millgate.gateway import kept_quotas
from millgate.gateway.doors import WorkerPlace
from millgate.gateway.kept_quotas import KeptQuotas, put_together, read_uses
from millgate.runtime.clock import MonotonicClock
from millgate.runtime.driver import Driver
from millgate.wiring.governor import build_governor

_DAY = QuotaRule("budget", QuotaLimit(QuotaKind.TPD, 864_000.0), each=("tenant",))


class _Run:
    """One run of a gate, as far as its quotas go."""

    def __init__(self, path: Path, slot: int | None = None) -> None:
        core = Settings((LaneSettings("interactive"),), (EngineSettings("e", 4),), quotas=(_DAY,))
        governor = build_governor(core, time.monotonic())
        place = None if slot is None else WorkerPlace(slot, slot + 1, (), (), b"")
        self.driver = Driver(governor, MonotonicClock(), asyncio.get_running_loop())
        self.kept = KeptQuotas(str(path), self.driver, place)
        self._numbers = count(1)
        self.troubles: list[str] = []
        self.kept.on_trouble = self.troubles.append

    def use(self, tokens: int, tenant: str = "ann") -> None:
        number = next(self._numbers)
        self.driver.post(Arrived(number, prompt_bytes=400, max_tokens=100, tenant=tenant))
        self.driver.post(Finished(number, tokens - 100, 100))

    def used(self) -> dict[str | None, int]:
        return {use.tenant: round(use.used) for use in self.driver.quota_uses()}


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_budget_of_a_day_is_what_it_was_after_a_restart(tmp_path: Path) -> None:
    """A team that had used up its day had another one with every deployment."""
    path = tmp_path / "quotas.json"

    async def body() -> None:
        first = _Run(path)
        first.kept.start()
        first.use(50_000)
        first.use(9_000, "bob")
        await first.kept.stop()
        second = _Run(path)
        second.kept.start()
        assert second.used() == pytest.approx({"ann": 50_000, "bob": 9_000}, abs=60)
        await second.kept.stop()
        assert _names(tmp_path) == ["quotas.json"]
        assert path.stat().st_mode & 0o007 == 0, "its names of tenants are no other user's to read"
        assert first.troubles == second.troubles == []

    run(body())


def test_a_killed_gate_has_forgotten_no_more_than_what_came_since_it_last_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_quotas, "WRITTEN_EVERY_S", 0.05)
    path = tmp_path / "quotas.json"

    async def body() -> None:
        first = _Run(path)
        first.kept.start()
        first.use(50_000)
        await until(lambda: bool(read_uses(str(path)).uses))
        second = _Run(path)  # the first one never stops
        second.kept.start()
        assert second.used() == pytest.approx({"ann": 50_000}, abs=60)
        await first.kept.stop()
        await second.kept.stop()

    run(body())


def test_a_clock_that_is_set_soon_after_the_start_gives_no_tenant_an_hour_of_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's clock is often set some seconds after it has booted, while the gate still tells what was used."""
    monkeypatch.setattr(kept_quotas, "_TOLD_EVERY_S", 0.05)
    path, real, ahead_s = tmp_path / "quotas.json", time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)

    async def body() -> None:
        nonlocal ahead_s
        first = _Run(path)
        first.kept.start()
        first.use(50_000)
        await first.kept.stop()
        second = _Run(path)
        second.kept.start()
        ahead_s = 3600.0
        await asyncio.sleep(0.2)
        assert second.used() == pytest.approx({"ann": 50_000}, abs=60)
        await second.kept.stop()

    run(body())


def test_workers_begin_with_even_parts_of_what_all_of_them_used_and_one_process_with_the_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "quotas.json"

    async def body() -> None:
        workers = [_Run(path, slot) for slot in range(3)]
        for worker in workers:
            worker.kept.start()
        workers[0].use(30_000)
        workers[2].use(12_000)
        for worker in workers:
            await worker.kept.stop()
        assert _names(tmp_path) == [f"quotas.json.{slot}" for slot in range(3)]
        # Each of these counted as if it had the whole: three of them have three times the bucket.
        alone = _Run(path)
        alone.kept.start()
        assert alone.used() == pytest.approx({"ann": 42_000}, abs=60)
        assert _names(tmp_path) == ["quotas.json"]
        await alone.kept.stop()

    run(body())


def test_a_worker_that_takes_anothers_place_begins_with_what_that_one_had_left(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"

    async def body() -> None:
        workers = [_Run(path, slot) for slot in range(2)]
        for worker in workers:
            worker.kept.start()
        workers[0].use(30_000)
        workers[1].use(12_000, "bob")
        for worker in workers:
            await worker.kept.stop()
        heir = _Run(path, 1)
        heir.kept.start()
        assert heir.used() == pytest.approx({"bob": 12_000}, abs=60)
        await heir.kept.stop()

    run(body())


def test_parts_of_workers_are_added_up_also_of_those_that_never_met_a_tenant(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    now = time.time()
    third = ["budget", "ann", None, None, 30_000.0, 1 / 3]
    shared = [["all", None, None, None, used, 1 / 3] for used in (5_000.0, 0.0, 1_000.0)]
    for slot, own in enumerate(([third, shared[0]], [shared[1]], [shared[2]])):
        (tmp_path / f"quotas.json.{slot}").write_text(json.dumps([now - slot, own]))
    (tmp_path / "quotas.json.5551.new").write_text("half a rec")
    path.write_text(json.dumps([now - 500.0, [["budget", "ann", None, None, 1.0, 1.0]]]))

    put_together(str(path))

    record = read_uses(str(path))
    assert record.written_s == now
    assert record.uses == (
        ("budget", "ann", None, None, 30_000.0, 1.0),
        ("all", None, None, None, 6_000.0, 1.0),
    )
    assert _names(tmp_path) == ["quotas.json", "quotas.json.5551.new"]


@pytest.mark.parametrize(
    "content",
    [
        "listen: {port: 8080}",
        '[1.0, [["budget", "ann", null, null, 10.0]]]',
        '[1.0, [["budget", "ann", null, null, 10.0, 0.0]]]',
        '[1.0, [["budget", "ann", null, null, -10.0, 1.0]]]',
        '[1.0, [["budget", "ann", null, null, 10.0, 1.0',
    ],
)
def test_a_file_that_is_damaged_or_of_something_else_stays_as_it_is_and_the_log_says_why_nothing_is_kept(
    tmp_path: Path, content: str
) -> None:
    """A part of 0 ended the start of the gate with a traceback."""
    path = tmp_path / "quotas.json"
    path.write_text(content)

    async def body() -> None:
        gate = _Run(path)
        gate.kept.start()
        await gate.kept.stop()
        assert len(gate.troubles) == 1
        assert gate.troubles[0].startswith("the file is no record of quotas: ")
        assert path.read_text() == content

    run(body())


def test_a_folder_that_is_gone_is_told_once_and_that_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_quotas, "WRITTEN_EVERY_S", 0.02)
    folder = tmp_path / "state"

    async def body() -> None:
        gate = _Run(folder / "quotas.json")
        gate.kept.start()
        await asyncio.sleep(0.1)
        folder.mkdir()
        await until(lambda: len(gate.troubles) == 2)
        await gate.kept.stop()
        assert gate.troubles == ["No such file or directory", ""]

    run(body())


def test_a_host_without_a_thread_left_does_not_end_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was kept any more, and the end of the gate broke off before it had given its leases back."""
    monkeypatch.setattr(kept_quotas, "WRITTEN_EVERY_S", 0.02)

    async def body() -> None:
        gate, loop = _Run(tmp_path / "quotas.json"), asyncio.get_running_loop()

        def crowded(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(type(loop), "run_in_executor", crowded, raising=False)
            gate.kept.start()
            await until(lambda: gate.troubles)
        await until(lambda: len(gate.troubles) == 2)
        await gate.kept.stop()
        assert gate.troubles == ["can't start new thread", ""]

    run(body())
