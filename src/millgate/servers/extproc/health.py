"""grpc.health.v1: whether requests should come here, asked once (`Check`) or watched."""

from collections.abc import Mapping
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from millgate.servers.extproc.grpc_calls import NOT_FOUND, GrpcCall, HandlerMaker
from millgate.servers.extproc.settings import PROCESSOR_SERVICE

CHECK: Final = b"/grpc.health.v1.Health/Check"
WATCH: Final = b"/grpc.health.v1.Health/Watch"
LIVENESS, READINESS = "liveness", "readiness"
_SERVING: Final = int(HealthCheckResponse.SERVING)
_NOT_SERVING: Final = int(HealthCheckResponse.NOT_SERVING)
_UNKNOWN: Final = int(HealthCheckResponse.SERVICE_UNKNOWN)


class Health:
    """The status of each name: all serve until the drain, but readiness, which follows the gate."""

    def __init__(self) -> None:
        self._serves = {"": True, LIVENESS: True, READINESS: False, PROCESSOR_SERVICE: True}
        self._watchers: dict[GrpcCall, str] = {}

    @property
    def services(self) -> Mapping[bytes, HandlerMaker]:
        """The methods of the service."""
        return {CHECK: lambda call: _Check(self, call), WATCH: lambda call: _Watch(self, call)}

    def status(self, name: str) -> int:
        """Return the status of this name."""
        serves = self._serves.get(name)
        if serves is None:
            return _UNKNOWN
        return _SERVING if serves else _NOT_SERVING

    def set(self, name: str, *, serves: bool) -> None:
        """Change a status, and tell those that watch it."""
        if self._serves[name] is serves:
            return
        self._serves[name] = serves
        for call, watched in list(self._watchers.items()):
            if watched == name:
                call.reply(_told(self.status(name)))

    def drain(self) -> None:
        """Say that no more work should come; the process lives."""
        for name in self._serves:
            if name != LIVENESS:
                self.set(name, serves=False)

    def watch(self, call: GrpcCall, name: str) -> None:
        """Tell this status now, and when it changes."""
        self._watchers[call] = name
        call.reply(_told(self.status(name)))

    def forget(self, call: GrpcCall) -> None:
        """Tell it no more."""
        self._watchers.pop(call, None)


class _Check:
    """One question, one answer."""

    def __init__(self, health: Health, call: GrpcCall) -> None:
        self._health = health
        self._call = call

    def on_message(self, data: bytes) -> None:
        """Answer."""
        status = self._health.status(HealthCheckRequest.FromString(data).service)
        if status == _UNKNOWN:
            self._call.finish(NOT_FOUND, "unknown service")
        else:
            self._call.reply(_told(status))
            self._call.finish()

    def on_end(self) -> None:
        """Nothing: the answer has been given."""

    def on_closed(self) -> None:
        """Nothing is kept."""


class _Watch:
    """A status that is told whenever it changes."""

    def __init__(self, health: Health, call: GrpcCall) -> None:
        self._health = health
        self._call = call

    def on_message(self, data: bytes) -> None:
        """Begin to tell."""
        self._health.watch(self._call, HealthCheckRequest.FromString(data).service)

    def on_end(self) -> None:
        """Go on: one question is all that comes."""

    def on_closed(self) -> None:
        """Stop."""
        self._health.forget(self._call)


def _told(status: int) -> bytes:
    return bytes(HealthCheckResponse(status=status).SerializeToString())
