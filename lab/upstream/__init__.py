"""An engine whose answers are scripted, byte for byte: for tests, and for the twin of a provider."""

from lab.upstream.fake_upstream import (
    FakeUpstream,
    Script,
    ScriptedConnection,
    ScriptedRequest,
    answer_politely,
)

__all__ = ["FakeUpstream", "Script", "ScriptedConnection", "ScriptedRequest", "answer_politely"]
