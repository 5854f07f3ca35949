"""Writes a model that vLLM can serve with random weights: no download, no training, no network.

    python tests/engines/tiny_model.py DIRECTORY
    vllm serve DIRECTORY --load-format dummy ...

    python tests/engines/tiny_model.py DIRECTORY --weights cuda --set hidden_size=3072 --set num_hidden_layers=28 ...
    transformers serve DIRECTORY --continuous-batching ...

A Llama of 160 million parameters (10-14 ms per token on one core), small enough for any machine and large enough not
to outrun its own server. What it says means nothing; how it is queued, batched, streamed and given up is the real
thing. Only the shape and the tokenizer are files: vLLM makes the weights up. For engines that do not, `--weights`
makes them on a device, with what transformers and torch are installed; `--set` names another shape.
"""

import argparse
import json
from pathlib import Path
from typing import Any

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 8192
CONTEXT = 4096

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 5,
    "pad_token_id": 3,
}


def byte_symbols() -> list[str]:
    """Return how byte-level tokenizers write each byte: itself if it prints, else a letter from 256 on (GPT-2)."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(letters)) for byte in range(256)]


def vocabulary() -> list[str]:
    """Return all tokens: special ones, bytes for what is read, and words for most of what is written."""
    words = [f"\u0120w{number}" for number in range(VOCABULARY - len(SPECIAL) - 256)]
    return [*SPECIAL, *byte_symbols(), *words]


def tokenizer() -> dict[str, Any]:
    """Return tokenizer.json: byte-level, without merges, so that a byte of text is a token."""
    tokens = vocabulary()
    special = [
        {
            "id": tokens.index(each),
            "content": each,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for each in SPECIAL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: at for at, token in enumerate(tokens)}, "merges": []},
    }


def write(directory: Path, shape: dict[str, Any] = SHAPE) -> None:
    """Write the files that an engine looks for."""
    directory.mkdir(parents=True, exist_ok=True)
    for_the_tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
    }
    files = {"config": shape, "tokenizer": tokenizer(), "tokenizer_config": for_the_tokenizer}
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def write_weights(directory: Path, device: str) -> None:
    """Write random weights for the shape in the directory."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=5, pad_token_id=3)
    model.save_pretrained(directory)


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=N", help="another number of the shape"
    )
    parser.add_argument("--weights", metavar="DEVICE", help="write weights too, made there: cpu, cuda")
    asked = parser.parse_args()
    other = {name: int(value) for name, _, value in (each.partition("=") for each in asked.set)}
    write(asked.directory, {**SHAPE, **other})
    if asked.weights:
        write_weights(asked.directory, asked.weights)


if __name__ == "__main__":
    main()
