"""K and V of the queries' own tokens as an operand, which is read in place of their cells.

Copies of several cells begin at a multiple of `Shape.unit`, in the operand, in the buffer and in
pages. So if the unit is more than one, the index of a token in the operand differs from its
position by a multiple of the unit.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32, Shaped

from impl.attention.places import owners
from impl.attention.tpu.shape import Shape, ceil_div


class Operand(NamedTuple):
    """rows: each cell, of K rows, at its index. places: the index of each token."""

    rows: Shaped[Array, "N lanes"]
    places: Int32[Array, " T"]


def operand(
    shape: Shape,
    cells: Shaped[Array, "T K lanes"],
    kv_lens: Int32[Array, " B"],
    cu_q_lens: Int32[Array, " B+1"],
    num_seqs: Array,
) -> Operand:
    """The operand: each cell at the index that `place` gives."""
    assert cells.shape[0] == shape.tokens, "there is a cell for each token"
    token = jnp.arange(shape.tokens, dtype=jnp.int32)
    if shape.unit > 1:
        seq, owned = owners(cu_q_lens, num_seqs, tokens=shape.tokens)
        size = (ceil_div(shape.tokens, shape.unit) + shape.seqs + 1) * shape.unit
        found = place(shape, token, seq, kv_lens[seq], cu_q_lens[seq + 1])
        token = jnp.where(owned, found, 0)
        blank = jnp.zeros((size, *cells.shape[1:]), cells.dtype)
        cells = blank.at[jnp.where(owned, found, size)].set(cells, mode="drop")
    return Operand(cells.reshape(-1, shape.lanes), token)


def place(shape: Shape, token: Any, seq: Any, kv_len: Any, end: Any) -> Any:
    """The index in the operand of a token of a sequence. end: the token after its last one."""
    if shape.unit == 1:
        return token
    return token + seq * shape.unit + ((kv_len - end) & (shape.unit - 1))
