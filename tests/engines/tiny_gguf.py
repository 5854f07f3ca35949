"""A llama of random weights as one GGUF file for llama-server: nothing is downloaded.

Run it with a Python that has `gguf`: `engine/bin/python tests/engines/tiny_gguf.py tiny.gguf`. Every byte is a token, so that any text can
be read; which tokens come out means nothing, but each is a character, and none ends an answer. llama-server leaves `message_start`, the role or
`response.created` out of a stream whose first token is a part of a character, and knows no `ignore_eos` at /v1/messages. Names of keys and tensors are those of ggml's GGUF specification (docs/gguf.md of ggml-org/ggml).
"""

import sys

import numpy as np
from gguf import GGUFWriter, TokenType  # type: ignore[import-not-found]  # of the environment of the engine

EMBEDDING, LAYERS, HEADS, FEED_FORWARD = 512, 8, 8, 1408
CONTEXT = 16_384
CHAT = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def tokens() -> list[tuple[bytes, TokenType]]:
    """Return the vocabulary of a byte-level SentencePiece model: three for control, one for each byte, and some letters."""
    control = [(b"<unk>", TokenType.UNKNOWN), (b"<s>", TokenType.CONTROL), (b"</s>", TokenType.CONTROL)]
    every_byte = [(b"<0x%02X>" % byte, TokenType.BYTE) for byte in range(256)]
    letters = [(bytes([letter]), TokenType.NORMAL) for letter in b"abcdefghijklmnopqrstuvwxyz"]
    return [*control, *every_byte, ("▁".encode(), TokenType.NORMAL), *letters]


def described(writer: GGUFWriter, vocabulary: list[tuple[bytes, TokenType]]) -> None:
    """Write the shape of the model, and its tokenizer."""
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_scores([-float(number) for number in range(len(vocabulary))])
    writer.add_token_types([int(kind) for _, kind in vocabulary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT)


def weights(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, rows first."""
    square = (EMBEDDING, EMBEDDING)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, EMBEDDING),
        "output_norm.weight": (EMBEDDING,),
        "output.weight": (vocabulary, EMBEDDING),
    }
    for layer in range(LAYERS):
        parts = {f"attn_{part}": square for part in ("q", "k", "v", "output")}
        parts |= {"ffn_gate": (FEED_FORWARD, EMBEDDING), "ffn_up": (FEED_FORWARD, EMBEDDING)}
        parts |= {"ffn_down": (EMBEDDING, FEED_FORWARD)}
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
        shapes |= {f"blk.{layer}.{part}_norm.weight": (EMBEDDING,) for part in ("attn", "ffn")}
    return shapes


def is_silent(text: bytes, kind: TokenType) -> bool:
    """Whether a token is never to come out: it is one byte of a longer character, or no text at all."""
    return kind != TokenType.NORMAL and (kind != TokenType.BYTE or int(text[3:5], 16) >= 0x80)


def main(path: str) -> None:
    """Write the file."""
    dice, vocabulary = np.random.default_rng(1), tokens()
    writer = GGUFWriter(path, "llama")
    described(writer, vocabulary)
    for name, shape in weights(len(vocabulary)).items():
        spread = np.zeros(shape) + 1.0 if name.endswith("norm.weight") else dice.normal(0.0, 0.02, shape)
        if name == "output.weight":
            # Scores of 0: the 40 highest, from which llama-server draws, are above that.
            spread[[is_silent(*token) for token in vocabulary]] = 0.0
        writer.add_tensor(name, spread.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
