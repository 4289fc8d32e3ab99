"""Stop strings: a text ends with the token that completes the first of them.

They are found in the bytes of the tokens, wherever tokens begin and end, by an automaton (Aho and Corasick,
"Efficient string matching", 1975) whose state is kept for each row. Same ends as ``generate`` with
``stop_strings``: a string may begin in the prompt, and it counts before the minimum length as well.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

_PREFIX = "abcdef"  # before a token, which some tokenizers write differently at the beginning of a text


class StopStrings(NamedTuple):
    """An automaton over bytes with S states, and the bytes of V tokens. Without stop strings S is 0.

    Attributes
    ----------
    following : int16 (S, 256)
        State after a state and a byte.
    complete : bool (S,)
        Whether a stop string ends in a state.
    starts : int64 (V + 1,)
        Where each token begins in ``content``.
    content : uint8 (bytes,)
    """

    following: np.ndarray
    complete: np.ndarray
    starts: np.ndarray
    content: np.ndarray


NO_STOP = StopStrings(np.zeros((0, 256), np.int16), np.zeros(0, np.bool_), np.zeros(1, np.int64),
                      np.zeros(0, np.uint8))


def stop_strings(strings: Sequence[str], tokenizer) -> StopStrings:
    """The automaton of stop strings for the tokens of a tokenizer."""
    if not strings:
        return NO_STOP
    tokens = _token_bytes(tokenizer)
    starts = np.cumsum([0, *map(len, tokens)])
    content = np.frombuffer(b"".join(tokens), np.uint8).copy()  # writable, as in NO_STOP: compiled once
    return StopStrings(*_automaton([string.encode() for string in strings]), starts, content)


def _automaton(strings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    children, complete = [{}], [False]  # a trie; its root is state 0
    for string in strings:
        state = 0
        for byte in string:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                complete.append(False)
            state = children[state][byte]
        complete[state] = True
    following = np.zeros((len(children), 256), np.int16)
    suffix, queue = [0] * len(children), [0]
    for state in queue:  # by depth: the longest suffix of a state that is a state is complete before it
        following[state] = following[suffix[state]] if state else 0
        complete[state] |= complete[suffix[state]]
        for byte, child in children[state].items():
            suffix[child] = int(following[state, byte])
            following[state, byte] = child
            queue.append(child)
    return following, np.array(complete, np.bool_)


def _token_bytes(tokenizer) -> list[bytes]:
    """The bytes that each token id writes inside a text; empty for ids without a token."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = decoder.__getstate__() if decoder is not None else b""
    of_character = _bytes_of_characters() if b"ByteLevel" in bytes(state) else {}
    has_bytes = b"ByteFallback" in bytes(state)
    base = tokenizer.convert_ids_to_tokens(tokenizer(_PREFIX, add_special_tokens=False)["input_ids"])
    vocabulary = tokenizer.get_vocab()
    out = [b""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        if of_character and all(character in of_character for character in token):
            out[number] = bytes(of_character[character] for character in token)
        elif has_bytes and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            out[number] = bytes([int(token[3:5], 16)])
        else:
            out[number] = tokenizer.convert_tokens_to_string([*base, token]).partition(_PREFIX)[2].encode()
    return out


def _bytes_of_characters() -> dict[str, int]:
    """The bytes that byte-level tokenizers write as characters: printable ones as they are, others later."""
    parts = ("!~", "¡¬", "®ÿ")  # first and last printable character of each range
    printable = [byte for first, last in parts for byte in range(ord(first), ord(last) + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


@numba.njit(cache=True)
def follow(state, token, stop):
    """Read a token: the state after it, and whether a stop string ends in it."""
    stopped = False
    if token + 1 < len(stop.starts):
        for i in range(stop.starts[token], stop.starts[token + 1]):
            state = stop.following[state, stop.content[i]]
            stopped |= stop.complete[state]
    return state, stopped


@numba.njit(cache=True)
def state_after(tokens, stop):
    """The state after a prompt, whose own stop strings do not count."""
    state = 0
    if len(stop.following):
        for token in tokens:
            state, _ = follow(state, token, stop)
    return state


@numba.njit(cache=True)
def length_until_stop(prompt, text, stop):
    """Number of tokens of a text up to the one that completes a stop string; all if there is none."""
    if len(stop.following):
        state = state_after(prompt, stop)
        for i in range(len(text)):
            state, stopped = follow(state, text[i], stop)
            if stopped:
                return i + 1
    return len(text)
