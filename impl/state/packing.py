"""How a state enters and leaves jit: the same state in few arrays.

What a call costs beyond its work grows with the number of arrays it takes and returns. So a field
with one number per slot, or per entry of the queue or of the outputs, travels joined to the others
of its component. One array of all three components is slower: XLA fuses whatever feeds it into one
loop. What is wider, or grows with the pages, is changed in place by an action and travels alone.
"""

from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32

from impl.models.protocol import Cache
from impl.setup import Setup
from impl.state import State, initial

JOINED: Final = ("slots", "queue", "outputs")
"""The components whose narrow fields travel as one array each."""


class Packed(NamedTuple):
    """A state. long: the fields that travel alone and have a size. short: one array a component."""

    cache: Cache
    long: tuple[Array, ...]
    short: tuple[Int32[Array, " _"], ...]


@cache
def shapes(setup: Setup) -> State:
    """Shapes and dtypes of the fields of a state."""
    found: State = jax.eval_shape(lambda: initial(setup))
    return found


def fields(setup: Setup) -> dict[str, Any]:
    """The shape of each field but the cache, by its path, such as "slots.used", as they travel."""
    long, short = _split(shapes(setup))
    return {name: shape for group in (long, *short) for name, shape in group.items()}


def pack(state: State) -> Packed:
    """The same state in few arrays; for use inside jit."""
    long, short = _split(state)
    return Packed(
        state.pages.cache,
        tuple(field for field in long.values() if field.size),
        tuple(jnp.concatenate([_bits(field) for field in group.values()]) for group in short),
    )


def unpack(setup: Setup, packed: Packed) -> State:
    """The state that was packed; for use inside jit."""
    wanted, held = _split(shapes(setup))
    sized = [name for name, shape in wanted.items() if shape.size]
    assert len(sized) == len(packed.long), "the packed state is of this setup"
    found = dict(zip(sized, packed.long, strict=True))
    for group, numbers in zip(held, packed.short, strict=True):
        ends = [*accumulate(shape.size for shape in group.values())]
        assert ends[-1:] == [*numbers.shape], "the packed state is of this setup"
        for (name, shape), end in zip(group.items(), ends, strict=True):
            found[name] = _from_bits(numbers[end - shape.size : end], shape)

    def field(name: str, shape: Any) -> Any:
        """The cache, or what travelled; a field without a size did not."""
        if name == "pages.cache":
            return packed.cache
        return found[name] if name in found else jnp.zeros(shape.shape, shape.dtype)

    return State(
        **{
            component: type(shape)(
                **{name: field(f"{component}.{name}", one) for name, one in shape._asdict().items()}
            )
            for component, shape in shapes(setup)._asdict().items()
        }
    )


def assert_same_shapes(setup: Setup, state: State) -> None:
    """Assert, while tracing, that a step returns the arrays it was given: they are donated."""
    wanted = shapes(setup)
    kept = jax.tree.map(
        lambda seen, right: (seen.shape, seen.dtype) == (right.shape, right.dtype), state, wanted
    )
    assert all(jax.tree.leaves(kept)), f"a step keeps shapes and dtypes: {kept}"


def _split(state: State) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """The fields that travel alone, and those that are joined, a group a component; by path."""
    long: dict[str, Any] = {}
    short: dict[str, dict[str, Any]] = {component: {} for component in JOINED}
    for component, held in state._asdict().items():
        for name, field in held._asdict().items():
            joined = component in short and field.ndim <= 1
            if name != "cache":
                (short[component] if joined else long)[f"{component}.{name}"] = field
    return long, tuple(short.values())


def _bits(field: Array) -> Int32[Array, " _"]:
    if field.dtype == jnp.float32:
        field = lax.bitcast_convert_type(field, jnp.int32)
    return field.astype(jnp.int32).ravel()


def _from_bits(numbers: Int32[Array, " _"], shape: jax.ShapeDtypeStruct) -> Array:
    if shape.dtype == jnp.float32:
        return lax.bitcast_convert_type(numbers, jnp.float32).reshape(shape.shape)
    return numbers.astype(shape.dtype).reshape(shape.shape)
