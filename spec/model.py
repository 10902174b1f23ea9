"""The exact model: small enough to read, and no output of it survives one wrong cell.

Layer l keeps K and V of position p, both functions of the hidden state h_l(p); attention is the sum
over visible cells j of (2j + 1) * (K factor * K_j + V factor * V_j), so that order and multiplicity
matter, and h_{l+1}(p) = mix(h_l(p) + attention). As in a transformer, K and V of the first layer
depend on token and position alone and those of the second on the whole prefix. All arithmetic wraps
at 32 bits. Source: DESIGN, "Exactness"; seed 004, sections 1 and 2.
"""

from collections.abc import Iterable, Sequence
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
_CACHE_LIMIT: Final = 1 << 17


def mix(word: int) -> int:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    word &= _MASK
    word ^= word >> 16
    word = word * MIX_FACTORS[0] & _MASK
    word ^= word >> 15
    word = word * MIX_FACTORS[1] & _MASK
    return word ^ word >> 16


def draw(params: Params, *, choice: int, position: int) -> int:
    """The draw of one token: a function of seed, choice and position only; 0 when greedy."""
    if params.temperature == 0:
        return 0
    return mix(mix(mix(params.seed) + choice) + position)


def embed(token: int, position: int) -> int:
    """The hidden state that enters the first layer."""
    return mix(token * TOKEN_FACTOR + position * POSITION_FACTOR + 1)


def project(hidden: int, layer: int) -> tuple[int, int]:
    """K and V of one position in one layer."""
    return mix(hidden + KEY_SALTS[layer]), mix(hidden + VALUE_SALTS[layer])


def weigh(index: int, key: int, value: int) -> int:
    """What the cell read at `index` adds to the attention sum, before wrapping."""
    return (2 * index + 1) * (KEY_FACTOR * key + VALUE_FACTOR * value)


def forward(tokens: Iterable[int]) -> Iterable[tuple[Contents, int]]:
    """Run the whole model on a prefix: for each position its contents and its last hidden state."""
    yield from _resume(tokens, position=0, sums=(0, 0))


def next_token(tokens: Tokens, draw: int) -> int:
    """Recompute the prefix, take the last row, draw one token. Source: seed 004, section 1."""
    hidden = [last for _, last in forward(tokens)][-1]
    return unembed(hidden, draw)


def unembed(hidden: int, draw: int) -> int:
    """The token that this last hidden state and this draw give."""
    return mix(hidden + draw) % VOCABULARY


def attend(token: int, read: Sequence[Tokens], draw: int) -> int:
    """The token after `token`, whose read set is `read`: the tags of the cells, in order read."""
    hidden = embed(token, len(read) - 1)
    cells = [contents(tag) for tag in read]
    for layer in (0, 1):
        total = sum(
            weigh(index, cell[2 * layer], cell[2 * layer + 1]) for index, cell in enumerate(cells)
        )
        hidden = mix(hidden + total)
    return unembed(hidden, draw)


def contents(tag: Tokens) -> Contents:
    """What the engine must hold in a cell with this tag. Source: DESIGN, "Contents are part"."""
    found = _contents.get(tag)
    if found is not None:
        return found[0]
    known = len(tag) - 1
    while known and tag[:known] not in _contents:
        known -= 1
    if len(_contents) > _CACHE_LIMIT:
        _contents.clear()
        known = 0
    sums = _contents[tag[:known]][1] if known else (0, 0)
    for position, (cell, _) in enumerate(_resume(tag[known:], position=known, sums=sums), known):
        sums = (sums[0] + weigh(position, *cell[:2]), sums[1] + weigh(position, *cell[2:]))
        _contents[tag[: position + 1]] = (cell, sums)
    return _contents[tag][0]


_contents: dict[Tokens, tuple[Contents, tuple[int, int]]] = {}


def _resume(
    tokens: Iterable[int], *, position: int, sums: tuple[int, int]
) -> Iterable[tuple[Contents, int]]:
    first, second = sums
    for index, token in enumerate(tokens, position):
        hidden = embed(token, index)
        key0, value0 = project(hidden, 0)
        first += weigh(index, key0, value0)
        hidden = mix(hidden + first)
        key1, value1 = project(hidden, 1)
        second += weigh(index, key1, value1)
        yield (key0, value0, key1, value1), mix(hidden + second)
