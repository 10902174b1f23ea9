"""The calls whose whole costs are published, and the grid points whose programs serve them.

One program serves every call of its sizes: all lengths of a decoded batch, or those of a prompt.
The other figures of the grid are of other sizes.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Final

from attrs import evolve, frozen

from conformance.kernels.compile.grid import BITS, Cell, Heads, cells

KV_LENS: Final = (64, 512, 1024, 2047, 2048, 4096, 8192, 32768)
QUERIES: Final = (2, 4, 8)
"""Queries of a sequence, as drafts of a speculating engine have, beside the one of decoding."""
BEHIND: Final = 4096
"""Cells of a sequence with so many queries."""
LONGEST_SHORT: Final = 128
PROMPT_LENS: Final = (128, 512, 2048)
LONG_PROMPT: Final = 8192
CHUNK: Final = (512, 8192)
"""Queries of a chunk of a prompt, and the cells before it."""
SEQS: Final = 64
MANY: Final = 256
POSITIONS: Final = 32768
SHAPES: Final = (
    *(Heads(32, 8, 128), Heads(64, 8, 128), Heads(8, 1, 128), Heads(32, 8, 64)),
    Heads(16, 8, 256),
)
HEAD: Final = SHAPES[0]
CHIPS: Final = ("v5e", "v5p", "v6e", "7x")
PAGE_SIZES: Final = (16, 64, 128)
EIGHT_BITS: Final = "float8_e4m3fn"
DRAWN: Final = 3
"""Drawn batches, against which a model of the costs is held."""


@frozen
class Call:
    """One call. lens: queries and cells of each sequence, the queries' own included.

    neighbours: whether the page ids of a sequence follow each other; they are scattered otherwise.
    """

    name: str
    lens: tuple[tuple[int, int], ...]
    neighbours: bool = False

    @property
    def queries(self) -> int:
        """Queries of all sequences."""
        return sum(queries for queries, _ in self.lens)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a cell that it sees."""
        return sum(queries * cells - queries * (queries - 1) // 2 for queries, cells in self.lens)

    def pages(self, page_size: int) -> int:
        """Pages of all sequences."""
        return sum(-(-cells // page_size) for _, cells in self.lens)

    @property
    def cells(self) -> int:
        """Cells of all sequences."""
        return sum(cells for _, cells in self.lens)


def decoding(kv_len: int) -> Call:
    """A sequence of so many cells with one query, in each place of the batch."""
    return Call(f"decode {kv_len}", ((1, kv_len),) * SEQS)


def neighbours(kv_len: int) -> Call:
    """The same with pages that follow each other."""
    return Call(f"decode {kv_len}, adjacent pages", ((1, kv_len),) * SEQS, neighbours=True)


def short(seqs: int) -> Call:
    """Short sequences, evenly from 1 to 128 cells, with one query."""
    lens = tuple((1, 1 + at * (LONGEST_SHORT - 1) // (seqs - 1)) for at in range(seqs))
    return Call(f"{seqs} short sequences", lens)


def several(queries: int) -> Call:
    """Sequences with a few queries each."""
    return Call(f"{queries} queries", ((queries, BEHIND),) * SEQS)


def prompt(tokens: int) -> Call:
    """One whole prompt from nothing."""
    return Call(f"prompt {tokens}", ((tokens, tokens),))


def chunk() -> Call:
    """The last chunk of a prompt: its queries behind a context."""
    queries, before = CHUNK
    return Call(f"chunk of {queries} behind {before}", ((queries, queries + before),))


def probes() -> Iterator[Call]:
    """Further decoded batches, from which a model of the costs is fitted."""
    for seqs, kv_len in ((1, 1), (16, 1), (64, 1), (64, 129), (64, 256), (32, 1000), (16, 8192)):
        yield Call(f"probe {seqs} of {kv_len}", ((1, kv_len),) * seqs)


def drawn(seed: int) -> Call:
    """A batch of drawn lengths, against which the model is held."""
    draws = random.Random(seed)
    lens = tuple((1, int(2 ** draws.uniform(0, 13))) for _ in range(draws.randint(8, SEQS)))
    return Call(f"drawn {seed}", lens)


def of(cell: Cell) -> tuple[Call, ...]:
    """The calls that the program of this grid point serves; none of a grid point without costs."""
    if cell.positions != POSITIONS:
        return ()
    if cell.seqs == MANY:
        return (short(MANY),)
    if cell.tokens == LONG_PROMPT:
        return (prompt(LONG_PROMPT),)
    if cell.tokens == max(PROMPT_LENS):
        return (*map(prompt, PROMPT_LENS), chunk())
    return (
        *map(decoding, KV_LENS),
        neighbours(BEHIND),
        short(SEQS),
        *map(several, QUERIES),
        *probes(),
        *map(drawn, range(DRAWN)),
    )


def decoding_cells() -> tuple[Cell, ...]:
    """A grid point for each shape, chip and page size; those of 8 bits with the largest page."""
    plain = cells(SHAPES, chips=CHIPS, page_sizes=PAGE_SIZES)
    eight = cells(SHAPES, chips=CHIPS, page_sizes=PAGE_SIZES[-1:], kv=(EIGHT_BITS,))
    return tuple(evolve(cell, positions=POSITIONS, seqs=SEQS) for cell in (*plain, *eight))


def prompt_cells() -> tuple[Cell, ...]:
    """A grid point for each shape and chip, with pages of 128; more of the first shape."""
    usual = cells(SHAPES, chips=CHIPS, page_sizes=PAGE_SIZES[-1:])
    eight = cells((HEAD,), chips=CHIPS, page_sizes=PAGE_SIZES[-1:], kv=(EIGHT_BITS,))
    tokens = max(PROMPT_LENS)
    found = [evolve(cell, tokens=tokens, positions=POSITIONS) for cell in (*usual, *eight)]
    for chip, length in product(CHIPS, (LONG_PROMPT,)):
        (one,) = cells((HEAD,), chips=(chip,), page_sizes=PAGE_SIZES[-1:])
        found.append(evolve(one, tokens=length, positions=POSITIONS))
    return tuple(found)


def many_cells() -> tuple[Cell, ...]:
    """A grid point for each chip, for a batch of many sequences."""
    every = cells((HEAD,), chips=CHIPS, page_sizes=PAGE_SIZES[-1:])
    return tuple(evolve(cell, tokens=MANY, seqs=MANY, positions=POSITIONS) for cell in every)


def results(cell: Cell, call: Call) -> int:
    """Bytes of the results of a call."""
    return call.queries * cell.heads.q * cell.heads.dim * BITS[cell.q] // 8


def needed(cell: Cell, call: Call) -> int:
    """Bytes that any kernel must move: visible K and V once, queries and results."""
    return call.cells * cell.kv_bytes + 2 * results(cell, call)


def operations(cell: Cell, call: Call) -> int:
    """Operations of both products, of visible pairs alone."""
    return 4 * call.pairs * cell.heads.q * cell.heads.dim
