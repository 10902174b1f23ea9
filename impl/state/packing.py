"""Packed states, which enter and leave jit: the same state in few arrays.

The overhead of a call grows with the number of arrays that it takes and returns. So the fields of a
component with one number per slot, per entry of the queue or of the outputs, or per step in flight
and slot, are joined into one array. One array for all components is slower: XLA fuses all of its
inputs into one loop. A field that is wider, or grows with the pages, is changed in place by an
action and stays separate.
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

JOINED: Final = {"slots": 1, "queue": 1, "outputs": 1, "flights": 2}
"""The components whose narrow fields are joined, into one array for each component, and how many
axes those have at most."""


class Packed(NamedTuple):
    """A packed state. long: the separate fields, less empty ones. short: the joined ones."""

    cache: Cache
    long: tuple[Array, ...]
    short: tuple[Int32[Array, " _"], ...]


@cache
def shapes(setup: Setup) -> State:
    """Shapes and dtypes of the fields of a state."""
    found: State = jax.eval_shape(lambda: initial(setup))
    return found


def fields(setup: Setup) -> dict[str, Any]:
    """The shape of each field but the cache, by its path, such as "slots.used", in packed order."""
    long, short = _split(shapes(setup))
    return {name: shape for group in (long, *short) for name, shape in group.items()}


def is_joined(path: str, shape: tuple[int, ...]) -> bool:
    """Whether a field with this path and shape shares an array with others."""
    return len(shape) <= JOINED.get(path.partition(".")[0], -1)


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
        """The cache, or an unpacked field; an empty field was not packed."""
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
    """Assert, while tracing, that a step returns arrays like its own, which are donated."""
    wanted = shapes(setup)
    kept = jax.tree.map(
        lambda seen, right: (seen.shape, seen.dtype) == (right.shape, right.dtype), state, wanted
    )
    assert all(jax.tree.leaves(kept)), f"a step keeps shapes and dtypes: {kept}"


def _split(state: State) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """The separate fields, and the joined ones in one group per component; by path."""
    long: dict[str, Any] = {}
    short: dict[str, dict[str, Any]] = {component: {} for component in JOINED}
    for component, held in state._asdict().items():
        for name, field in held._asdict().items():
            if name != "cache":
                path = f"{component}.{name}"
                (short[component] if is_joined(path, field.shape) else long)[path] = field
    return long, tuple(short.values())


def _bits(field: Array) -> Int32[Array, " _"]:
    if field.dtype == jnp.float32:
        field = lax.bitcast_convert_type(field, jnp.int32)
    return field.astype(jnp.int32).ravel()


def _from_bits(numbers: Int32[Array, " _"], shape: jax.ShapeDtypeStruct) -> Array:
    if shape.dtype == jnp.float32:
        return lax.bitcast_convert_type(numbers, jnp.float32).reshape(shape.shape)
    return numbers.astype(shape.dtype).reshape(shape.shape)
