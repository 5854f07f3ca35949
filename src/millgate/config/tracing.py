"""What the configuration says about traces: where spans go, and of how many requests."""

from pydantic import Field

from millgate.config.section import Section
from millgate.config.values import Number, Url, VariableName


class TracingConfig(Section):
    """Spans of each attempt for a collector that speaks OpenTelemetry's protocol over HTTP (OTLP, JSON)."""

    endpoint: Url = Field(
        description="Where spans go by HTTP POST, such as `http://127.0.0.1:4318/v1/traces`; credentials in it are refused."
    )
    share: Number = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of the requests without a trace of their own whose spans are sent. A request that comes with a "
        "`traceparent` is sampled as that says.",
    )
    service: str = Field(
        default="millgate", min_length=1, max_length=128, description="The `service.name` of the spans."
    )
    headers_env: VariableName = Field(
        default="OTEL_EXPORTER_OTLP_HEADERS",
        description="Name of the environment variable that holds headers for the collector, as `name=value,name=value` "
        "with percent-encoded values. Credentials never stand in a file.",
    )
