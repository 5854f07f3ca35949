"""Gateways with settings of their own, for tests that cannot share one."""

from pathlib import Path

from faults.process import GateProcess


class Starter:
    """Starts gateway processes for one test or one module."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._gates: list[GateProcess] = []

    def __call__(
        self,
        *upstreams: str,
        settings: dict[str, str] | None = None,
        max_inflight: int = 8,
        open_files: int | None = None,
        config: str | None = None,
        environ: dict[str, str] | None = None,
    ) -> GateProcess:
        gate = GateProcess(
            *upstreams,
            errors=self._directory / f"stderr-{len(self._gates)}.txt",
            settings=settings,
            max_inflight=max_inflight,
            open_files=open_files,
            config=config,
            environ=environ,
        )
        self._gates.append(gate)
        gate.begin()
        return gate

    def stop(self) -> None:
        """End them all, each with 0 and without a traceback."""
        for gate in self._gates:
            code = gate.stop()
            assert code == 0, gate.errors()
            assert "uncaught failure" not in gate.errors(), gate.errors()
