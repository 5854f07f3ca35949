"""What tensor parallelism costs beside its kernels: the all-reduce after attention, after the feed-forward part, and of the embedding.

An all-reduce of b bytes over p devices takes a fixed time and 2 (p - 1) / p x b over a bandwidth. It is a ring
(Patarasuk and Yuan, Journal of Parallel and Distributed Computing, 2009). Both numbers are fits to published
measurements of the collective alone, for each kind of link; a run's own measurements (`_all_reduce.csv`) take their
place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millgate.sim.measured.tables import Grid, read_layers

_ACTIVATION_BYTES: Final = 2


class Link(NamedTuple):
    """One way of an all-reduce over a kind of link: its fixed time, and the bandwidth of its ring, bytes a second."""

    latency_s: float
    bytes_per_s: float


# The engine's own kernel is soon there and NCCL moves more: of both ways the faster is taken, as engines choose by
# size. The kernel: vLLM 0.20's in a CUDA graph on two, four and eight devices, 16 KB to 8 MB, within 30 % of
# AIConfigurator's tables (Apache-2.0) of H100 and A100. NCCL: within 25 % of what Vidur (MIT) measured for the layers
# of a 70B model from 8 MB on.
_NVLINK_4: Final = (Link(4.6e-6, 140e9), Link(35e-6, 366e9))
_NVLINK_3: Final = (Link(5.2e-6, 90e9), Link(30e-6, 152e9))
# NCCL in a CUDA graph on two RTX PRO 6000, 4 KB to 20 MB: within 10 % of LLMServingSim's measurement (MIT). The
# generation before has half the bandwidth by its standard.
_PCIE_5: Final = (Link(12.7e-6, 36e9),)
_PCIE_4: Final = (Link(12.7e-6, 18e9),)
# By what is in a device's name, longest first.
_BY_DEVICE: Final[Mapping[str, tuple[Link, ...]]] = {
    **dict.fromkeys(("h100", "h200", "h20", "h800", "gh200", "b200", "b300"), _NVLINK_4),
    **dict.fromkeys(("a100", "a800"), _NVLINK_3),
    **dict.fromkeys(("rtxpro6000", "rtx5090"), _PCIE_5),
    **dict.fromkeys(("rtx4090", "rtx3090", "rtxa6000", "a6000", "a40", "a10", "l40", "l4"), _PCIE_4),
}


class AllReduce:
    """All all-reduces of one step on `parts` devices; seconds."""

    def __init__(self, parts: int, layers: int, hidden_size: int, links: Sequence[Link] | Grid) -> None:
        self._times = 2 * layers + 1
        self._token_bytes = _ACTIVATION_BYTES * hidden_size
        self._ring_share = 2.0 * (parts - 1) / parts
        self._links = links

    def step_s(self, tokens: int) -> float:
        """Seconds of all of a step with so many tokens."""
        return self._times * self.once_s(tokens * self._token_bytes)

    def once_s(self, size_bytes: float) -> float:
        """Seconds of one all-reduce of so many bytes."""
        links = self._links
        if isinstance(links, Grid):
            return links.at(size_bytes)
        moved = self._ring_share * size_bytes
        return min(link.latency_s + moved / link.bytes_per_s for link in links)


def find_links(device: str, cluster: Mapping[str, Any]) -> tuple[Link, ...]:
    """Return the ways between devices of this name; else that of the cluster's description, else PCIe 5.

    `link_bw` (GB/s) and `link_latency` (ns, of each of a ring's two phases) stand in descriptions of single devices
    too, where they measure nothing, so a device that is known comes first.
    """
    name = "".join(each for each in device.lower() if each.isalnum())
    known = [each for each in _BY_DEVICE if each in name]
    if known:
        return _BY_DEVICE[max(known, key=len)]
    bandwidth, latency_ns = cluster.get("link_bw"), cluster.get("link_latency")
    if isinstance(bandwidth, int | float) and isinstance(latency_ns, int | float) and bandwidth > 0:
        return (Link(2.0 * latency_ns / 1e9, bandwidth * 1e9),)
    return _PCIE_5


def read_all_reduce(path: Path) -> Grid:
    """Return the measured times of a file with the columns layer (`all_reduce`), bytes and time_us; other layers are left out."""
    layers = read_layers(path, "bytes")
    return layers.get("all_reduce") or next(iter(layers.values()))
