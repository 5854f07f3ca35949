"""The embedded engine: an OpenAI-compatible server paced by `engine` in real time."""

from headgate.servers.emulator.run import RunningEngine, ready_line, run, run_engine, start_engine
from headgate.servers.emulator.settings import EmulatorSettings

__all__ = ["EmulatorSettings", "RunningEngine", "ready_line", "run", "run_engine", "start_engine"]
