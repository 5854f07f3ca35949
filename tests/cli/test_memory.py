"""The banner says where a container has less memory than its gate may take."""

from pathlib import Path

import pytest

from millgate.cli.memory import connections_choice, memory_bytes, memory_choice

MIB = 1024**2
BUDGET, BODY = 256_000_000, 32 * MIB
MOST_MB = 103 + 256 + 5 * 32 * MIB / 1e6


def _container(root: Path, cgroup: str, **limits: str) -> Path:
    """Write what a process sees of its cgroup; the names of limits are folders below the mount, with `__` between them."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup, encoding="utf-8")
    for folder, limit in limits.items():
        below = root / "sys/fs/cgroup" / folder.strip("_").replace("__", "/")
        below.mkdir(parents=True, exist_ok=True)
        name = "memory.limit_in_bytes" if "memory" in folder else "memory.max"
        (below / name).write_text(limit + "\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits"),
    [
        ("0::/\n", {"_": "{}"}),
        ("0::/gates.slice/one.service\n", {"gates.slice": "{}", "gates.slice__one.service": "max"}),
        ("0::/gates.slice/one.service\n", {"gates.slice": "max", "gates.slice__one.service": "{}"}),
        ("4:memory:/docker/0123\n0::/\n", {"memory": "{}"}),
        ("4:memory:/gates\n1:cpu:/\n", {"memory": "9223372036854771712", "memory__gates": "{}"}),
    ],
    ids=["a container", "a slice", "a service", "a container of version 1", "a group of version 1"],
)
def test_the_least_limit_above_a_process_counts(tmp_path: Path, cgroup: str, limits: dict[str, str]) -> None:
    root = _container(tmp_path, cgroup, **{name: text.format(300 * MIB) for name, text in limits.items()})
    assert memory_bytes(root) == 300 * MIB


def test_without_a_limit_there_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    everything = memory_bytes(tmp_path)
    assert everything > 300 * MIB
    assert memory_bytes(_container(tmp_path, "0::/\n", _="max")) == everything


def test_a_container_that_is_too_small_for_the_bounds_of_its_gate_is_told_in_the_banner(
    tmp_path: Path,
) -> None:
    root = _container(tmp_path, "0::/\n", _=str(512_000_000))
    ((name, value, why),) = memory_choice(BUDGET, BODY, 1, root)
    assert (name, value) == ("limits.byte_budget", "256MB")
    assert f"up to {MOST_MB:.0f} MB, and its container or machine has 512;" in why

    assert memory_choice(128_000_000, BODY, 1, root) == []
    assert memory_choice(128_000_000, BODY, 2, root), "each worker has all of it for itself"


def test_a_small_limit_of_open_files_is_told_in_the_banner_with_the_clients_that_it_has_room_for() -> None:
    ((name, value, why),) = connections_choice(15)
    assert (name, value) == ("limits.connections", "15")
    assert "ulimit -Hn" in why

    assert connections_choice(462) == []
