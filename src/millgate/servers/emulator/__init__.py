"""The embedded engine: an OpenAI-compatible server paced by `engine` in real time."""

from millgate.servers.emulator.run import RunningEngine, ready_line, run, run_engine, start_engine
from millgate.servers.emulator.settings import EmulatorSettings

__all__ = ["EmulatorSettings", "RunningEngine", "ready_line", "run", "run_engine", "start_engine"]
