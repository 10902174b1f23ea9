"""The exact model: a small integer transformer whose outputs depend on each cell that they read.

Layer l keeps K and V of position p, both functions of the hidden state h_l(p); attention is the sum
over visible cells j of (2j + 1) * (K factor * K_j + V factor * V_j), so that order and multiplicity
matter, and h_{l+1}(p) = mix(h_l(p) + attention). As in a transformer, K and V of the first layer
depend on token and position alone and those of the second on the whole prefix. All arithmetic wraps
at 32 bits. Source: docs/sources.md, "Exactness", "Naive decoding" and "Cached decoding".
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import mul
from typing import Final

from spec.vocabulary.integers import (
    KEY_FACTOR,
    KEY_SALTS,
    MIX_FACTORS,
    POSITION_FACTOR,
    TOKEN_FACTOR,
    VALUE_FACTOR,
    VALUE_SALTS,
    VOCABULARY,
)
from spec.vocabulary.request import Params, Tokens

Contents = tuple[int, int, int, int]
"""What the engine stores for one position: K and V of layer 0, K and V of layer 1."""

_MASK: Final = 0xFFFFFFFF
_MEMORY_LIMIT: Final = 1 << 17


def mix(word: int) -> int:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    word &= _MASK
    word ^= word >> 16
    word = word * MIX_FACTORS[0] & _MASK
    word ^= word >> 15
    word = word * MIX_FACTORS[1] & _MASK
    return word ^ word >> 16


def draw(params: Params, *, choice: int, position: int) -> int:
    """The random word of one draw, from seed, choice and position only; 0 when greedy."""
    if params.temperature == 0:
        return 0
    return mix(mix(mix(params.seed) + choice) + position)


def embed(token: int, position: int) -> int:
    """The hidden state that enters the first layer."""
    return mix(token * TOKEN_FACTOR + position * POSITION_FACTOR + 1)


def project(hidden: int, layer: int) -> tuple[int, int]:
    """K and V of one position in one layer."""
    return mix(hidden + KEY_SALTS[layer]), mix(hidden + VALUE_SALTS[layer])


def word(key: int, value: int) -> int:
    """The contribution of a cell to an attention sum, before the weight of its position."""
    return (KEY_FACTOR * key + VALUE_FACTOR * value) & _MASK


def total(words: Sequence[int]) -> int:
    """The attention sum over the words of the cells read, in order: the weights are 1, 3, 5, ..."""
    return sum(map(mul, words, range(1, 2 * len(words), 2)))


def forward(tokens: Iterable[int]) -> Iterator[tuple[Contents, int]]:
    """Run the whole model on a prefix: for each position its contents and its last hidden state."""
    sums = (0, 0)
    for position, token in enumerate(tokens):
        cell, hidden, sums = _advance(token, position, sums)
        yield cell, hidden


def next_token(tokens: Tokens, draw: int) -> int:
    """Recompute the prefix, take the last row, draw one token.

    Source: docs/sources.md, "Naive decoding".
    """
    hidden = [last for _, last in forward(tokens)][-1]
    return unembed(hidden, draw)


def unembed(hidden: int, draw: int) -> int:
    """The token drawn from a last hidden state."""
    return mix(hidden + draw) % VOCABULARY


def attend(token: int, read: Sequence[Tokens], draw: int) -> int:
    """The token after `token`. read: the tags that it reads, in order, its own tag last."""
    hidden = embed(token, len(read) - 1)
    words = [_known(tag)[1] for tag in read]
    hidden = mix(hidden + total([first for first, _ in words]))
    hidden = mix(hidden + total([second for _, second in words]))
    return unembed(hidden, draw)


def contents(tag: Tokens) -> Contents:
    """The contents that an engine must hold in a cell with this tag.

    Source: docs/sources.md, "Contents as state".
    """
    return _known(tag)[0]


Sums = tuple[int, int]
"""The attention sum of each layer over a prefix."""

_Known = tuple[Contents, Sums, Sums]
_memory: dict[Tokens, _Known] = {}
"""A cache by tag: the contents, their words, and the sums up to and including them."""


def _known(tag: Tokens) -> _Known:
    """The cached entry of a tag; computes the positions after its longest cached prefix."""
    found = _memory.get(tag)
    if found is not None:
        return found
    if not tag:
        raise ValueError("POISON has no contents: a read set holds written cells only")
    if len(_memory) > _MEMORY_LIMIT:
        _memory.clear()
    known = len(tag) - 1
    while known and tag[:known] not in _memory:
        known -= 1
    sums = _memory[tag[:known]][2] if known else (0, 0)
    for position in range(known, len(tag)):
        cell, _, sums = _advance(tag[position], position, sums)
        words = (word(*cell[:2]), word(*cell[2:]))
        _memory[tag[: position + 1]] = (cell, words, sums)
    return _memory[tag]


def _advance(token: int, position: int, sums: Sums) -> tuple[Contents, int, Sums]:
    """Contents and last hidden state of a position, and the sums after it."""
    weight = 2 * position + 1
    hidden = embed(token, position)
    key0, value0 = project(hidden, 0)
    first = (sums[0] + weight * word(key0, value0)) & _MASK
    hidden = mix(hidden + first)
    key1, value1 = project(hidden, 1)
    second = (sums[1] + weight * word(key1, value1)) & _MASK
    return (key0, value0, key1, value1), mix(hidden + second), (first, second)
