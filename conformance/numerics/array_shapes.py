"""Shapes of arrays that do not fit together, given to functions of our engine: each is refused.

An array of another number of axes is refused by its name, or by that of a function. A model that
someone builds from these functions may give them any. No engine of ours does, so that no history
shows what they refuse.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from attrs import frozen

from impl.attention import appending, reference
from impl.cache import paged
from impl.models import sampler
from spec.vocabulary import InvalidInput

SIZES: Final = {
    "T": 5,
    "H": 2,
    "2H": 4,
    "Q": 4,
    "D": 8,
    "P": 3,
    "S": 4,
    "B": 2,
    "B+1": 3,
    "M": 2,
    "V": 7,
}
"""The size of each axis that a function names. Axes with a letter in common fit together."""
INTEGERS: Final = frozenset(
    {
        "destinations",
        "seeds",
        "choices",
        "positions",
        "kv_lens",
        "page_indices",
        "cu_q_lens",
    }
)
"""The arguments that are i32; the others are f32."""
Shape = tuple[int, ...]


@frozen
class Shapes:
    """A function, and the axes of each of its arrays by name.

    names: by which it may refuse, beside those of its arrays.
    """

    function: Callable[..., object]
    names: frozenset[str]
    axes: Mapping[str, str]

    def right(self) -> dict[str, Shape]:
        """Shapes that fit together."""
        return {
            name: tuple(SIZES[axis] for axis in axes.split()) for name, axes in self.axes.items()
        }

    def wrong(self) -> Iterator[tuple[str, Shape]]:
        """Another shape for one array, with which it does not fit."""
        for name, shape in self.right().items():
            yield name, (*shape, 1)
            yield name, shape[1:]
            for at, axis in enumerate(self.axes[name].split()):
                if self._is_elsewhere(axis, name):
                    for size in (shape[at] - 1, shape[at] + 1):
                        yield name, (*shape[:at], size, *shape[at + 1 :])

    def _is_elsewhere(self, axis: str, name: str) -> bool:
        letter = axis.strip("+12")
        return any(letter in axes for other, axes in self.axes.items() if other != name)


_ATTENDED: Final = {
    "q": "T Q D",
    "kv_pages": "P S 2H D",
    "kv_lens": "B",
    "page_indices": "B M",
    "cu_q_lens": "B+1",
}
FUNCTIONS: Final = (
    Shapes(paged.interleave, frozenset({"interleave"}), {"k": "T H D", "v": "T H D"}),
    Shapes(
        paged.write,
        frozenset({"interleave", "write"}),
        {"kv_pages": "P S 2H D", "destinations": "T", "k": "T H D", "v": "T H D"},
    ),
    Shapes(
        sampler.draw,
        frozenset({"draw"}),
        {"logits": "T V", "seeds": "T", "choices": "T", "positions": "T", "temperatures": "T"},
    ),
    Shapes(partial(reference.ragged_paged_attention, num_seqs=1), frozenset(), _ATTENDED),
    Shapes(
        partial(appending.append_and_attend, num_seqs=1),
        frozenset(),
        {**_ATTENDED, "keys": "T H D", "values": "T H D", "destinations": "T"},
    ),
)
"""What says in its docstring that it raises InvalidInput for shapes that do not fit together."""


def differences(functions: tuple[Shapes, ...] = FUNCTIONS) -> Iterator[str]:
    """What is wrong with the shapes that these functions take, in words."""
    for one in functions:
        right = one.right()
        told = _raised(one.function, right)
        if told is not None:
            yield f"{right}: {told!r}"
        for name, shape in one.wrong():
            told = _raised(one.function, {**right, name: shape})
            if not isinstance(told, InvalidInput):
                yield f"{name} {shape} beside {right}: {told!r}, and no InvalidInput"
            elif len(shape) != len(right[name]) and told.name not in {name, *one.names}:
                yield f"{name} {shape} beside {right}: refused is {told.name}"


def _raised(function: Callable[..., object], shapes: Mapping[str, Shape]) -> Exception | None:
    """What a function raises when it is traced for such arrays."""
    given = {
        name: jnp.zeros(shape, jnp.int32 if name in INTEGERS else jnp.float32)
        for name, shape in shapes.items()
    }
    try:
        jax.eval_shape(lambda arrays: function(**arrays), given)
    except Exception as error:  # whatever it raises is what is told of it
        return error
    return None
