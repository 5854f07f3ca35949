"""`millgate engine`: the embedded engine as a process of its own."""

from typing import Any

from millgate.cli.exits import address_error, usage_error
from millgate.cli.flags import read_flags, taking

_FLAGS = read_flags("""
--host | host | text | 127.0.0.1 | Address to listen on.
--port | port | integer | 8000 | TCP port; 0 takes any free one.
--profile | profile | text | demo | Speed profile; a wrong name lists them.
--model-name | model_name | text | millgate-engine | The model that it lists; any name is answered.
--time-scale | time_scale | number | 1.0 | How much faster than the profile, at most 10.
--max-num-seqs | max_num_seqs | integer | the profile's | Most sequences in a batch.
--max-num-queued-reqs | max_num_queued_reqs | integer | any number waits | Refuse with 503 beyond so many waiting.
--max-model-len | max_model_len | integer | the KV cache | Longest prompt and answer, tokens.
--num-gpu-blocks-override | num_gpu_blocks_override | integer | the profile's | Blocks of 16 tokens of KV memory.
--enable-prefix-caching | enable_prefix_caching | switch | | Keep what prompts have in common, by full blocks.
--kv-transfer | kv_transfer | text PROTOCOL | no | Hand prompts to other engines or take them: nixl, sglang-prefill, sglang-decode.
--kv-lease | kv_lease_s | number | 30.0 | Seconds that a prompt is kept for another engine.
--kv-load-failure-policy | kv_load_failure_policy | text | fail | When a prompt cannot be had from its engine: fail, or recompute.
--lora-module | lora_modules | texts NAME | none | An adapter; may be given again.
--max-loras | max_loras | integer | 1 | Adapters that are loaded at once.
--lora-load | lora_load_s | number | 0.5 | Seconds that loading an adapter takes.
--tokens-per-event | tokens_per_event | integer | 1 | Tokens that one event of a stream carries.
--ignore-hangups | ignore_hangups | switch | | Generate on for clients that left.
--fail-rate | fail_rate | number P | none | Share of requests that get a 500.
--stall | stall_rate | number P | none | Share of streams that stand still half-way.
--stall-seconds | stall_s | number | 30.0 | How long such a stream stands still.
--error-in-stream | error_rate | number P | none | Share of streams that end half-way with an error event.
--seed | seed | integer | 1 | Seed of the lengths of answers and of the troubles.
""")


@taking(_FLAGS)
def engine(**given: Any) -> None:
    """Run an engine that answers like vLLM, at the speed of a profile, without a GPU."""
    from millgate.servers.emulator.run import run
    from millgate.servers.emulator.settings import EmulatorSettings

    given["lora_modules"] = tuple(given.get("lora_modules", ()))
    try:
        settings = EmulatorSettings(**given)
    except ValueError as error:
        raise usage_error(error, {each.target: each.flag for each in _FLAGS}) from None
    try:
        run(settings)
    except OSError as error:
        raise address_error(error, settings.host, settings.port, "--port") from None
