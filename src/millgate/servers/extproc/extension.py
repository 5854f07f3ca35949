"""What the Gateway API Inference Extension, and llm-d, say in headers and metadata, read in our own terms."""

from collections.abc import Iterable, Mapping
from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from millgate.http1.server.contract import RequestHead
from millgate.runtime.verdicts import seconds
from millgate.servers.requests.fields import Pairs

DROPPED_REASON: Final = b"x-llm-d-request-dropped-reason"
_FAIRNESS: Final = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
_OBJECTIVE: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
_TTFT_SLO: Final = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
_TENANT, _LANE, _DEADLINE = b"x-millgate-tenant", b"x-millgate-lane", b"x-millgate-deadline-ms"
_SUBSET_SPACE: Final = "envoy.lb.subset_hint"
_SUBSET: Final = "x-gateway-destination-endpoint-subset"

_REASONS: Final[Mapping[bytes, bytes]] = {
    b"saturated": b"rejected-saturated",
    b"queue_full": b"rejected-saturated",
    b"displaced": b"rejected-saturated",
    b"tenant_limit": b"rejected-saturated",
    b"too_late": b"rejected-ttl-expired",
    b"expired": b"rejected-ttl-expired",
    b"no_engine": b"rejected-no-endpoints",
    b"draining": b"rejected-shutting-down",
}
"""llm-d's word for each of our reasons that it has one for."""


def in_own_terms(head: RequestHead, objective_lanes: Mapping[str, str]) -> RequestHead:
    """Return the head with a tenant, a lane and a deadline where the extension's headers name them.

    They are added as our own headers, so that the same rules say which peer is believed. A canonical name wins over its
    deprecated alias; a value that makes no sense is passed over.
    """
    named = head.named or {}
    added: Pairs = []
    if (tenant := _either(named, _FAIRNESS)) is not None:
        added.append((_TENANT, tenant))
    objective = _either(named, _OBJECTIVE)
    lane = None if objective is None else objective_lanes.get(objective.decode("latin-1"))
    if lane is not None:
        added.append((_LANE, lane.encode()))
    if seconds(allowed := _either(named, _TTFT_SLO)) is not None and allowed is not None:
        added.append((_DEADLINE, allowed))
    if not added:
        return head
    return head._replace(headers=[*head.headers, *added], named={**dict(added), **named})


def dropped_reason(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return llm-d's word for the reason of our refusal with these headers, None where it has none."""
    return next((_REASONS.get(value) for name, value in headers if name == b"x-millgate-reason"), None)


def subset_of(message: ProcessingRequest) -> tuple[str, ...] | None:
    """Return the endpoints among which the request may go, `IP:port` or `IP` each; None where all may be chosen."""
    if not message.HasField("metadata_context"):
        return None
    space = message.metadata_context.filter_metadata.get(_SUBSET_SPACE)
    if space is None or _SUBSET not in space.fields:
        return None
    value = space.fields[_SUBSET]
    if value.WhichOneof("kind") == "list_value":
        listed = [each.string_value for each in value.list_value.values]
    else:
        listed = value.string_value.split(",")
    return tuple(each.strip() for each in listed if each.strip())


def allowed(addresses: Mapping[str, str], subset: tuple[str, ...]) -> list[str]:
    """Return the engines, by name, whose `IP:port` the subset names; where it names none, those whose IP it does."""
    exact = [name for name, address in addresses.items() if address in subset]
    hosts = {_host(each) for each in subset}
    return exact or [name for name, address in addresses.items() if _host(address) in hosts]


def _host(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return (
        host.strip("[]")
        if colon and port.isdigit() and host and not host.endswith(":")
        else address.strip("[]")
    )


def _either(named: Mapping[bytes, bytes], names: tuple[bytes, bytes]) -> bytes | None:
    canonical, alias = names
    return named.get(canonical, named.get(alias))
