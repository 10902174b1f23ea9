"""The grid to compile: a grid point is one shape of the interface on one chip."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final

from attrs import Factory, evolve, field, frozen

from spec.vocabulary.errors import InvalidInput

CHIPS: Final = ("v4", "v5e", "v5p", "v6e", "7x")
PAGE_SIZES: Final = (16, 32, 64, 128, 256)
POOL_BYTES: Final = 1 << 30
BITS: Final = {
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int8": 8,
    "float32": 32,
}
"""Bytes of a number of each dtype."""
QUERIES: Final = (*BITS, "float16")
"""Dtypes of queries, which a pool may not have."""


@frozen
class Heads:
    """Query heads, KV heads and head dim of a model, or of its share on one device."""

    q: int
    kv: int
    dim: int

    def __str__(self) -> str:
        return f"{self.q}x{self.kv}x{self.dim}"

    def shared(self, devices: int) -> "Heads":
        """The share of one of this many devices. Raises InvalidInput if KV heads do not divide."""
        if devices < 1 or self.kv % devices:
            raise InvalidInput(
                "devices",
                seen=devices,
                allowed=f"a divisor of {self.kv} KV heads",
                remedy="Use fewer devices, or name the heads of one.",
            )
        return Heads(self.q // devices, self.kv // devices, self.dim)


MODELS: Final = {
    "llama-3-8b": Heads(32, 8, 128),
    "llama-3-70b": Heads(64, 8, 128),
    "qwen3-1.7b": Heads(16, 8, 128),
    "gemma-2-9b": Heads(16, 8, 256),
    "llama-3.2-1b": Heads(32, 8, 64),
    "llama-2-7b": Heads(32, 32, 128),
}
"""Shapes by the public name of a model that has them."""
SHAPES: Final = (
    *(MODELS[name] for name in ("llama-3-8b", "llama-3-70b", "qwen3-1.7b", "gemma-2-9b")),
    *(MODELS["llama-3.2-1b"], Heads(8, 1, 128), MODELS["llama-2-7b"]),
)
"""The seven shapes of the grid."""
SHARDS: Final = tuple(
    MODELS[name].shared(devices) for name in ("llama-3-8b", "llama-3-70b") for devices in (4, 8)
)


def _pages(cell: "Cell") -> int:
    """The pages of a pool of about POOL_BYTES; any number if a size of the cell is invalid."""
    if cell.kv not in BITS or cell.page_size < 1:
        return 1
    return max(1, POOL_BYTES // (cell.page_size * cell.kv_bytes))


@frozen(kw_only=True)
class Cell:
    """One grid point: shapes, dtypes, chip. positions: cells that a page table row can name.

    pages: of the pool, by default so many that it has a GiB: beside it temporary bytes of a call
    that are not a copy of it are few. tokens: rows of q, of all sequences
    together. append: whether K and V of these tokens are operands that the kernel writes.
    """

    heads: Heads
    page_size: int
    chip: str
    kv: str = "bfloat16"
    q: str = "bfloat16"
    tokens: int = 512
    seqs: int = 64
    positions: int = 8192
    pages: int = field(default=Factory(_pages, takes_self=True))
    append: bool = False

    def __attrs_post_init__(self) -> None:
        """Raises InvalidInput for an unknown chip or dtype, or an invalid size."""
        for name, seen, allowed in (
            ("chip", self.chip, CHIPS),
            ("kv", self.kv, tuple(BITS)),
            ("q", self.q, QUERIES),
        ):
            if seen not in allowed:
                raise InvalidInput(
                    name, seen=seen, allowed=", ".join(allowed), remedy="Name one of these."
                )
        for name in ("page_size", "tokens", "seqs", "positions", "pages"):
            if getattr(self, name) < 1:
                raise InvalidInput(
                    name, seen=getattr(self, name), allowed="1 or more", remedy="Enlarge it."
                )

    @property
    def pages_per_seq(self) -> int:
        """Entries of a page table row."""
        return -(-self.positions // self.page_size)

    def pool(self, *, of_rows: bool) -> tuple[int, ...]:
        """The shape of the pool: that of `impl.cache.paged`, or of `impl.cache.rows`."""
        heads = self.heads
        if of_rows:
            from impl.cache.rows import lanes

            return self.pages, self.page_size * heads.kv, lanes(heads.dim)
        return self.pages, self.page_size, 2 * heads.kv, heads.dim

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of one token."""
        return 2 * self.heads.kv * self.heads.dim * BITS[self.kv] // 8

    def __str__(self) -> str:
        appends = ", appending" if self.append else ""
        return f"{self.heads} {self.kv} page {self.page_size} on {self.chip}{appends}"


def heads(name: str) -> Heads:
    """The shape of a name: MODEL, MODEL/DEVICES, or as in 32x8x128. Raises InvalidInput."""
    model, slash, devices = name.partition("/")
    if model in MODELS and (not slash or _is_number(devices)):
        return MODELS[model].shared(int(devices)) if slash else MODELS[model]
    sizes = name.split("x")
    if len(sizes) == 3 and all(map(_is_number, sizes)) and int(sizes[0]) % int(sizes[1]) == 0:
        return Heads(*map(int, sizes))
    raise InvalidInput(
        "shape",
        seen=name,
        allowed=f"QxKVxDIM such as 32x8x128, or one of {', '.join(MODELS)}, each /DEVICES or not",
        remedy="For example llama-3-70b/8 is what each of 8 devices has.",
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def cells(
    shapes: Iterable[Heads],
    *,
    chips: Sequence[str],
    page_sizes: Sequence[int] = PAGE_SIZES,
    kv: Sequence[str] = ("bfloat16",),
) -> tuple[Cell, ...]:
    """Every combination, chip by chip. Raises InvalidInput for unknown names."""
    return tuple(
        Cell(heads=shape, page_size=size, chip=chip, kv=kind)
        for chip, shape, kind, size in product(chips, shapes, kv, page_sizes)
    )


def grid() -> tuple[Cell, ...]:
    """The grid in which public kernels were counted: 105 in bf16, 28 in fp8, 7 in int8, 6 on v5p.

    It is uneven on purpose: jax's own kernel was measured in these grid points.
    """
    three = (MODELS["llama-3-8b"], MODELS["llama-3-70b"], MODELS["llama-2-7b"])
    return (
        *cells(SHAPES, chips=("v5e", "v6e", "7x")),
        *cells(SHAPES, chips=("v5e", "v6e"), page_sizes=(16, 128), kv=("float8_e4m3fn",)),
        *cells(SHAPES, chips=("v6e",), page_sizes=(16,), kv=("int8",)),
        *cells(three, chips=("v5p",), page_sizes=(16, 128)),
    )


def grid_on_v4() -> tuple[Cell, ...]:
    """Every distinct program of the grid, on v4."""
    return tuple(dict.fromkeys(evolve(cell, chip="v4") for cell in grid()))


def shards(chips: Sequence[str] = CHIPS, page_sizes: Sequence[int] = (16, 128)) -> tuple[Cell, ...]:
    """The share of one of 4 and of 8 devices, for the 8B and the 70B model."""
    return cells(SHARDS, chips=chips, page_sizes=page_sizes)


def names(shape: Heads) -> Iterator[str]:
    """The public names of this shape."""
    for model, whole in MODELS.items():
        if whole == shape:
            yield model
    for model, devices in product(("llama-3-8b", "llama-3-70b"), (4, 8)):
        if MODELS[model].shared(devices) == shape:
            yield f"{model}/{devices}"
