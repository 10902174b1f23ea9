"""The static shape of a kernel: sizes, block sizes and options, all hashable."""

from math import gcd
from typing import Any, Final

import jax.numpy as jnp
from attrs import frozen

from impl.cache import rows as pool

LANES: Final = pool.LANES
"""Numbers side by side in one row of a register, and page ids in one row of a table."""
SUBLANES: Final = 8
"""Rows of a register of 32-bit numbers."""


def ceil_div(number: int, size: int) -> int:
    """The quotient, rounded up; both are plain integers."""
    return -(-number // size)


def power_to(number: int) -> int:
    """The largest power of two that is at most this number, and 1 for less."""
    return 1 << (max(1, number).bit_length() - 1)


TILES: Final = {1: 32, 2: 8, 4: 8}
"""Rows of a tile in main memory, by the bytes of a number."""


def alone(rows: int, size: int, tile: int) -> bool:
    """Whether so many rows can be copied alone: they fill tiles, or 32-bit words and divide one.

    size: bytes of a number. tile: rows of a tile.
    """
    return rows % tile == 0 or (tile % rows == 0 and rows * size % 4 == 0)


def even(cells: int) -> int:
    """The largest power of two that divides a number of cells."""
    return cells & -cells


def copied(cells: int, rows: int, size: int) -> bool:
    """Whether a page of so many cells, each of so many rows, can be copied; size: see `alone`.

    It is copied alone, or as parts of a power of two of cells. These must fill tiles, so that a
    pool of them lies as the pool does.
    """
    part = even(cells)
    tile = TILES[size]
    return alone(cells * rows, size, tile) if part == cells else part * rows % tile == 0


@frozen(kw_only=True)
class Blocks:
    """How the kernel cuts its work; all but decode_steps are powers of two.

    kv_pages: pages of one fetch, or parts of them, as `Shape.page_size` has it; two fetches are in
    VMEM at a time. decode_cells: cells of one step of decoding, 16 or more, no more than a fetch
    has, and a multiple of 128 when multiplied with the KV heads. decode_steps: steps that are
    scheduled together, a multiple of 4. q_rows: query tokens of one block of a prefill, 16 or more.
    prefill_cells: most cells of one of its steps that need no mask, 128 or more, and no more
    than a fetch has; see `prefill.whole_cells`, and `Shape.edge_cells` for the others.
    """

    kv_pages: int
    decode_cells: int
    decode_steps: int
    q_rows: int
    prefill_cells: int


@frozen(kw_only=True)
class Shape:
    """Sizes as the kernel sees them: q_heads is a multiple of 8, `width` a multiple of 128.

    vmem: bytes of vector memory that the compiler may use. cores: parallel cores, each with its own
    buffers. byte_products: whether the matrix unit multiplies 8-bit with 16-bit numbers.
    negative_zeros: whether it is given -0 in float8_e4m3fn. fresh: whether K and V of the
    queries' own tokens come as operands, and are not read from the pool. sinks: whether query heads
    have them. page_size: a power of two; a pool of other pages is one of their parts, see `even`.
    """

    tokens: int
    seqs: int
    q_heads: int
    kv_heads: int
    group: int
    head_dim: int
    page_size: int
    pages: int
    pages_per_seq: int
    q_dtype: Any
    kv_dtype: Any
    scale: float
    v_scale: float
    soft_cap: float | None
    window: int | None
    vmem: int
    cores: int
    blocks: Blocks
    byte_products: bool
    negative_zeros: bool
    fresh: bool = False
    sinks: bool = False
    scales: bool = False

    @property
    def width(self) -> int:
        """Lanes of a query and of a result: head_dim, rounded up to a multiple of 128."""
        return ceil_div(self.head_dim, LANES) * LANES

    @property
    def key_lane(self) -> int:
        """The lane of a row of the pool in which K begins, behind V."""
        return pool.key_lane(self.head_dim)

    @property
    def lanes(self) -> int:
        """Lanes of a row of the pool."""
        return pool.lanes(self.head_dim)

    @property
    def shift(self) -> int:
        """The lane of a query in which it begins: that of K in its first register."""
        return self.key_lane % LANES

    @property
    def key_register(self) -> int:
        """The first lane of the register in which K begins."""
        return self.key_lane - self.shift

    @property
    def rows(self) -> int:
        """Rows of one cell: one for each KV head."""
        return self.kv_heads

    @property
    def tile(self) -> int:
        """Rows of a tile; a copy of more rows must begin at a multiple of it."""
        return TILES[int(jnp.dtype(self.kv_dtype).itemsize)]

    @property
    def single(self) -> bool:
        """Whether one cell can be copied alone, see `alone`."""
        return alone(self.rows, int(jnp.dtype(self.kv_dtype).itemsize), self.tile)

    @property
    def unit(self) -> int:
        """The fewest cells that fill tiles: copies of several begin at a multiple of it."""
        return self.tile // gcd(self.tile, self.rows)

    @property
    def block(self) -> int:
        """The fewest cells that are written at once: a unit, or a page if that has fewer."""
        return min(self.unit, self.page_size)

    @property
    def page_rows(self) -> int:
        """Rows of one page."""
        return self.page_size * self.rows

    @property
    def fetch_cells(self) -> int:
        """Cells of one fetch."""
        return self.blocks.kv_pages * self.page_size

    @property
    def rest_cells(self) -> tuple[int, ...]:
        """Cells of the last step of decoding, if it needs no more; their rows fill registers."""
        cells = self.blocks.decode_cells
        parts = [
            part
            for part in (cells // 2, cells // 4)
            if part >= 16 and part * self.kv_heads % LANES == 0
        ]
        return tuple(parts)

    @property
    def edge_cells(self) -> int:
        """Cells of a masked step of a prefill: the shorter, the less is computed in vain."""
        return max(LANES, self.blocks.prefill_cells // 4)

    @property
    def together(self) -> int:
        """Copies of pages whose starts overlap, since each waits for its page id."""
        return min(16, self.blocks.kv_pages)

    @property
    def runs(self) -> bool:
        """Whether so many pages that follow each other are one copy: they fill tiles.

        The first of their ids is then negative, as `~id`.
        """
        return self.together > 1 and self.page_rows % self.tile == 0

    @property
    def beside(self) -> int:
        """Copies of pages that are started beside one step of decoding: as many as it reads.

        None are if a fetch has no more pages than are started together.
        """
        if self.blocks.kv_pages <= self.together:
            return 0
        return min(max(1, self.blocks.decode_cells // self.page_size), LANES)

    @property
    def capacity(self) -> int:
        """Cells that a table row can name."""
        return self.pages_per_seq * self.page_size

    @property
    def exact(self) -> bool:
        """Whether products are taken in float32: one side has more bits than bfloat16."""
        sizes = jnp.dtype(self.q_dtype).itemsize, jnp.dtype(self.kv_dtype).itemsize
        return bool(max(sizes) > 2)

    @property
    def compute(self) -> Any:
        """The dtype that the matrix unit is given."""
        return jnp.float32 if self.exact else jnp.bfloat16

    @property
    def paired(self) -> int:
        """Query heads of one KV head that share a word of 32 bits: two fill it, or one does."""
        fills = self.group % 2 == 0 and self.q_heads % 16 == 0
        return 2 if self.q_dtype == jnp.bfloat16 and not self.exact and fills else 1

    @property
    def joined(self) -> Any:
        """The dtype of queries and results in such words."""
        return jnp.bfloat16 if self.paired == 2 else jnp.float32

    @property
    def packing(self) -> int:
        """Rows in a word of 32 bits when heads are separated: all of one cell, or whole cells."""
        most = 1 if self.exact else 4 // int(jnp.dtype(self.kv_dtype).itemsize)
        return next(
            size
            for size in (4, 2, 1)
            if size <= most and (self.kv_heads % size == 0 or size % self.kv_heads == 0)
        )

    @property
    def separated(self) -> Any:
        """The dtype in which heads are separated: that of the pool, unless it must be widened."""
        kinds = {1: jnp.float32, 2: jnp.bfloat16, 4: self.kv_dtype}
        return kinds[self.packing]

    @property
    def id_rows(self) -> int:
        """Rows of 128 page ids that one fetch needs."""
        return ceil_div(self.blocks.kv_pages, LANES)

    @property
    def table_rows(self) -> int:
        """Rows of 128 page ids that a sequence's table row fills."""
        return ceil_div(self.pages_per_seq, max(LANES, self.blocks.kv_pages)) * max(
            1, self.blocks.kv_pages // LANES
        )
