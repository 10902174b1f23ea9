"""The reference attention of Levanter, as installed, with other block sizes.

All of Levanter needs some fifty distributions. Its attention needs few, if the packages above it
are empty: so empty ones replace them before the import, in a process that does not use Levanter for
anything else.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jax
from jax import Array

EMPTY: Final = ("levanter", "levanter.inference", "levanter.layers")
"""Packages that are replaced by empty ones with the same path."""
BLOCKS: Final = (1, 2)
"""Queries and pages of a block in the function's text: min(1, ...) and min(2, ...)."""


class Missing(Exception):
    """A peer is unavailable, for this reason."""


def attention(scale: float, *, queries: int, pages: int) -> Callable[..., Array]:
    """A jitted function of the arrays of the interface. Raises Missing without Levanter."""
    module, haliax = _modules()

    def attend(
        q: Array, kv_pages: Array, kv_lens: Array, page_indices: Array, starts: Array, count: Array
    ) -> Any:
        tokens, q_heads, width = q.shape
        heads = kv_pages.shape[2] // 2
        axes = ("position", "kv_head", "q_heads_per_group", "head_size")
        _put_blocks(module, queries=queries, pages=pages)
        out = module.default_ragged_paged_attention(
            haliax.named(q.reshape(tokens, heads, -1, width), axes),
            haliax.named(kv_pages, ("page", "slot", "kv_head", "head_size")),
            haliax.named(kv_lens, ("seq",)),
            haliax.named(page_indices, ("seq", "page")),
            starts,
            count[0],
            sm_scale=scale,
        )
        return out.rearrange(axes).array.reshape(tokens, q_heads, width)

    return jax.jit(attend)


def _put_blocks(module: ModuleType, *, queries: int, pages: int) -> None:
    """Replace `min`, from which the function takes its block sizes, while it is traced."""
    sizes = dict(zip(BLOCKS, (queries, pages), strict=True))

    def minimum(wanted: int, most: int) -> int:
        return min(sizes[wanted], most)

    vars(module)["min"] = minimum


def _modules() -> tuple[ModuleType, ModuleType]:
    """Levanter's attention, and haliax, whose arrays it takes."""
    try:
        haliax = importlib.import_module("haliax")
        for name in EMPTY:
            sys.modules[name] = sys.modules.get(name) or _empty(name)
        return importlib.import_module("levanter.layers.attention"), haliax
    except ImportError as problem:
        raise Missing(f"{problem}; `make peers` installs it") from problem


def _empty(name: str) -> ModuleType:
    """An empty package in place of the installed one."""
    found = importlib.util.find_spec("levanter") if name == "levanter" else None
    above = list(found.submodule_search_locations or ()) if found else []
    if name != "levanter":
        parent, _, last = name.rpartition(".")
        above = [str(Path(place) / last) for place in sys.modules[parent].__path__]
    if not above:
        raise ModuleNotFoundError("levanter is not installed")
    package = ModuleType(name)
    package.__path__ = above
    return package
