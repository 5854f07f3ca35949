"""The Envoy configuration that fits the external processor, as data: `millgate extproc envoy-config` prints it.

Why each setting is as it is stands in docs/how-to/envoy.md; what Envoy does with it was found by experiment (1.40).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from millgate.servers.extproc.settings import (
    CACHE_READ,
    CACHE_WRITTEN,
    CACHED_TOKENS,
    CONTROL_HEADERS,
    DESTINATION,
    ERROR,
    FIRST_BODY_MS,
    KEY_REFUSED,
    METADATA,
    OUTPUT_TOKENS,
    PROCESSOR_SERVICE,
    PROMPT_TOKENS,
    USAGE,
)
from millgate.sockets.listening import is_ip

Tree = dict[str, Any]

LOG_INTERVAL: Final = "1s"
"""How often a running request has an entry, the least that Envoy takes: three that are missing end its slot."""
_OWN_CONTROL: Final = ("x-millgate-tenant", "x-millgate-lane", "x-millgate-priority")
_MOST: Final = 1_000_000
_MESSAGE_TIMEOUT: Final = "3600s"
"""The most that Envoy takes; bodies in full duplex have none."""

_WATCH: Final = f"""\
function envoy_on_response(answer)
  local metadata, headers = answer:streamInfo():dynamicMetadata(), answer:headers()
  local ours = metadata:get("{METADATA}")
  if ours and ours["{KEY_REFUSED}"] and headers:get(":status") == "401" then
    metadata:set("{USAGE}", "{KEY_REFUSED}", 401)
    headers:replace(":status", "502")
    headers:replace("content-type", "application/json")
    headers:remove("www-authenticate")
    local told = ours["{KEY_REFUSED}"]
    local length = answer:body(true):setBytes(told)
    answer:headers():replace("content-length", length)
    return
  end
  for _ in answer:bodyChunks() do
    answer:streamInfo():dynamicMetadata():set("{USAGE}", "{FIRST_BODY_MS}", answer:timestamp())
    return
  end
end
"""
"""Notes when the body of an answer begins: no field of the access log says so. After its first bytes nothing runs any more.

Where an engine refuses our own key the client's is good, and the text may show a part of ours: the client gets our words instead."""

_STREAMED: Final = (
    (PROMPT_TOKENS, ("usage", "prompt_tokens")),
    (OUTPUT_TOKENS, ("usage", "completion_tokens")),
    (CACHED_TOKENS, ("usage", "prompt_tokens_details", "cached_tokens")),
    (PROMPT_TOKENS, ("message", "usage", "input_tokens")),
    (CACHE_READ, ("message", "usage", "cache_read_input_tokens")),
    (CACHE_WRITTEN, ("message", "usage", "cache_creation_input_tokens")),
    (OUTPUT_TOKENS, ("usage", "output_tokens")),
    (CACHED_TOKENS, ("usage", "cache_read_input_tokens")),
    (PROMPT_TOKENS, ("response", "usage", "input_tokens")),
    (CACHED_TOKENS, ("response", "usage", "input_tokens_details", "cached_tokens")),
    (OUTPUT_TOKENS, ("response", "usage", "output_tokens")),
)
"""Where the events of a stream have their usage: chat and completions, messages, responses.

vLLM begins a message with the whole prompt, and says at the end what of it was cached; Anthropic counts that beside it from the beginning."""
_ERRORS: Final = (("error",), ("response", "error"))
"""Where an engine that fails within a stream says so. A `null` there is nothing."""
_WHOLE: Final = (
    (PROMPT_TOKENS, ("usage", "prompt_tokens")),
    (OUTPUT_TOKENS, ("usage", "completion_tokens")),
    (CACHED_TOKENS, ("usage", "prompt_tokens_details", "cached_tokens")),
    (PROMPT_TOKENS, ("usage", "input_tokens")),
    (CACHE_READ, ("usage", "cache_read_input_tokens")),
    (CACHE_WRITTEN, ("usage", "cache_creation_input_tokens")),
    (CACHED_TOKENS, ("usage", "input_tokens_details", "cached_tokens")),
    (OUTPUT_TOKENS, ("usage", "output_tokens")),
)
"""Where JSON answers have it."""


class EnvoyAddresses(NamedTuple):
    """Where Envoy takes requests, where its own admin page is, and where the external processor is."""

    listener: tuple[str, int]
    admin: tuple[str, int]
    processor: tuple[str, int]


def bootstrap(
    addresses: EnvoyAddresses,
    *,
    streams: int,
    longest_silence_s: float,
    connect_s: float,
    processor_tls: bool = False,
) -> Tree:
    """Return a whole bootstrap for `streams` requests at once, which may be silent for `longest_silence_s` each.

    `connect_s` is what an engine has to accept a connection, `processor_tls` says that the processor speaks TLS.
    """
    processor = _processor(addresses.processor, streams)
    if processor_tls:
        processor["transport_socket"] = _typed(_TLS, {"common_tls_context": {"alpn_protocols": ["h2"]}})
    listener = {
        "name": "requests",
        "address": _address(addresses.listener),
        "filter_chains": [{"filters": [_typed(_HCM, _connection_manager(longest_silence_s))]}],
    }
    return {
        "admin": {"address": _address(addresses.admin)},
        "static_resources": {"listeners": [listener], "clusters": [_engines(streams, connect_s), processor]},
    }


