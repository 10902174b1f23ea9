"""What a shape asks of a kernel, as a few features: every two of them are tried together.

A static size or option takes branches of a kernel when it is traced, and most bugs there need one
of them, or two at once. So the shapes of the bench are a covering array of strength two: of any two
values of different features that a call can have, some shape has both. Of three at once nothing is
promised.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import Final

from conformance.kernels.batches import Sizes

Values = Mapping[str, str]
"""Of each feature, by its name."""
Pair = tuple[str, str, str, str]
"""A feature and its value, and another one and its value."""
EVERY: Final[Mapping[str, tuple[str, ...]]] = {
    "KV heads": ("1", "2", "odd", "4 to 8", "more"),
    "group": ("1", "a power of two", "another"),
    "head_dim": ("below 128", "128", "256", "another"),
    "page": ("1", "8 to 16", "32 to 128", "no power of two"),
    "q": ("bfloat16", "float32", "float16"),
    "pool": ("bfloat16", "float32", "int8", "float8"),
    "window": ("no", "yes"),
    "cap": ("no", "yes"),
    "scale": ("above 0", "0 or below"),
    "v_scale": ("1", "another"),
    "sinks": ("no", "yes"),
    "scales": ("no", "yes"),
    "new cells": ("no", "yes"),
}
"""The values of each feature."""
OF_A_PAGE: Final = ("KV heads", "page", "pool", "scales")
"""Those of which not every combination can be copied."""
EXAMPLES: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "KV heads": {"1": (1,), "2": (2,), "odd": (3, 5), "4 to 8": (4, 8), "more": (10, 16)},
    "page": {
        "1": (1,),
        "8 to 16": (8, 16),
        "32 to 128": (32, 64, 128),
        "no power of two": (12, 24, 48, 96),
    },
    "pool": {"bfloat16": (2,), "float32": (4,), "int8": (1,), "float8": (1,)},
}
"""Of a value, numbers that have it; of a pool, the bytes of a number."""


def of(sizes: Sizes, *, append: bool) -> Values:
    """The features of a shape, with or without new cells."""
    q_heads, kv_heads, width = sizes.heads
    q, pool = sizes.kinds
    scale = sizes.options.get("scale", 1.0) * sizes.options.get("k_scale", 1.0)
    found = {
        "KV heads": _heads(kv_heads),
        "group": _group(q_heads // kv_heads),
        "head_dim": _head_dim(width),
        "page": _page(sizes.page_size),
        "q": q,
        "pool": pool.partition("_")[0],
        "scale": "above 0" if scale > 0.0 else "0 or below",
        "v_scale": "1" if sizes.options.get("v_scale", 1.0) == 1.0 else "another",
    }
    asked = {
        "window": sizes.window is not None,
        "cap": "soft_cap" in sizes.options,
        "sinks": sizes.sinks,
        "scales": sizes.scales,
        "new cells": append,
    }
    return found | {name: "yes" if holds else "no" for name, holds in asked.items()}


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


def _heads(count: int) -> str:
    if count <= 2:
        return str(count)
    if count % 2:
        return "odd"
    return "4 to 8" if count <= 8 else "more"


def _group(size: int) -> str:
    if size == 1:
        return "1"
    return "a power of two" if _is_power(size) else "another"


def _head_dim(width: int) -> str:
    if width < 128:
        return "below 128"
    return str(width) if width in (128, 256) else "another"


def _page(size: int) -> str:
    if size == 1:
        return "1"
    if not _is_power(size):
        return "no power of two"
    return "8 to 16" if size <= 16 else "32 to 128"


def pairs(values: Values) -> Iterator[Pair]:
    """Every two values of a shape."""
    for one, other in combinations(EVERY, 2):
        yield one, values[one], other, values[other]


def possible() -> frozenset[Pair]:
    """Every two values that our kernel takes together in some shape."""
    allowed = [
        dict(zip(OF_A_PAGE, each, strict=True))
        for each in product(*(EVERY[name] for name in OF_A_PAGE))
        if _can_be_copied(*each)
    ]
    every = (
        (one, first, other, second)
        for one, other in combinations(EVERY, 2)
        for first, second in product(EVERY[one], EVERY[other])
    )
    return frozenset(
        pair
        for pair in every
        if any(
            each.get(pair[0], pair[1]) == pair[1] and each.get(pair[2], pair[3]) == pair[3]
            for each in allowed
        )
    )


def _can_be_copied(heads: str, page: str, pool: str, scales: str) -> bool:
    """Whether some page of these values can be copied, and its scales."""
    from impl.attention.tpu.shape import LANES, copied, even

    found = product(
        *(EXAMPLES[name][value] for name, value in (("KV heads", heads), ("page", page)))
    )
    (size,) = EXAMPLES["pool"][pool]
    return any(
        copied(cells, rows, size) and (scales == "no" or even(cells) * rows % LANES == 0)
        for rows, cells in found
    )


def tried(shapes: Iterable[tuple[Sizes, bool]]) -> frozenset[Pair]:
    """Every two values that one of these shapes has. Each has new cells, or has none."""
    return frozenset(pair for sizes, append in shapes for pair in pairs(of(sizes, append=append)))
