"""The defaults of our reference attention, which are those that its docstring names."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array

from impl.attention import reference

PAGE_SIZES: Final = (1, 48, 1024)
HEADS: Final = ((1, 128), (1, 130), (1, 200), (4, 64))
"""KV heads, and elements of each: K and V of a cell have 256 elements, 260, 400, and 512."""
PAGES: Final = 600
"""Entries of a table row, more than any default block has pages."""
TOKENS: Final = 40
"""Rows of q, more than a default block has."""


def differences() -> Iterator[str]:
    """The sizes at which the default is another program than the one that is documented."""
    for page_size, (heads, width) in product(PAGE_SIZES, HEADS):
        cells = 512 if 2 * heads * width <= 256 else 256
        named = {"q_block": 32, "kv_block_pages": max(1, cells // page_size)}
        if jax.default_backend() == "cpu":
            named["step_elements"] = 1
        shapes = ((TOKENS, heads, width), (PAGES, page_size, 2 * heads, width))
        if _program(*shapes, {}) != _program(*shapes, named):
            yield f"pages of {page_size} cells, {heads} KV heads of {width}: by default not {named}"


def _program(q: tuple[int, ...], kv_pages: tuple[int, ...], options: Mapping[str, int]) -> str:
    def arrays() -> list[Array]:
        floats = [jnp.zeros(shape) for shape in (q, kv_pages)]
        return floats + [jnp.zeros(shape, jnp.int32) for shape in ((2,), (2, PAGES), (3,), ())]

    attend: Callable[..., object] = reference.ragged_paged_attention
    return str(jax.make_jaxpr(partial(attend, **options))(*jax.eval_shape(arrays)))
