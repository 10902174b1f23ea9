"""A wrapper of the ragged paged attention kernel of tpu-inference, version 3, with our interface.

The package is imported from where it is installed; nothing of it is copied. Its own initialisation
needs vllm and a TPU, and the kernel's module needs jax alone: so an empty package replaces the
initialisation.

The wrapper does more than the kernel, and its part is not counted: K and V of the new tokens are
read from the pool, because this kernel takes them as operands and appends them itself; the pool is
brought into the kernel's layout, [pages, page_size, rows / packing, packing, head_dim], with rows
and head_dim padded; leading sequences of one query go to its program for decoding, the others to
the one for mixed batches. For a head_dim of 64 the package has a second kernel, with block sizes
from a table that needs vllm: it is not called, and the first one pads such heads to 128.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Final

import jax.numpy as jnp
from jax import Array

from spec.vocabulary.errors import InvalidInput

PACKAGE: Final = "tpu_inference"
MODULE: Final = f"{PACKAGE}.kernels.ragged_paged_attention.v3.kernel"
GENERATIONS: Final = {"v5e": 5, "v5p": 5, "v6e": 6, "7x": 7}
"""What the kernel calls the chips that it has block sizes for. It asks for the device that the
program runs on, which is none here; it is told the chip that is compiled for."""
LANES: Final = 128


def ragged_paged_attention(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array,
    *,
    chip: str,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Array:
    """Attention; arrays and meaning as in `impl.attention.reference.ragged_paged_attention`.

    chip: the target. Raises InvalidInput for a chip or a pool dtype that the kernel does not take,
    and passes on the exceptions of the kernel.
    """
    kernel = loaded(chip)
    if not jnp.issubdtype(kv_pages.dtype, jnp.floating):
        raise InvalidInput(
            "kv_pages",
            seen=kv_pages.dtype,
            allowed="a floating point dtype",
            remedy="The kernel takes no integers; use another for this pool.",
        )
    k, v = _new(kv_pages, kv_lens, page_indices, cu_q_lens, tokens=q.shape[0])
    decoding = _decoding(cu_q_lens, num_seqs)
    out, _ = kernel.ragged_paged_attention(
        q,
        k,
        v,
        _pool(kernel, kv_pages),
        kv_lens,
        page_indices.reshape(-1),
        cu_q_lens,
        jnp.concatenate([decoding, decoding, num_seqs]),
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    answer: Array = out
    return answer


def loaded(chip: str) -> ModuleType:
    """The kernel's module, set up for this chip. Raises InvalidInput for other chips."""
    if chip not in GENERATIONS:
        raise InvalidInput(
            "chip",
            seen=chip,
            allowed=", ".join(GENERATIONS),
            remedy="The kernel has no block sizes for it; use another there.",
        )
    if PACKAGE not in sys.modules:
        sys.modules[PACKAGE] = _bare()
    module = importlib.import_module(MODULE)
    module.get_tpu_version = lambda: GENERATIONS[chip]  # type: ignore[attr-defined]
    return module


def _bare() -> ModuleType:
    """The package without its initialisation. Raises ModuleNotFoundError if it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no module {PACKAGE}", name=PACKAGE)
    package = ModuleType(PACKAGE)
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    return package


def _new(
    kv_pages: Array, kv_lens: Array, page_indices: Array, cu_q_lens: Array, *, tokens: int
) -> tuple[Array, Array]:
    """K and V [tokens, kv_heads, head_dim] of the tokens of this batch, read from the pool.

    Rows that belong to no sequence hold those of any cell: the kernel does not read them.
    """
    pages, page_size, _, _ = kv_pages.shape
    token = jnp.arange(tokens, dtype=jnp.int32)
    found = jnp.searchsorted(cu_q_lens[1:], token, side="right", method="compare_all")
    sequence = jnp.minimum(found, len(kv_lens) - 1)
    position = kv_lens[sequence] - cu_q_lens[sequence + 1] + token
    position = jnp.clip(position, 0, page_indices.shape[1] * page_size - 1)
    page = jnp.clip(page_indices[sequence, position // page_size], 0, pages - 1)
    cells = kv_pages[page, position % page_size]
    return cells[:, 0::2], cells[:, 1::2]


def _decoding(cu_q_lens: Array, num_seqs: Array) -> Array:
    """i32[1]: how many sequences at the front have one query each."""
    present = jnp.arange(len(cu_q_lens) - 1) < num_seqs[0]
    single = (jnp.diff(cu_q_lens) == 1) & present
    return jnp.sum(jnp.cumprod(single.astype(jnp.int32)), keepdims=True, dtype=jnp.int32)


def _pool(kernel: ModuleType, kv_pages: Array) -> Array:
    """The pool in the kernel's layout; K and V of a head are neighbouring rows in both."""
    pages, page_size, rows, head_dim = kv_pages.shape
    shape = kernel.get_kv_cache_shape(pages, page_size, rows // 2, head_dim, kv_pages.dtype)
    more_rows = shape[2] * shape[3] - rows
    filled = jnp.pad(kv_pages, ((0, 0), (0, 0), (0, more_rows), (0, shape[4] - head_dim)))
    return filled.reshape(shape)
