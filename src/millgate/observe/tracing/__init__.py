"""Traces: one span tree for each attempt, told to a collector by OpenTelemetry's protocol, and the context passed on to engines."""

from millgate.observe.tracing.exporter import TraceExporter, TracingSettings
from millgate.observe.tracing.traces import Traces

__all__ = ["TraceExporter", "Traces", "TracingSettings"]
