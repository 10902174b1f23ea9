"""K and V of the queries' own tokens as an operand, which is read in place of their cells.

Copies of several cells begin at a multiple of `Shape.unit`, there and in the buffer. So where it is
more than one, tokens lie as far apart from their positions as a multiple of it.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32, Shaped

from impl.attention.places import owners
from impl.attention.tpu.shape import Shape


def rows(
    shape: Shape,
    cells: Shaped[Array, "T KV D"],
    kv_lens: Int32[Array, " B"],
    cu_q_lens: Int32[Array, " B+1"],
    num_seqs: Array,
) -> Shaped[Array, "rows D"]:
    """The cells, each where `place` says, and each of KV rows."""
    assert cells.shape[0] == shape.tokens, "there is a cell for each token"
    if shape.unit > 1:
        seq, owned = owners(cu_q_lens, num_seqs, tokens=shape.tokens)
        size = shape.tokens + (shape.seqs + 1) * shape.unit
        token = jnp.arange(shape.tokens, dtype=jnp.int32)
        found = place(shape, token, seq, kv_lens[seq], cu_q_lens[seq + 1])
        blank = jnp.zeros((size, *cells.shape[1:]), cells.dtype)
        cells = blank.at[jnp.where(owned, found, size)].set(cells, mode="drop")
    return cells.reshape(-1, shape.head_dim)


def place(shape: Shape, token: Any, seq: Any, kv_len: Any, end: Any) -> Any:
    """Which cell of the operand a token of this sequence is. end: the token after its last one."""
    if shape.unit == 1:
        return token
    return token + seq * shape.unit + ((kv_len - end) & (shape.unit - 1))
