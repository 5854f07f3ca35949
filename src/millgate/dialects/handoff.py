"""What two engines are told so that one reads a prompt and the other writes its answer.

vLLM's `kv_transfer_params`, pull.
The first engine gets the request with one token to write. Its answer has an object that says where the prompt's KV is. The second
engine gets the client's own request with that object in it, byte for byte, as its keys change from release to release. Source:
vLLM's `tests/v1/kv_connector/nixl_integration/toy_proxy_server.py` and `docs/features/nixl_connector_usage.md`.

SGLang's bootstrap. Both engines get the client's own request with the place where they meet and a room there, a list of
rooms where there are several sequences. Source: SGLang's `sgl-router/src/routers/http/pd_router.rs`
(inject_bootstrap_into_value) and `sgl-router/py_src/sglang_router/mini_lb.py`. Its other paths drop the fields, and its
engines refuse requests that have none.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from millgate.dialects.contract import UNREADABLE, RequestFacts, Usage
from millgate.dialects.openai import OPENAI

PATHS: Final = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Requests for these may be handed over."""
_FIELD: Final = "kv_transfer_params"
_ASK: Final = Raw(b'{"do_remote_decode":true,"do_remote_prefill":false}')
_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
# Members that speak of the answer, which the first engine does not write.
_OF_ANSWER: Final = ("stream_options", "min_tokens", "min_completion_tokens")
_BOUNDS: Final = ("max_completion_tokens", "max_tokens")
# Where one of these is asked for, vLLM's second engine needs the whole prompt (its logprobs, an echo), or there are several
# sequences, and what is handed over has one reader.
_NEVER: Final = (b'"prompt_logprobs"', b'"echo"', b'"use_beam_search"', b'"best_of"', b'"prompt_embeds"')
# An answer that ended otherwise (abort) kept no blocks.
_KEEPS: Final = frozenset(("length", "stop"))
_CACHED: Final = re.compile(rb'(?<!\\)"cached_tokens"\s*:\s*(\d{1,8})(?=[,}\s])')
_LOST: Final = re.compile(rb'"finish_reason"\s*:\s*"error"|^\s*data:\s*\{\s*"error"')
_GIVEN_UP: Final = re.compile(
    rb'"finish_reason"\s*:\s*"(?:error|abort)"|^\s*(?:data:\s*)?\{\s*"error"', re.MULTILINE
)

_members = msgspec.json.Decoder(dict[str, Raw])


class Handed(NamedTuple):
    """What the first engine has said: the object for the second one, and its usage."""

    params: bytes
    usage: Usage


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _First(msgspec.Struct):
    choices: list[_Choice]
    kv_transfer_params: Raw = Raw(b"")


_first = msgspec.json.Decoder(_First)


def may_hand_over(path: bytes, facts: RequestFacts, body: bytes) -> bool:
    """Return whether vLLM can read the prompt of this request on one engine and answer it on another.

    It has one answer of more than one token, and asks for nothing that only the engine which read the prompt could say.
    """
    if path not in PATHS or facts.answers != 1 or facts.reserved or facts.max_tokens in {0, 1}:
        return False
    return all(body.find(sign) < 0 for sign in _NEVER)


def to_prefill(body: bytes) -> bytes:
    """Return the request for the engine that reads the prompt: one token, whole, and the KV kept for another."""
    members = _members.decode(body)
    for name in _OF_ANSWER:
        members.pop(name, None)
    # Both spellings of the bound together are refused.
    bound = next(
        (name for name in _BOUNDS if bytes(members.pop(name, Raw(b"null"))) != b"null"), "max_tokens"
    )
    members.pop("max_tokens", None)
    members.update({bound: _ONE, "stream": _FALSE, _FIELD: _ASK})
    return msgspec.json.encode(members)


def to_decode(body: bytes, params: bytes) -> bytes:
    """Return the request for the engine that writes the answer: as it came, with what the first engine has said."""
    end = body.rfind(b"}")
    return b'%s,"%s":%s%s' % (body[:end], _FIELD.encode(), params, body[end:])


def may_bootstrap(path: bytes, facts: RequestFacts) -> bool:
    """Return whether SGLang takes this request on two engines at once; what a peer says of rooms itself is not ours to replace."""
    return path in PATHS and not facts.reserved


def to_both(body: bytes, host: str, port: int, rooms: Sequence[int]) -> bytes:
    """Return the request for both of SGLang's engines: as it came, with where and in which room they meet, for each sequence."""
    met: dict[str, object] = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": rooms[0]}
    if len(rooms) > 1:
        met = {
            "bootstrap_host": [host] * len(rooms),
            "bootstrap_port": [port] * len(rooms),
            "bootstrap_room": rooms,
        }
    end = body.rfind(b"}")
    return b"%s,%s%s" % (body[:end], msgspec.json.encode(met)[1:-1], body[end:])


def is_given_up(answer: bytes) -> bool:
    """Return whether an answer with a good status says that its engine has given up: an error event, or an end that is none."""
    return _GIVEN_UP.search(answer) is not None


def handed(answer: bytes) -> Handed | None:
    """Return what an answer of the first engine hands over; None where it kept nothing."""
    try:
        said = _first.decode(answer)
    except UNREADABLE:
        return None
    params = bytes(said.kv_transfer_params)
    if not params.startswith(b"{") or not said.choices or said.choices[0].finish_reason not in _KEEPS:
        return None
    return Handed(params, OPENAI.read_usage(answer) or Usage(None, None))


def is_lost(beginning: bytes) -> bool:
    """Return whether a good status begins an answer that says that the KV could not be loaded."""
    return _LOST.search(beginning) is not None


def with_cached(said: bytes, cached_tokens: int) -> bytes:
    """Return a part of an answer in which the prompt's cached tokens are those of the engine that read it, in as many bytes.

    The second engine counts what it was handed as cached. Inside a JSON string the quotes would be escaped, so text is
    never changed.
    """

    def corrected(found: re.Match[bytes]) -> bytes:
        start, end = found.span(1)
        own = b"%d" % cached_tokens
        if len(own) > end - start:
            return found[0]
        return found[0][: start - found.start()] + own.ljust(end - start)

    return _CACHED.sub(corrected, said) if said.find(b'"cached_tokens"') >= 0 else said
