"""How a state enters and leaves jit: the same state in few arrays.

What a call costs beyond its work grows with the number of arrays it takes and returns. So the many
short ones travel as three; the long ones, which an action changes in place, travel as they are.
"""

from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from impl.models.protocol import Cache
from impl.setup import Setup
from impl.state import State, initial

LONG: Final = (
    *("counts", "rows", "tokens", "logprobs", "stops", "stop_lens"),
    *("out_tokens", "out_logprobs"),
)
"""The fields with more than one number per slot, or that grow with the pages."""

SHORT: Final = (
    (
        *("used", "known", "allocated", "written", "prompt_lens", "max_new", "requests", "choices"),
        *("seeds", "temperatures", "finished"),
    ),
    ("queue_tokens", "queue_slots", "queue_positions", "queued"),
    ("out_lens", "out_reasons", "out_requests", "out_choices", "outputs"),
)
"""The others: of the slots, of the queue, and of the outputs. One array of all is slower: XLA fuses
whatever feeds it into one loop."""


class Packed(NamedTuple):
    """A state. long: the fields of LONG that have a size. short: one i32[...] each of SHORT."""

    cache: Cache
    long: tuple[Array, ...]
    short: tuple[Array, ...]


@cache
def shapes(setup: Setup) -> State:
    """Shapes and dtypes of the fields of a state."""
    found: State = jax.eval_shape(lambda: initial(setup))
    return found


def pack(state: State) -> Packed:
    """The same state in few arrays; for use inside jit."""
    return Packed(
        state.cache,
        tuple(field for field in (getattr(state, name) for name in LONG) if field.size),
        tuple(jnp.concatenate([_bits(getattr(state, name)) for name in group]) for group in SHORT),
    )


def unpack(setup: Setup, packed: Packed) -> State:
    """The state that was packed; for use inside jit."""
    wanted = shapes(setup)
    fields: dict[str, Array] = {}
    long = iter(packed.long)
    for name in LONG:
        shape = getattr(wanted, name)
        fields[name] = next(long) if shape.size else jnp.zeros(shape.shape, shape.dtype)
    for group, numbers in zip(SHORT, packed.short, strict=True):
        ends = accumulate(getattr(wanted, name).size for name in group)
        for name, end in zip(group, ends, strict=True):
            shape = getattr(wanted, name)
            fields[name] = _from_bits(numbers[end - shape.size : end], shape)
    return State(cache=packed.cache, **fields)


def _bits(field: Array) -> Array:
    if field.dtype == jnp.float32:
        field = lax.bitcast_convert_type(field, jnp.int32)
    return field.astype(jnp.int32).ravel()


def _from_bits(numbers: Array, shape: jax.ShapeDtypeStruct) -> Array:
    if shape.dtype == jnp.float32:
        return lax.bitcast_convert_type(numbers, jnp.float32).reshape(shape.shape)
    return numbers.astype(shape.dtype).reshape(shape.shape)
