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

from spec.attention import visible
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

LOGPROB_STEP: Final = 2.0**-24

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


def total(words: Sequence[int], first: int = 0) -> int:
    """The attention sum over the words of the cells read, in order, from position `first` on.

    The weights of the positions are 1, 3, 5, ...
    """
    return sum(map(mul, words, range(2 * first + 1, 2 * (first + len(words)), 2)))


def forward(tokens: Iterable[int], window: int | None = None) -> Iterator[tuple[Contents, int]]:
    """Run the whole model on a prefix: for each position its contents and its last hidden state.

    window: how many positions a query sees in each layer, its own included; None: all.
    """
    sums: list[Sums] = [_NOTHING]
    for position, token in enumerate(tokens):
        unseen = sums[visible(position, position + 1, window).start]
        cell, hidden, after = _advance(token, position, sums[-1], unseen)
        sums.append(after)
        yield cell, hidden


def next_token(tokens: Tokens, draw: int, window: int | None = None) -> int:
    """Recompute the prefix, take the last row, draw one token.

    Source: docs/sources.md, "Naive decoding".
    """
    hidden = [last for _, last in forward(tokens, window)][-1]
    return unembed(hidden, draw)


def unembed(hidden: int, draw: int) -> int:
    """The token drawn from a last hidden state."""
    return mix(hidden + draw) % VOCABULARY


def logprobs(prompt: Tokens, generated: Tokens, window: int | None = None) -> tuple[float, ...]:
    """The log-probability of each generated token.

    It is not above 0: 24 bits of the last hidden state before the token. A float32 holds it
    exactly. Two of them differ by a multiple of LOGPROB_STEP. Source: docs/sources.md, "Sampling".
    """
    rows = [last for _, last in forward((*prompt, *generated)[:-1], window)]
    return tuple(-(row >> 8) * LOGPROB_STEP for row in rows[len(prompt) - 1 :])


def attend(
    token: int, read: Sequence[Tokens], draw: int, *, first: int = 0, window: int | None = None
) -> int:
    """The token after `token`. read: the tags that it reads, in order, its own tag last.

    first: the position of the first of them. window: that of the model that wrote them.
    """
    hidden = embed(token, first + len(read) - 1)
    memory = _memories.get(window, {})
    words = [(memory.get(tag) or _known(tag, window))[1] for tag in read]
    hidden = mix(hidden + total([lower for lower, _ in words], first))
    hidden = mix(hidden + total([upper for _, upper in words], first))
    return unembed(hidden, draw)


def contents(tag: Tokens, window: int | None = None) -> Contents:
    """The contents that an engine must hold in a cell with this tag.

    Source: docs/sources.md, "Contents as state".
    """
    return _known(tag, window)[0]


Sums = tuple[int, int]
"""The attention sum of each layer over a prefix."""
_NOTHING: Final[Sums] = (0, 0)
"""The sums over no position."""

_Known = tuple[Contents, Sums, Sums]
_memories: dict[int | None, dict[Tokens, _Known]] = {}
"""For each window a cache by tag: the contents, their words, the sums up to and including them.

With a tag, all its prefixes are in the cache.
"""


def _known(tag: Tokens, window: int | None) -> _Known:
    """The cached entry of a tag; computes the positions after its longest cached prefix."""
    memory = _memories.setdefault(window, {})
    found = memory.get(tag)
    if found is not None:
        return found
    if not tag:
        raise ValueError("POISON has no contents: a read set holds written cells only")
    if len(memory) > _MEMORY_LIMIT:
        memory.clear()
    known = len(tag) - 1
    while known and tag[:known] not in memory:
        known -= 1
    sums = memory[tag[:known]][2] if known else _NOTHING
    for position in range(known, len(tag)):
        start = visible(position, position + 1, window).start
        unseen = memory[tag[:start]][2] if start else _NOTHING
        cell, _, sums = _advance(tag[position], position, sums, unseen)
        words = (word(*cell[:2]), word(*cell[2:]))
        memory[tag[: position + 1]] = (cell, words, sums)
    return memory[tag]


def _advance(token: int, position: int, sums: Sums, unseen: Sums) -> tuple[Contents, int, Sums]:
    """Contents and last hidden state of a position, and the sums after it.

    sums: over all positions before it. unseen: over those of them that it does not see.
    """
    weight = 2 * position + 1
    hidden = embed(token, position)
    key0, value0 = project(hidden, 0)
    first = (sums[0] + weight * word(key0, value0)) & _MASK
    hidden = mix(hidden + first - unseen[0])
    key1, value1 = project(hidden, 1)
    second = (sums[1] + weight * word(key1, value1)) & _MASK
    return (key0, value0, key1, value1), mix(hidden + second - unseen[1]), (first, second)