_HCM: Final = (
    "envoy.filters.network.http_connection_manager",
    "filters.network.http_connection_manager.v3.HttpConnectionManager",
)
_EARLY: Final = (
    "envoy.http.early_header_mutation.header_mutation",
    "http.early_header_mutation.header_mutation.v3.HeaderMutation",
)
_EXT_PROC: Final = ("envoy.filters.http.ext_proc", "filters.http.ext_proc.v3.ExternalProcessor")
_SSE: Final = ("envoy.filters.http.sse_to_metadata", "filters.http.sse_to_metadata.v3.SseToMetadata")
_SSE_PARSER: Final = ("envoy.content_parsers.json", "content_parsers.json.v3.JsonContentParser")
_JSON: Final = ("envoy.filters.http.json_to_metadata", "filters.http.json_to_metadata.v3.JsonToMetadata")
_LUA: Final = ("envoy.filters.http.lua", "filters.http.lua.v3.Lua")
_ROUTER: Final = ("envoy.filters.http.router", "filters.http.router.v3.Router")
_LOG: Final = ("envoy.access_loggers.http_grpc", "access_loggers.grpc.v3.HttpGrpcAccessLogConfig")
_TLS: Final = ("envoy.transport_sockets.tls", "transport_sockets.tls.v3.UpstreamTlsContext")
_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def _typed(kind: tuple[str, str], config: Mapping[str, Any]) -> Tree:
    name, message = kind
    return {
        "name": name,
        "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.{message}", **config},
    }


def _connection_manager(longest_silence_s: float) -> Tree:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    removed = [{"remove": name} for name in (*CONTROL_HEADERS, *_OWN_CONTROL)]
    return {
        "stat_prefix": "requests",
        "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "early_header_mutation_extensions": [_typed(_EARLY, {"mutations": removed})],
        "use_remote_address": True,
        "generate_request_id": False,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "request_headers_timeout": "10s",
        "stream_idle_timeout": f"{longest_silence_s:g}s",
        "access_log": [_typed(_LOG, _access_log())],
        "access_log_options": {"access_log_flush_interval": LOG_INTERVAL},
        "http_filters": [
            _typed(_EXT_PROC, _ext_proc()),
            _typed(_LUA, {"default_source_code": {"inline_string": _WATCH}}),
            _typed(_SSE, _streams()),
            _typed(_JSON, {"response_rules": {"rules": [_rule(*each) for each in _WHOLE]}}),
            _typed(_ROUTER, {}),
        ],
    }


def _ext_proc() -> Tree:
    return {
        "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}},
        "failure_mode_allow": False,
        "status_on_error": {"code": "ServiceUnavailable"},
        "message_timeout": _MESSAGE_TIMEOUT,
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SKIP",
            "response_body_mode": "NONE",
            "response_trailer_mode": "SKIP",
        },
        "metadata_options": {
            "receiving_namespaces": {"untyped": ["envoy.lb", METADATA]},
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
        },
    }


def _streams() -> Tree:
    rules = [_rule(*each) for each in _STREAMED] + [_rule(ERROR, each, "STRING") for each in _ERRORS]
    parser = _typed(_SSE_PARSER, {"rules": [{"rule": each} for each in rules]})
    return {"response_rules": {"content_parser": parser}}


def _rule(key: str, path: Iterable[str], kind: str = "NUMBER") -> Tree:
    return {
        "selectors": [{"key": each} for each in path],
        "on_present": {"metadata_namespace": USAGE, "key": key, "type": kind},
    }


def _access_log() -> Tree:
    return {
        "common_config": {
            "log_name": f"{METADATA} every {LOG_INTERVAL}",
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}},
            "buffer_size_bytes": 0,  # entries are not gathered: each is a slot that the engine has free
        },
        "additional_response_headers_to_log": ["retry-after", "retry-after-ms"],
    }


def _engines(streams: int, connect_s: float) -> Tree:
    """Engines are what the processor names, by metadata alone: no header of a client can choose an address."""
    return {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": f"{connect_s:g}s",
        "original_dst_lb_config": {"metadata_key": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}},
        "circuit_breakers": _breakers(streams),
        # uvicorn, in front of most engines, closes connections that were idle for 5 s.
        "typed_extension_protocol_options": {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                "common_http_protocol_options": {"idle_timeout": "4s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def _processor(place: tuple[str, int], streams: int) -> Tree:
    endpoint = {"endpoint": {"address": _address(place)}}
    return {
        "name": "processor",
        "type": "STATIC" if is_ip(place[0]) else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "processor", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "circuit_breakers": _breakers(streams),
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": PROCESSOR_SERVICE},
            }
        ],
        "typed_extension_protocol_options": {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                "explicit_http_config": {
                    "http2_protocol_options": {"connection_keepalive": {"interval": "5s", "timeout": "2s"}}
                },
            }
        },
    }


def _breakers(streams: int) -> Tree:
    """Envoy's default of 1,024 requests would refuse those that are held here beyond it."""
    most = min(_MOST, 2 * streams)
    return {"thresholds": [{"max_connections": most, "max_pending_requests": most, "max_requests": most}]}


def _address(place: tuple[str, int]) -> Tree:
    host, port = place
    return {"socket_address": {"address": host, "port_value": port}}
