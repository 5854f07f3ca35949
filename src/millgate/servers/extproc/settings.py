"""What the external processor is told, as plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
"""The header, and the key of the metadata, by which Envoy is told where a request goes (Gateway API Inference Extension)."""
CONTROL_HEADERS: Final = tuple(
    f"""
    {DESTINATION} {DESTINATION}-served {DESTINATION}-subset {DESTINATION}-scores
    x-llm-d-inference-fairness-id x-gateway-inference-fairness-id
    x-llm-d-inference-objective x-gateway-inference-objective
    x-llm-d-model-name-rewrite x-gateway-model-name-rewrite
    x-llm-d-slo-ttft-ms x-slo-ttft-ms x-llm-d-slo-tpot-ms x-slo-tpot-ms
    x-llm-d-inference-ttl x-llm-d-request-dropped-reason
    """.split()
)
"""Headers that steer a picker or report for it; none of them reaches an engine."""
METADATA: Final = "millgate"
"""The namespace of the metadata that this processor gives a request."""
LOG_NAME: Final = re.compile(METADATA + r" every (\d{1,4}(?:\.\d{1,3})?)s")
"""The name of an access log that says how often it has entries of what runs, in seconds."""
USAGE: Final = METADATA + ".usage"
"""The namespace into which Envoy's filters read the usage of answers."""
PROMPT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS = "prompt_tokens", "output_tokens", "cached_tokens"
CACHE_READ, CACHE_WRITTEN = "cache_read_tokens", "cache_written_tokens"
"""What Anthropic counts beside the prompt: tokens of it that came from the cache, and that went into it."""
KEY_REFUSED: Final = "key_refused"
"""Under `METADATA`: what a client is told where the engine refuses our own key; under `USAGE`: the status by which it did."""
FIRST_BODY_MS: Final = "first_body_ms"
"""When the first bytes of an answer's body came, by Envoy's clock: milliseconds since 1970, under `USAGE`."""
ERROR: Final = "error"
"""The error that an engine wrote into its stream, as text, under `USAGE`."""
PROCESSOR_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service, and the name under which its health is asked."""


@dataclass(frozen=True, slots=True)
class ExtprocSettings:
    """Bounds of the external processor, and how the headers of the Inference Extension are read.

    `streams` is how many requests Envoy may have here at once. `lease_s` is how long an admitted request may be silent
    past the time of its first event before its slot is given up for lost, `body_bytes` the longest body.
    `objective_lanes` names the lane of each objective that a trusted gateway may send.
    """

    streams: int = 10_000
    body_bytes: int = 32 * 1024 * 1024
    lease_s: float = 600.0
    objective_lanes: Mapping[str, str] = field(default_factory=dict)
